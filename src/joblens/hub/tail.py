"""What a hub has acknowledged and its lake sink has not stored yet, for reports of running jobs.

The lake sink stores groups of segments, up to 90 s after they were received. Until then they are in the
journal: sealed segments after the sink's cursor, and the open one. The batches of a job's nodes are read from
there and written to a temporary lake by the code of the sink itself. So each row is read from one place: from
files of the lake up to the cursor, or from the temporary lake. Nothing in the hub's folder is written or
locked.

    hubs/ID.hub    in the store: {"home": "/var/lib/joblens-hub", "sink": "lake", "own_rows_only": true}
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from joblens.core.errors import MalformedError, sentence
from joblens.core.files import list_names, make_folder, write_quickly
from joblens.core.json_file import parse_json
from joblens.hub.batch_reader import Checker
from joblens.hub.cursors import load_cursor
from joblens.hub.entries import (
    LARGEST_BATCH,
    MAGIC,
    Head,
    find_entry,
    identify,
    is_entry,
    names_length,
    parse_head,
)
from joblens.hub.groups import Group
from joblens.hub.identity import read_identity
from joblens.hub.segments import NUMBERED, Record, Segment, load_skips
from joblens.hub.sinks.lake import LakeSink
from joblens.store.home import Home, find_home, make_home
from joblens.store.lake.folder import HUB, job_file, list_folder
from joblens.store.lake.lake import Files, Lake, MovedError
from joblens.store.location import safe_name

_HUB_FILE = re.compile(r"([0-9a-f]{12})\.hub", re.ASCII)
_HEAD_BYTES = 512  # enough for the head of most entries
_PREFIX = "joblens-tail-"  # of temporary folders
_IN_MEMORY = "/dev/shm"  # noqa: S108 (a private folder is created in it)
_NEW_SECONDS = 600.0  # in which a folder without a lock is kept: its owner may be about to lock it
_MOST_BYTES = 256 << 20  # of batches that are read for reports at the same time
_ATTEMPTS = 5
Node = tuple[str, str]  # cluster and name


class Source(NamedTuple):
    """A hub that writes to a store."""

    id: str
    home: Path
    sink: str
    own_rows_only: bool

    @property
    def cursor(self) -> int:
        """The last segment that is in the lake. Raises MalformedError."""
        return load_cursor(self.home / "cursors" / f"{self.sink}.json").segment


def announce(store: Path, source: Source) -> None:
    """Tell readers of a store where the hub's journal is. Without that they see what is stored."""
    found = {"home": str(source.home), "sink": source.sink, "own_rows_only": source.own_rows_only}
    folder = store / "hubs"
    with suppress(OSError):
        make_folder(folder)
        write_quickly(str(folder / f"{source.id}.hub"), json.dumps(found).encode())


