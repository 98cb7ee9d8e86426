"""The journal: batches are appended to a segment and synced before they are acknowledged.

One thread writes all waiting batches with one sync (group commit), so the cost per batch falls with the
load. A segment that is large or old enough is sealed, that is renamed, and then read by the sinks. Its
index has the heads of the acknowledged batches, so that those on damaged parts of the disk can be named.
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

from joblens.core.errors import MalformedError, sentence
from joblens.core.files import (
    NO_ROOM,
    UNFINISHED,
    list_names,
    make_folder,
    private_mode,
    sync_folder,
    write_whole,
)
from joblens.hub.damage import (
    acknowledged_size,
    check_segment,
    complete_index,
    load_damage,
    load_index,
    note_damage,
    read_damaged,
    survey,
)
from joblens.hub.dedup import Seen, load_seen
from joblens.hub.entries import pack_head, pack_index
from joblens.hub.identity import keep_identity
from joblens.hub.segments import NUMBERED, OPEN, Segment, index_folder, index_path, list_sealed, seal
from joblens.wire.header import BatchId

_MOST_PARTS = 512  # records in one writev: the kernel takes 1024 pieces
_PACE_SECONDS = 0.01  # between two questions to the disk: senders that come one by one share one
Log = Callable[[str], None]


class Entry:
    """A batch that is being written, and the callbacks that wait for it."""

    __slots__ = ("batch", "data", "received_ns", "waiting")

    def __init__(self, batch: BatchId, data: bytes, received_ns: int, waiting: list[Any]) -> None:
        self.batch, self.data, self.received_ns, self.waiting = batch, data, received_ns, waiting


Finished = Callable[[list[Entry], "OSError | None"], None]


class Journal:
    """`finished` is called in the journal's own thread, with the error if nothing of it was stored."""

    def __init__(
        self,
        home: Path,
        segment_bytes: int,
        segment_seconds: float,
        finished: Finished,
        log: Log,
        identity: str = "",
    ) -> None:
        self._home, self._identity = home, identity
        self.folder, self._seen_path = home / "journal", home / "seen.json"
        self._segment_bytes, self._segment_seconds = segment_bytes, segment_seconds
        self._finished, self._log = finished, log
        self.seen, self.number = recover(home, log)
        self.commits = self.errors = self.sealed = 0
        self.trouble = ""  # why nothing can be stored now
        self._queue: deque[Entry] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._writing = threading.Lock()
        self._closing = self._flushing = False
        self._file = self._index = -1
        self._heads: list[bytes] = []  # of what is written and not synced yet, for the index
        self._size = 0  # of what is known to be on the disk
        self._broken = False  # behind that may lie something else
        self._since = 0.0
        self._asked = 0.0  # when the disk was last asked to keep what it has
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        with suppress(OSError):  # a full disk: the same is tried before the first segment
            self.exist()

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, *entries: Entry) -> None:
        self._queue.extend(entries)
        with self._wake:
            self._wake.notify()

    def close(self) -> None:
        """Store what waits, and seal the last segment."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def flush(self) -> int:
        """Seal the open segment now, with all that was acknowledged. Return its number."""
        with self._wake:
            self._flushing = True
            self._wake.notify()
            return self.number

    @property
    def open_bytes(self) -> int:
        return self._size

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._queue and not self._closing and not self._flushing:
                    self._wake.wait(self._until_seal())
                closing, flushing, self._flushing = self._closing, self._flushing, False
            # Many senders that come one by one share one question to the disk.
            if self._queue and not closing:
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
                full = self._size >= self._segment_bytes
                if self._file >= 0 and (flushing or full or self._until_seal() == 0):
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
            self._heads, size = [], 0
            for at in range(0, len(entries), _MOST_PARTS):
                size += self._write(entries[at : at + _MOST_PARTS], self._size + size)
            self._asked = time.monotonic()
            os.fdatasync(self._file)
        except OSError as error:
            # What the disk has of it is unknown, and after a failed sync stays so: it is cut off.
            self._broken = self._file >= 0
            self.errors += 1
            return error
        self._size += size
        self.commits += 1
        self._write_index()
        for entry in entries:
            self.seen.add(entry.batch)
        return None

    def _begin(self) -> None:
        for folder in (self.folder, index_folder(self.folder)):
            make_folder(folder)
        if self._identity:
            keep_identity(self._home, self._identity)
        path = self.folder / f"{self.number:08d}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags | os.O_EXCL, private_mode(path))
        self._size, self._since = 0, time.monotonic()
        with suppress(OSError):  # what was acknowledged is in the segment, whatever becomes of its index
            self._index = os.open(index_path(path), flags | os.O_TRUNC, private_mode(path))
        for name in (path, index_path(path)):
            sync_folder(str(name))

    def _write(self, entries: list[Entry], at: int) -> int:
        """`at`: the offset in the file."""
        parts: list[bytes | memoryview] = []
        total = 0
        for entry in entries:
            head = pack_head(entry.batch, entry.received_ns, entry.data)
            self._heads.append(pack_index(at + total, head))
            parts += (head, entry.data)
            total += len(head) + len(entry.data)
        done = os.writev(self._file, parts)
        if done < total:  # a signal, or the disk has become full just here
            rest = memoryview(b"".join(parts))[done:]
            while rest:
                rest = rest[os.write(self._file, rest) :]
        return total

    def _write_index(self) -> None:
        """Append to the index. It is synced when the segment is sealed; a crash of the hub alone keeps it."""
        if self._index >= 0:
            heads = b"".join(self._heads)
            try:
                whole = os.write(self._index, heads) == len(heads)
            except OSError:
                whole = False
            if not whole:
                self._close_index()

    def _close_index(self) -> None:
        if self._index >= 0:
            os.close(self._index)
            self._index = -1

    def _mend(self) -> None:
        """Truncate to what was acknowledged, and abandon the file."""
        os.ftruncate(self._file, self._size)
        os.fsync(self._file)
        self._broken = False
        if self._size:
            self._seal()
        else:
            os.close(self._file)
            self._file = -1
            self._close_index()
            path = self.folder / f"{self.number:08d}.log"
            index_path(path).unlink(missing_ok=True)
            path.unlink()

    def _seal(self) -> None:
        # First what is in it, then its name: sinks may be quick, and a segment that all have is deleted.
        path = self.folder / f"{self.number:08d}.log"
        if self._index >= 0:
            os.fdatasync(self._index)
        else:
            _restore_index(path)
        self._save_seen(path)
        seal(path)
        self._close_index()
        os.close(self._file)
        self._file = -1
        self.number += 1
        self.sealed += 1
        self._size = 0

    def _save_seen(self, segment: Path) -> None:
        """Save the known batches. On a full disk the index stands in for it. Raises OSError."""
        try:
            self.seen.save(self._seen_path, self.number)
        except OSError as error:
            if error.errno not in NO_ROOM or acknowledged_size(segment) < self._size:
                raise

    def exist(self) -> None:
        """Mark the journal as begun. Raises OSError."""
        with self._writing:
            if not self._seen_path.exists():
                self.seen.save(self._seen_path, self.number - 1)

    def adopt(self, path: Path, batches: list[BatchId], index: bytes = b"") -> None:
        """Make a synced file of entries a segment. Raises OSError."""
        with self._writing:
            if self._broken:
                self._mend()
            elif self._file >= 0:
                self._seal()
            for batch in batches:
                self.seen.add(batch)
            self.seen.save(self._seen_path, self.number)
            target = self.folder / f"{self.number:08d}.sealed"
            if index:
                make_folder(index_folder(self.folder))
                write_whole(str(index_path(target)), index)
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
                f"the journal cannot be written: {trouble}; senders have to wait"
                if trouble
                else "the journal is writable again"
            )
        self.trouble = trouble


def recover(home: Path, log: Log) -> tuple[Seen, int]:
    """Recover after any end of the hub: return the known batches and the next segment's number."""
    folder = home / "journal"
    with suppress(OSError):  # a full disk: tried again for the first segment
        make_folder(folder)
    _remove_unfinished(home)
    seen = load_seen(home / "seen.json", log)
    names = list_names(str(folder))
    opened = [Segment(int(match[1]), folder / match[0]) for match in map(OPEN.fullmatch, names) if match]
    opened = [segment for segment in opened if _end_segment(segment, log)]
    segments = sorted([*list_sealed(folder), *opened])
    for segment in segments:
        if segment.number > seen.through or segment in opened:
            _read_again(segment, seen, log)
    names += list_names(str(index_folder(folder)))
    numbers = {int(match[1]) for match in map(NUMBERED.fullmatch, names) if match}
    for number in sorted(numbers - {segment.number for segment in segments}):
        if number > seen.through:  # every sink has it, and its segment is deleted
            for it in load_index(folder / f"{number:08d}.sealed"):
                seen.add(it.head.batch)
    last = max([seen.through, *numbers])
    if opened:
        try:
            seen.save(home / "seen.json", last)
        except OSError as error:  # the segment or its index contains the same at the next start
            log(f"which batches are known is not written down yet: {sentence(error)}")
        for segment in opened:
            seal(segment.path)
    return seen, last + 1


