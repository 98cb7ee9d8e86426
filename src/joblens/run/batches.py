"""The samples of a job as numbered files of batches, each written atomically."""

from __future__ import annotations

import time

from joblens.core.errors import sentence
from joblens.core.files import write_whole
from joblens.core.model import Sample
from joblens.wire.batch import Batch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

    from joblens.wire.header import Head

# A batch is written after this many seconds or values: they bound what a crash loses, and memory. The first
# ones are written sooner, because most jobs are short.
_FIRST_SECONDS, _BATCH_SECONDS = 1.0, 15.0
_BATCH_VALUES = 200_000
_MOST_UNWRITTEN = 16 << 20  # bytes of batches after failed writes


class Batches:
    def __init__(self, folder: str, head: Head) -> None:
        self.folder, self.head = folder, head
        self.batch = Batch()
        self.sequence = 0
        self.values = 0
        self.since = time.monotonic()
        self.seconds = _FIRST_SECONDS
        self._unwritten: List[Tuple[int, bytes]] = []
        self._lost = 0
        self._error = ""

    def add(self, samples: List[Sample]) -> None:
        self.batch.add(samples)
        self.values += sum(len(sample.rows.values) for sample in samples)
        if self.values >= _BATCH_VALUES or time.monotonic() - self.since >= self.seconds:
            self.flush()

    def flush(self) -> None:
        """Write the batch. After a failure it is retried next time; beyond a limit the oldest are dropped."""
        if self.values:
            self.sequence += 1
            message = self.batch.encode({**self.head, "sequence": self.sequence})
            self.values, self.since = 0, time.monotonic()
            self.seconds = min(2 * self.seconds, _BATCH_SECONDS)
            self._unwritten.append((self.sequence, message))
        while self._unwritten and self._write(*self._unwritten[0]):
            self._unwritten.pop(0)
        while sum(len(message) for _, message in self._unwritten) > _MOST_UNWRITTEN:
            self._unwritten.pop(0)
            self._lost += 1

    def _write(self, sequence: int, message: bytes) -> bool:
        try:
            write_whole(f"{self.folder}/{sequence:08d}.batch", message)
        except OSError as error:
            self._error = sentence(error)
            return False
        return True

    def problems(self) -> List[str]:
        """Report batches that were lost, including those that are still unwritten at the end."""
        lost = self._lost + len(self._unwritten)
        return [f"{lost} of {self.sequence} batches of samples were lost: {self._error}"] if lost else []
