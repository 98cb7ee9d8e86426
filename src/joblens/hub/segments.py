"""The journal's files as sinks read them: a sealed segment is a run of entries that never changes.

00000041.sealed   entries (joblens.hub.entries), the batches as they came
00000041.index    the head of every entry that was acknowledged, each with its place
00000041.damage   only where a disk has changed the segment: what to pass over (joblens.hub.damage)
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import MalformedError
from joblens.core.files import list_names, sync_folder
from joblens.core.json_file import parse_json
from joblens.hub.entries import UNIDENTIFIED, Head, identify, pack_head, read_entry
from joblens.wire.header import BatchId

SEALED = re.compile(r"(\d{8})\.sealed", re.ASCII)
OPEN = re.compile(r"(\d{8})\.log", re.ASCII)
INDEX = re.compile(r"(\d{8})\.index", re.ASCII)
NUMBERED = re.compile(r"(\d{8})\.(?:sealed|log|index)", re.ASCII)


class Record(NamedTuple):
    received_ns: int
    batch: bytes
    place: int = 0  # in the segment, from 1 on; damaged ones count too
    head: Head | None = None

    @property
    def identity(self) -> BatchId:
        """Raises MalformedError."""
        return identify(self.head or Head(UNIDENTIFIED, 0, 0, 0, 0), self.batch)


class Skip(NamedTuple):
    """A damaged part of a segment."""

    begin: int
    end: int
    entries: int  # that were there


class Segment(NamedTuple):
    number: int
    path: Path

    def records(self) -> Iterator[Record]:
        """Yield the records without known damage. Raises MalformedError for further damage."""
        place = at = 0
        with self.path.open("rb") as file:
            for begin, end, entries in (*load_skips(self.path), Skip(1 << 62, 1 << 62, 0)):
                while at < begin:
                    try:
                        found = read_entry(file.read)
                    except OSError as error:
                        if error.errno != errno.EIO:
                            raise
                        raise MalformedError("journal", "read error of the disk") from None
                    if found is None:
                        return
                    head, data = found
                    place, at = place + 1, at + head.whole
                    yield Record(head.received_ns, data, place, head)
                if at > begin:
                    raise MalformedError("journal", "an entry overlaps a damaged part")
                file.seek(end)
                place, at = place + entries, end


def index_path(segment: Path) -> Path:
    return index_folder(segment.parent) / f"{segment.stem}.index"


def index_folder(journal: Path) -> Path:
    return journal.with_name("index")


def damage_path(segment: Path) -> Path:
    return segment.with_suffix(".damage")


def load_skips(segment: Path) -> tuple[Skip, ...]:
    """In their order. None if what is written there cannot be read: the damage is found again then."""
    try:
        found = parse_json(damage_path(segment).read_bytes())["skips"]
        return tuple(Skip(*map(int, it)) for it in found)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


@contextmanager
def storing(segment: Segment) -> Iterator[bool]:
    """Keep a segment from being deleted while a sink stores it. Yield False if it is gone."""
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
    """Lock a segment for deletion. Yield False if a sink is storing it."""
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
    """Return the sealed segments in order."""
    matches = [match for match in map(SEALED.fullmatch, list_names(str(folder))) if match]
    return [Segment(int(match[1]), folder / match[0]) for match in matches]


def pack_record(received_ns: int, batch: bytes, identity: BatchId = UNIDENTIFIED) -> bytes:
    return pack_head(identity, received_ns, batch) + batch


def seal(path: Path) -> Path:
    """Rename the open segment, which makes it visible to sinks."""
    target = path.with_suffix(".sealed")
    os.rename(path, target)
    sync_folder(str(target))
    return target