def _remove_unfinished(home: Path) -> None:
    for name in list_names(str(home)):
        if name.startswith("seen.json.") and name.endswith(UNFINISHED):
            with suppress(OSError):
                (home / name).unlink()


def _end_segment(segment: Segment, log: Log) -> bool:
    """Truncate unacknowledged bytes, and record damage. Return False if nothing is left."""
    data, index = read_damaged(segment.path), load_index(segment.path)
    found = survey(data, index, unsealed=True, has_index=index_path(segment.path).exists())
    name = f"journal segment {segment.number}"
    if found.torn < len(data):
        log(
            f"{name}: the last {len(data) - found.torn} bytes were being written when the hub ended, "
            "and were not acknowledged: they are cut off"
        )
    if not found.torn and not found.lost:
        segment.path.unlink()
        index_path(segment.path).unlink(missing_ok=True)
        return False
    if found.torn < len(data):
        with segment.path.open("r+b") as file:
            file.truncate(found.torn)
            os.fsync(file.fileno())
    if found.skips or found.lost:
        with suppress(OSError):  # a full disk: the first sink that takes it tries again
            note_damage(segment, load_damage(segment.path), found, found.torn)
    with suppress(OSError):  # a full disk: the batches are in the segment
        complete_index(segment.path, data, index, found.sound)
    return True


def _restore_index(segment: Path) -> None:
    """Complete an index that could not be written for a while."""
    with suppress(OSError):
        data, index = read_damaged(segment), load_index(segment)
        complete_index(segment, data, index, survey(data, index).sound)


def _read_again(segment: Segment, seen: Seen, log: Log) -> None:
    try:
        check_segment(segment)
    except OSError as error:  # sinks try again
        log(f"{segment.path.name}: what is damaged cannot be written down yet: {sentence(error)}")
    try:
        for record in segment.records():
            with suppress(MalformedError):
                seen.add(record.identity)
    except MalformedError as error:
        log(f"journal segment {segment.number} is damaged: {sentence(error)}")