def find_sources(store: Path, problems: list[str]) -> list[Source]:
    """Return the hubs that have announced themselves, and whose journal is on this machine."""
    found = []
    for match in filter(None, map(_HUB_FILE.fullmatch, list_names(str(store / "hubs")))):
        path = store / "hubs" / match[0]
        try:
            source = parse_source(match[1], path.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            problems.append(f"{path}: not a hub's location: {error!s:.100}")
            continue
        if read_identity(source.home) == source.id:  # a journal that begins anew has another one
            found.append(source)
    return found


def parse_source(id: str, data: bytes) -> Source:
    """Raises ValueError."""
    try:
        found = parse_json(data)
        home, sink, own = found["home"], found["sink"], found["own_rows_only"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if not (isinstance(home, str) and isinstance(sink, str) and re.fullmatch(r"[\w-]{1,60}", sink)):
        raise ValueError("its fields are not texts")
    return Source(id, Path(home), sink, bool(own))


class Room:
    """Bytes of batches that a report has read. All reports of this process together have a limit."""

    _lock = threading.Lock()
    _in_use = 0

    def __init__(self) -> None:
        self._taken, self.is_full = 0, False

    def take(self, size: int) -> bool:
        with Room._lock:
            self.is_full = self.is_full or Room._in_use + size > _MOST_BYTES
            if not self.is_full:
                Room._in_use += size
                self._taken += size
        return not self.is_full

    def release(self) -> None:
        with Room._lock:
            Room._in_use -= self._taken


class _OfNodes(Segment):
    """Entries of some nodes in a segment. Its file is open: it may be removed meanwhile."""

    file: BinaryIO
    nodes: Collection[Node]
    problems: list[str]
    room: Room

    def records(self) -> Iterator[Record]:
        for record in read_entries(self.path, self.file, self.nodes, self.problems):
            if not self.room.take(len(record.batch)):
                return
            yield record


class Tail(NamedTuple):
    source: Source
    cursor: int
    segments: list[_OfNodes]


def open_tail(
    source: Source, nodes: Collection[Node], problems: list[str], room: Room, stack: ExitStack
) -> Tail | None:
    """Return what is not in the lake, of these nodes; None if it could not be opened at one moment."""
    for _ in range(_ATTEMPTS):
        try:
            cursor = source.cursor
            found = _open_segments(source.home / "journal", cursor, stack)
            for segment in found:
                segment.nodes, segment.problems, segment.room = nodes, problems, room
            if source.cursor == cursor:
                return Tail(source, cursor, found)
        except FileNotFoundError:  # stored by all sinks, and removed
            continue
        except (OSError, MalformedError) as error:
            problems.append(f"the newest samples are missing: {sentence(error)}")
            return None
    return None


def _open_segments(journal: Path, cursor: int, stack: ExitStack) -> list[_OfNodes]:
    numbers = {int(match[1]) for match in map(NUMBERED.fullmatch, list_names(str(journal))) if match}
    found = []
    for number in sorted(it for it in numbers if it > cursor):
        segment = _OfNodes(number, journal / f"{number:08d}.log")
        try:
            segment.file = stack.enter_context(segment.path.open("rb", buffering=0))
        except FileNotFoundError:  # sealed, perhaps just now
            segment = _OfNodes(number, journal / f"{number:08d}.sealed")
            segment.file = stack.enter_context(segment.path.open("rb", buffering=0))
        found.append(segment)
    return found


def read_entries(
    path: Path, file: BinaryIO, nodes: Collection[Node], problems: list[str]
) -> Iterator[Record]:
    """Yield the entries of these nodes; the batches of others are not read.

    What an open segment ends with may be incomplete. Other damage is passed over and reported.
    """
    is_open = path.suffix == ".log"
    skips = {skip.begin: skip for skip in load_skips(path)}
    fd, at, place = file.fileno(), 0, 0
    size = os.fstat(fd).st_size
    while at < size:
        if at in skips:
            place, at = place + skips[at].entries, max(skips[at].end, at + 1)
            continue
        head = _read_head(fd, at)
        record = None if head is None or at + head.whole > size else _read_record(fd, at, head, nodes)
        if head is None or record is None:
            rest = os.pread(fd, size - at, at)
            further = find_entry(rest, 1, len(rest))
            if further < len(rest) or not is_open:
                problems.append(f"{path}: the entry at byte {at} is damaged; it is left out")
            at, place = at + further, place + 1
            continue
        place, at = place + 1, at + head.whole
        if record.batch:
            yield record._replace(place=place)


def _read_head(fd: int, at: int) -> Head | None:
    data = os.pread(fd, _HEAD_BYTES, at)
    if not data.startswith(MAGIC):  # of an earlier version: only with its batch
        return is_entry(os.pread(fd, LARGEST_BATCH + _HEAD_BYTES, at), 0)
    wanted = names_length(data)
    return parse_head(data if wanted <= len(data) else os.pread(fd, wanted, at))


def _read_record(fd: int, at: int, head: Head, nodes: Collection[Node]) -> Record | None:
    """Return the record, empty if it is of another node, None if it is damaged."""
    batch = head.batch
    if not head.old and (batch.cluster, batch.node) not in nodes:
        return Record(head.received_ns, b"", 0, head)
    whole = os.pread(fd, head.whole, at)
    if is_entry(whole, 0) is None:
        return None
    data = whole[head.size :]
    if head.old:
        with suppress(MalformedError):
            batch = identify(head, data)
    own = (batch.cluster, batch.node) in nodes
    return Record(head.received_ns, data if own else b"", 0, head)


class _LakeAndTail(Lake):
    """The files of the lake up to the cursors, and those of the temporary lake."""

    def __init__(self, path: Path, rest: Lake, cursors: dict[str, int]) -> None:
        super().__init__(path)
        self._rest, self._cursors = rest, cursors

    def sets(self) -> set[str]:
        return super().sets() | self._rest.sets()

    def files(
        self,
        set_name: str,
        dates: tuple[str, str] = ("0000", "9999"),
        job: str | None = None,
        times: tuple[int, int] | None = None,
        nodes: tuple[str, ...] = (),
    ) -> Files:
        stored = super().files(set_name, dates, job, times, nodes).choose(self._is_stored)
        for folder in (self.path / f"set={safe_name(set_name)}").glob("date=*"):
            if dates[0] <= folder.name.removeprefix("date=") <= dates[1]:
                replaced = (name for it in list_folder(folder).manifests for name in it.replaces)
                if not all(self._is_stored(Path(name)) for name in replaced):
                    raise MovedError
        rest = self._rest.files(set_name, dates, job, times, nodes)
        return Files([*stored, *rest], lambda: self.files(set_name, dates, job, times, nodes))

    def _is_stored(self, path: Path) -> bool:
        """Whether it is a file of the lake that has nothing of the tail."""
        found = job_file(path.name)
        if found is None or not found.job.startswith(HUB):
            return True
        return found.first <= self._cursors.get(found.job.split("~")[1], found.first)


@contextmanager
def open_lake(home: Home, nodes: Collection[Node], problems: list[str]) -> Iterator[Lake]:
    """Yield the lake with all that was acknowledged of these nodes.

    MovedError is raised from within if files that were left out are compacted: open it again.
    """
    with ExitStack() as stack:
        room = Room()
        stack.callback(room.release)
        sources = find_sources(home.path, problems)
        tails = [open_tail(source, nodes, problems, room, stack) for source in sources]
        found = [tail for tail in tails if tail is not None and tail.segments]
        if not found:
            yield Lake(home.lake)
            return
        rest = make_home(find_home(stack.enter_context(open_scratch())))
        for tail in found:
            problems += _store(tail, rest)
        if room.is_full:
            problems.append("more samples have been received than this report has read; they are stored soon")
        yield _LakeAndTail(home.lake, Lake(rest.lake), {it.source.id: it.cursor for it in found})


def _store(tail: Tail, home: Home) -> tuple[str, ...]:
    """As the sink does; what that leaves out it reports itself."""
    sink = LakeSink(tail.source.id, home)
    sink.checker = Checker()
    sink.checker.own_rows_only = tail.source.own_rows_only
    numbers = [segment.number for segment in tail.segments]
    return sink.take_group(Group(min(numbers), max(numbers), list(tail.segments))).problems


# Temporary folders in memory. What a killed process has left is removed by the next one.


@contextmanager
def open_scratch() -> Iterator[Path]:
    """Yield a private folder. It is locked while it is used, whatever happens to its process."""
    parent = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK | os.X_OK) else tempfile.gettempdir()
    remove_leftovers(parent)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as folder:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # where folders cannot be locked, nothing is removed either
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(folder)
        finally:
            os.close(fd)


def remove_leftovers(parent: str) -> None:
    """Remove the folders of this user that no process uses."""
    for name in list_names(parent):
        if name.startswith(_PREFIX):
            with suppress(OSError):  # in use, of another user, or gone
                _remove_unused(f"{parent}/{name}")


def _remove_unused(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _NEW_SECONDS:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    finally:
        os.close(fd)
