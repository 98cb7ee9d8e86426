"""The samples of a job as files, numbered, each whole or not there."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Tuple

from joblens.core.errors import sentence
from joblens.core.files import write_whole
from joblens.core.model import Sample
from joblens.wire.batch import Batch

# A batch is written after so many seconds or values: what a crash can lose, and what is held in memory.
# The first ones come sooner, for most jobs are short.
_FIRST_SECONDS, _BATCH_SECONDS = 1.0, 15.0
_BATCH_VALUES = 200_000
_MOST_WAITING = 16 << 20  # bytes of batches that the disk did not take


class Batches:
    def __init__(self, folder: str, head: Dict[str, Any]) -> None:
        self.folder, self.head = folder, head
        self.batch = Batch()
        self.sequence = 0
        self.values = 0
        self.since = time.monotonic()
        self.seconds = _FIRST_SECONDS
        self._waiting: List[Tuple[int, bytes]] = []
        self._lost = 0
        self._trouble = ""

    def add(self, samples: List[Sample]) -> None:
        self.batch.add(samples)
        self.values += sum(len(sample.rows.values) for sample in samples)
        if self.values >= _BATCH_VALUES or time.monotonic() - self.since >= self.seconds:
            self.flush()

    def flush(self) -> None:
        """What the disk does not take now waits for the next time, the oldest until there is no room."""
        if self.values:
            self.sequence += 1
            message = self.batch.encode({**self.head, "sequence": self.sequence})
            self.values, self.since = 0, time.monotonic()
            self.seconds = min(2 * self.seconds, _BATCH_SECONDS)
            self._waiting.append((self.sequence, message))
        while self._waiting and self._write(*self._waiting[0]):
            self._waiting.pop(0)
        while sum(len(message) for _, message in self._waiting) > _MOST_WAITING:
            self._waiting.pop(0)
            self._lost += 1

    def _write(self, sequence: int, message: bytes) -> bool:
        try:
            write_whole(f"{self.folder}/{sequence:08d}.batch", message)
        except OSError as error:
            self._trouble = sentence(error)
            return False
        return True

    def problems(self) -> List[str]:
        """At the end: what is still waiting then is lost."""
        lost = self._lost + len(self._waiting)
        return [f"{lost} of {self.sequence} batches of samples were lost: {self._trouble}"] if lost else []
