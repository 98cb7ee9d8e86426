"""What the hub has acknowledged: appended to a segment, and on the disk before anybody is told.

A thread writes all that waits at once and asks the disk once for all of it, so that the more wait, the less
each costs. A segment that is large or old enough is sealed: it gets another name, and sinks read it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from joblens.agent.frame import read_header
from joblens.errors import MalformedError, sentence
from joblens.files import UNFINISHED, list_names, sync_folder
from joblens.hub.header import check_header
from joblens.hub.seen import Batch, Seen, load_seen
from joblens.hub.segments import OPEN, SEALED, Segment, list_sealed, pack_head, seal, sound_length

_MOST_PARTS = 512  # records in one writev: the kernel takes 1024 pieces
_PACE_SECONDS = 0.01  # between two questions to the disk: senders that come one by one share one
Log = Callable[[str], None]


class Entry:
    """A batch on its way to the disk, and who waits for that."""

    __slots__ = ("batch", "data", "received_ns", "waiting")

    def __init__(self, batch: Batch, data: bytes, received_ns: int, waiting: list[Any]) -> None:
        self.batch, self.data, self.received_ns, self.waiting = batch, data, received_ns, waiting


Finished = Callable[[list[Entry], "OSError | None"], None]


class Journal:
    """`finished` is called in the journal's own thread, with the error if nothing of it was stored."""

    def __init__(
        self, home: Path, segment_bytes: int, segment_seconds: float, finished: Finished, log: Log
    ) -> None:
        self.folder, self._seen_path = home / "journal", home / "seen.json"
        self._segment_bytes, self._segment_seconds = segment_bytes, segment_seconds
        self._finished, self._log = finished, log
        self.seen, self.number = recover(home, log)
        self.commits = self.errors = self.sealed = 0
        self.trouble = ""  # why nothing can be stored now
        self._queue: deque[Entry] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._writing = threading.Lock()
        self._closing = False
        self._file = -1
        self._size = 0  # of what is known to be on the disk
        self._broken = False  # behind that may lie something else
        self._since = 0.0
        self._asked = 0.0  # when the disk was last asked to keep what it has
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, entry: Entry) -> None:
        self._queue.append(entry)
        with self._wake:
            self._wake.notify()

    def close(self) -> None:
        """What waits is stored, and the last segment sealed."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    @property
    def open_bytes(self) -> int:
        return self._size

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._queue and not self._closing:
                    self._wake.wait(self._until_seal())
                closing = self._closing
            if (
                self._queue and not closing
            ):  # many senders that come one by one share one question to the disk
                time.sleep(max(self._asked + _PACE_SECONDS - time.monotonic(), 0.0))
            entries = self._take()
            if entries:
                with self._writing:
                    error = self._commit(entries)
                self._tell(error)
                self._finished(entries, error)
            elif closing:
                break
            with self._writing:
                if self._file >= 0 and (self._size >= self._segment_bytes or self._until_seal() == 0):
                    self._try_seal()
        with self._writing:
            if self._file >= 0:
                self._try_seal()

    def _until_seal(self) -> float | None:
        if self._file < 0:
            return None
        return max(self._since + self._segment_seconds - time.monotonic(), 0.0)

    def _take(self) -> list[Entry]:
        queue = self._queue
        return [queue.popleft() for _ in range(len(queue))]

    def _commit(self, entries: list[Entry]) -> OSError | None:
        try:
            if self._broken:
                self._mend()
            if self._file < 0:
                self._begin()
            size = sum(
                self._write(entries[at : at + _MOST_PARTS]) for at in range(0, len(entries), _MOST_PARTS)
            )
            self._asked = time.monotonic()
            os.fdatasync(self._file)
        except OSError as error:
            # What the disk has of it is unknown, and after a failed sync stays so: it is cut off.
            self._broken = self._file >= 0
            self.errors += 1
            return error
        self._size += size
        self.commits += 1
        for entry in entries:
            self.seen.add(entry.batch)
        return None

    def _begin(self) -> None:
        path = self.folder / f"{self.number:08d}.log"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size, self._since = 0, time.monotonic()
        sync_folder(str(path))

    def _write(self, entries: list[Entry]) -> int:
        parts: list[bytes | memoryview] = []
        for entry in entries:
            parts += (pack_head(entry.received_ns, entry.data), entry.data)
        total = sum(map(len, parts))
        done = os.writev(self._file, parts)
        if done < total:  # a signal, or the disk has become full just here
            rest = memoryview(b"".join(parts))[done:]
            while rest:
                rest = rest[os.write(self._file, rest) :]
        return total

    def _mend(self) -> None:
        """Back to what was acknowledged; the file is not used any further."""
        os.ftruncate(self._file, self._size)
        os.fsync(self._file)
        self._broken = False
        if self._size:
            self._seal()
        else:
            os.close(self._file)
            self._file = -1
            os.unlink(self.folder / f"{self.number:08d}.log")

    def _seal(self) -> None:
        # First what is in it, then its name: sinks may be quick, and a segment that all have is deleted.
        self.seen.save(self._seen_path, self.number)
        seal(self.folder / f"{self.number:08d}.log")
        os.close(self._file)
        self._file = -1
        self.number += 1
        self.sealed += 1
        self._size = 0

    def exist(self) -> None:
        """From here on this is a journal that was begun, whatever becomes of it. Raises OSError."""
        with self._writing:
            if not self._seen_path.exists():
                self.seen.save(self._seen_path, self.number - 1)

    def adopt(self, path: Path, batches: list[Batch]) -> None:
        """A file of records that is on the disk already, as a segment of its own. Raises OSError."""
        with self._writing:
            if self._broken:
                self._mend()
            elif self._file >= 0:
                self._seal()
            for batch in batches:
                self.seen.add(batch)
            self.seen.save(self._seen_path, self.number)
            target = self.folder / f"{self.number:08d}.sealed"
            path.rename(target)
            sync_folder(str(target))
            self.number += 1
            self.sealed += 1

    def _try_seal(self) -> None:
        try:
            if self._broken:
                self._mend()
            else:
                self._seal()
        except OSError as error:
            self._tell(error)
            self._since = time.monotonic()  # again after a while; meanwhile it grows

    def _tell(self, error: OSError | None) -> None:
        trouble = "" if error is None else sentence(error)
        if trouble != self.trouble:
            self._log(
                f"the journal cannot be written: {trouble}; senders are told to wait"
                if trouble
                else "the journal is written again"
            )
        self.trouble = trouble


def recover(home: Path, log: Log) -> tuple[Seen, int]:
    """What a hub that ended anyhow has left: batches that are known, and the next segment's number."""
    folder = home / "journal"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in list_names(str(home)):
        if name.startswith("seen.json.") and name.endswith(UNFINISHED):
            with suppress(OSError):
                (home / name).unlink()
    seen = load_seen(home / "seen.json")
    names = list_names(str(folder))
    opened = [Segment(int(match[1]), folder / match[0]) for match in map(OPEN.fullmatch, names) if match]
    opened = [segment for segment in opened if _cut(segment, log)]
    for segment in sorted([*list_sealed(folder), *opened]):
        if segment.number > seen.through or segment in opened:
            _read_again(segment, seen, log)
    numbers = [
        int(match[1])
        for name in names
        for match in (SEALED.fullmatch(name) or OPEN.fullmatch(name),)
        if match
    ]
    last = max([seen.through, *numbers])
    if opened:
        seen.save(home / "seen.json", last)
        for segment in opened:
            seal(segment.path)
    return seen, last + 1


def _cut(segment: Segment, log: Log) -> bool:
    """Off with what was never acknowledged. False if nothing is left."""
    size, sound = segment.path.stat().st_size, sound_length(segment.path)
    if size != sound:
        name = f"journal segment {segment.number}"
        log(f"{name}: the last {size - sound} bytes were not acknowledged and are cut off")
    if not sound:
        segment.path.unlink()
        return False
    with segment.path.open("r+b") as file:
        file.truncate(sound)
        os.fsync(file.fileno())
    return True


def _read_again(segment: Segment, seen: Seen, log: Log) -> None:
    try:
        for record in segment.records():
            with suppress(MalformedError):
                seen.add(check_header(read_header(record.batch)).batch)
    except MalformedError as error:
        log(f"journal segment {segment.number} is damaged: {sentence(error)}")
