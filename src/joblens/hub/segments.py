"""The journal's files as sinks read them: a sealed segment is a run of records that never changes."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from joblens.errors import MalformedError
from joblens.files import list_names, sync_folder

HEAD = struct.Struct("<IIQ")  # length of the batch, CRC-32 of all behind the CRC itself, time it was received
SEALED = re.compile(r"(\d{8})\.sealed", re.ASCII)
OPEN = re.compile(r"(\d{8})\.log", re.ASCII)
LARGEST_BATCH = 1 << 26
_STAMP = struct.Struct("<Q")


class Record(NamedTuple):
    received_ns: int
    batch: bytes


class Segment(NamedTuple):
    number: int
    path: Path

    def records(self) -> Iterator[Record]:
        """Raises MalformedError where a disk has changed what was written."""
        with self.path.open("rb") as file:
            while True:
                record = read_record(file.read(HEAD.size), file.read)
                if record is None:
                    return
                yield record


@contextmanager
def storing(segment: Segment) -> Iterator[bool]:
    """For a sink, until it has written down that it has it: nobody drops it meanwhile. False: it is gone."""
    try:
        file = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield os.fstat(file).st_nlink > 0
    finally:
        os.close(file)


@contextmanager
def dropping(segment: Segment) -> Iterator[bool]:
    """For who wants to delete one that sinks may still want. False: one of them is just storing it."""
    file = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(file)


def list_sealed(folder: Path) -> list[Segment]:
    """In the order in which they were written."""
    matches = [match for match in map(SEALED.fullmatch, list_names(str(folder))) if match]
    return [Segment(int(match[1]), folder / match[0]) for match in matches]


def pack_record(received_ns: int, batch: bytes) -> bytes:
    return pack_head(received_ns, batch) + batch


def pack_head(received_ns: int, batch: bytes) -> bytes:
    """What stands in front of a batch."""
    crc = zlib.crc32(batch, zlib.crc32(_STAMP.pack(received_ns)))
    return HEAD.pack(len(batch), crc, received_ns)


def read_record(head: bytes, read: Callable[[int], bytes]) -> Record | None:
    """None at the end."""
    if not head:
        return None
    if len(head) < HEAD.size:
        raise MalformedError("journal", "a record is cut off")
    length, crc, received_ns = HEAD.unpack(head)
    if length > LARGEST_BATCH:
        raise MalformedError("journal", "a record is too long")
    batch = read(length)
    if len(batch) < length:
        raise MalformedError("journal", "a record is cut off")
    if zlib.crc32(batch, zlib.crc32(head[8:])) != crc:
        raise MalformedError("journal", "a record is not what was written")
    return Record(received_ns, batch)


def sound_length(path: Path) -> int:
    """Up to where a file that a crash may have cut off is whole."""
    sound = 0
    with path.open("rb") as file:
        while True:
            try:
                record = read_record(file.read(HEAD.size), file.read)
            except MalformedError:
                return sound
            if record is None:
                return sound
            sound = file.tell()


def seal(path: Path) -> Path:
    """The open segment gets its final name: from then on sinks see it."""
    target = path.with_suffix(".sealed")
    os.rename(path, target)
    sync_folder(str(target))
    return target
