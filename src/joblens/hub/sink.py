"""The process of a sink: `python -m joblens.hub.sink`, started by joblens.hub.runner.

It stores sealed segments in order; the number of the last stored one is its cursor. After a crash the segment
after the cursor is stored again, so storing must be idempotent. Sinks that write better in larger units get
several segments together (joblens.hub.groups).

    cursors/NAME.json   {"segment": 7, "rows": …, "values": …, "dropped": …}   what is stored, and how much
    cursors/NAME.lock   held by the process: there is never a second one
    sinks/NAME.json     status, for people and metrics
"""

from __future__ import annotations

import fcntl
import gc
import json
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from joblens.core.config import JobsSettings, parse_table
from joblens.core.errors import ConfigError, MalformedError, printable, sentence
from joblens.core.files import UNFINISHED, make_folder, write_quickly
from joblens.core.lock import SUFFIX, open_lock
from joblens.core.toml import Table, Value
from joblens.hub.batch_reader import NEWEST_DAYS, OLDEST_DAYS, Checker, LeftOut
from joblens.hub.cursors import Cursor, Untimely, load_cursor, save_cursor
from joblens.hub.damage import check_segment
from joblens.hub.groups import Group, Groups
from joblens.hub.segments import Segment, list_sealed, storing

SEALED = b"sealed"  # the command that announces a sealed segment
# Each module has the class Options, the settings with their defaults, and `open_sink(place, options)`.
KINDS = {
    "lake": "joblens.hub.sinks.lake",
    "csv": "joblens.hub.sinks.csv_tree",
    "remote_write": "joblens.hub.sinks.remote_write",
    "kafka": "joblens.hub.sinks.kafka",
}
# Between two scans of the journal; the second if the hub announces new segments.
_POLL_SECONDS, _WOKEN_POLL_SECONDS = 0.2, 5.0
_SHORTEST_WAIT, _LONGEST_WAIT = 0.2, 30.0  # seconds, after failures
_COLLECTED = 100_000  # objects between two searches for cycles: a group of batches has none
_PROBLEMS_KEPT = 10
_MOST_NODES = 1000  # whose rows are counted one by one
_OTHER_NODES = "", "other nodes"


class Place(NamedTuple):
    """A sink's name, the hub's folder, and the hub's identity."""

    name: str
    home: Path
    hub: str

    @property
    def cursor(self) -> Path:
        return self.home / "cursors" / f"{self.name}.json"

    @property
    def status(self) -> Path:
        return self.home / "sinks" / f"{self.name}.json"

    @property
    def folder(self) -> Path:
        """The folder for a sink's own state."""
        return self.home / "sinks" / self.name

    @property
    def journal(self) -> Path:
        return self.home / "journal"


class Taken(NamedTuple):
    """The result of storing a segment, or the sum over many."""

    rows: int = 0
    values: int = 0
    dropped: int = 0  # rows that this sink cannot store and never will
    problems: tuple[str, ...] = ()  # why
    untimely: tuple[Untimely, ...] = ()  # of these those whose time is far from their arrival, by node

    def plus(self, other: Taken) -> Taken:
        problems = dict.fromkeys((*self.problems, *other.problems))
        return Taken(
            self.rows + other.rows,
            self.values + other.values,
            self.dropped + other.dropped,
            tuple(problems)[-_PROBLEMS_KEPT:],
            _add_up(self.untimely, other.untimely),
        )


def _add_up(some: tuple[Untimely, ...], others: tuple[Untimely, ...]) -> tuple[Untimely, ...]:
    """Add up by node, within a limit: further nodes are counted together."""
    found: Counter[tuple[str, str]] = Counter()
    for cluster, node, rows in (*some, *others):
        known = (cluster, node) in found or len(found) < _MOST_NODES
        found[(cluster, node) if known else _OTHER_NODES] += rows
    return tuple((*name, rows) for name, rows in found.items())


def left_out(left: LeftOut) -> Taken:
    """Batches that could not be read, rows from another time than their arrival, and rows of other nodes.

    How many rows were in such a batch is not known: each counts as one.
    """
    untimely = tuple((*name, rows) for name, rows in left.untimely.items())
    dropped = len(left.problems) + sum(left.untimely.values()) + sum(left.foreign.values())
    problems = (*left.problems, *left.foreign)
    return Taken(dropped=dropped, problems=problems, untimely=_add_up((), untimely))


class Sink(Protocol):
    def recover(self, done: int) -> None:
        """Called first and after every failure: all up to segment `done` is stored, and no later one."""

    def take(self, segment: Segment) -> Taken:
        """Store a segment durably. Raises if that fails, and is then called again."""

    def rest(self) -> None:
        """Called when no segment waits."""


@runtime_checkable
class GroupSink(Sink, Protocol):
    """A sink that can store several segments at once."""

    def take_group(self, group: Group) -> Taken:
        """As `take`. After a crash it is the same group, of which a segment may be gone."""


def check_options(name: str, table: Mapping[str, Value], path: str = "") -> tuple[str, Table]:
    """Return the kind of a sink and its options, from `[hub.sinks.NAME]`. Raises ConfigError."""
    where = f"hub.sinks.{name}"
    if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii() or len(name) > 60:
        raise ConfigError(f"{name!r:.70} is not a valid name of a sink: use letters, digits, _ and -", path)
    kind = str(table.get("type", name))
    if kind not in KINDS:
        raise ConfigError(f"{where}.type is {kind!r:.60}, it can be {', '.join(KINDS)}", path)
    values = {key: value for key, value in table.items() if key != "type"}
    found: Table = parse_table(values, import_module(KINDS[kind]).Options(), path, where)._asdict()
    return kind, found


class Hurry:
    """Up to which segment nothing waits for others: what the hub writes to a process that it has started."""

    def __init__(self, through: float = 0.0) -> None:
        self.through = through
        self._new = threading.Event()

    def read(self, lines: list[bytes]) -> None:
        """Each is a number, or empty for all segments that there will be, or says that one more is sealed."""
        numbers = (int(line) if line else math.inf for line in lines if line != SEALED)
        self.through = max([self.through, *numbers])
        self._new.set()

    def wait(self, seconds: float) -> None:
        """Wait for a command, at most so long."""
        if self._new.wait(seconds):
            self._new.clear()


class Work:
    """Stores segments, reports its status, and backs off after failures."""

    def __init__(
        self,
        place: Place,
        kind: str,
        sink: Sink,
        log: Callable[[str], None],
        collect_seconds: float = 0.0,
        hurry: Hurry | None = None,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        """`collect_seconds`: so long segments wait for others, where the sink takes several at once."""
        self.place, self.kind, self.sink, self.log = place, kind, sink, log
        self.cursor = load_cursor(place.cursor)
        self.problems: tuple[str, ...] = ()
        self.error = ""
        self.failures = 0
        self._sound = False  # recover() has been called since the last failure
        self._written: tuple[Any, ...] = ()
        self._hurry = hurry or Hurry()
        self._poll_seconds = poll_seconds
        wait = collect_seconds if isinstance(sink, GroupSink) else 0.0
        self._groups = Groups(place.folder / "group", place.hub, wait)

    def step(self) -> float:
        """One segment or group, if one waits. How many seconds to wait before the next step."""
        try:
            group = self._next()
            if not self._sound:
                self.sink.recover(self.cursor.segment)
                self._sound = True
            if group is None:
                self.sink.rest()
                hurried = self._hurry.through > self.cursor.segment  # that one may be sealed in a moment
                poll = _POLL_SECONDS if hurried else self._poll_seconds
                wait = min(poll, self._groups.remaining())
            else:
                self._take(group)
                wait = 0.0
        except Exception as error:  # this sink's trouble is not the others', and may pass
            self._fail(error)
            wait = min(_SHORTEST_WAIT * 2 ** min(self.failures, 20), _LONGEST_WAIT)
        else:
            if self.error:
                self.log(f"sink {self.place.name}: goes on")
            self.error, self.failures = "", 0
        self._write_status()
        return wait

    def _next(self) -> Group | None:
        waiting = [s for s in list_sealed(self.place.journal) if s.number > self.cursor.segment]
        hurry = bool(waiting) and waiting[0].number <= self._hurry.through
        return self._groups.choose(waiting, hurry, self.cursor.segment)

    def _take(self, group: Group) -> None:
        with ExitStack() as stack:
            there = [segment for segment in group.segments if stack.enter_context(storing(segment))]
            if not there:
                return  # dropped, as too much was waiting: joblens.hub.retention has recorded it
            for segment in there:
                check_segment(segment)
            taken = self._store(group._replace(segments=there))
            cursor = Cursor(
                group.last,
                self.cursor.rows + taken.rows,
                self.cursor.values + taken.values,
                self.cursor.dropped + taken.dropped,
                _add_up(self.cursor.untimely, taken.untimely),
            )
            save_cursor(self.place.cursor, cursor)
        self._report_untimely(taken)
        self.cursor = cursor
        for problem in taken.problems:
            if problem not in self.problems:
                self.log(f"sink {self.place.name}: segment {group.first}: {problem}")
        self.problems = Taken(problems=self.problems).plus(taken).problems

    def _store(self, group: Group) -> Taken:
        if isinstance(self.sink, GroupSink):
            return self.sink.take_group(group)
        return self.sink.take(group.segments[0])

    def _report_untimely(self, taken: Taken) -> None:
        """Once for each node, for some nodes of a segment at most."""
        known = {it[:2] for it in self.cursor.untimely}
        new = [it for it in taken.untimely if it[:2] not in known]
        for cluster, node, rows in new[:_PROBLEMS_KEPT]:
            self.log(
                f"sink {self.place.name}: {rows} rows of node {node} of cluster {cluster} are left out: "
                f"their time is more than {OLDEST_DAYS} days before their arrival, or more "
                f"than {NEWEST_DAYS} day after it. Is its clock wrong? Further ones are counted"
            )
        if len(new) > _PROBLEMS_KEPT:
            self.log(f"sink {self.place.name}: the same of {len(new) - _PROBLEMS_KEPT} other nodes")

    def _fail(self, error: Exception) -> None:
        said = sentence(error)
        if said != self.error:
            self.log(f"sink {self.place.name}: {said}")
        self.error, self._sound = said, False
        self.failures += 1

    def _write_status(self) -> None:
        now = self.cursor, self.error, self.problems, self.failures
        if now == self._written:
            return
        found = {
            "name": self.place.name,
            "type": self.kind,
            "state": "failing" if self.error else "working",
            "error": self.error,
            "failures": self.failures,
            "problems": self.problems,
            "pid": os.getpid(),
            "time": time.time(),
        }
        with suppress(OSError):  # a full disk is reported by the error in the log
            write_quickly(str(self.place.status), json.dumps(found | self.cursor._asdict()).encode())
            self._written = now


class SinkStatus(msgspec.Struct):
    """A sink's file `sinks/NAME.json`, its cursor, and what waits for it."""

    state: str = "not started"
    error: str = ""
    failures: int = 0
    problems: tuple[str, ...] = ()
    pid: int = 0
    cursor: Cursor = Cursor()
    lag_segments: int = 0
    lag_seconds: float = 0.0


def load_status(place: Place) -> SinkStatus:
    """Return a sink's status, also without its process."""
    found = SinkStatus()
    with suppress(OSError, ValueError, RecursionError):
        found = msgspec.convert(json.loads(place.status.read_bytes()), SinkStatus)
    found.cursor = Cursor()
    with suppress(MalformedError):
        found.cursor = load_cursor(place.cursor)
    waiting = [s for s in list_sealed(place.journal) if s.number > found.cursor.segment]
    found.lag_segments, found.lag_seconds = len(waiting), 0.0
    with suppress(FileNotFoundError, IndexError):
        found.lag_seconds = max(time.time() - waiting[0].path.stat().st_mtime, 0.0)
    return found


def main() -> int:
    """Run the sink of the task until the input ends, which is when the hub does."""
    task = read_task(SinkTask)
    hurry = Hurry()
    threading.Thread(target=end_with_the_hub, args=(hurry,), daemon=True).start()
    place = Place(task.name, Path(task.home), task.hub)
    for folder in (place.cursor.parent, place.folder):
        make_folder(folder)
    lock = open_lock(place.cursor.with_suffix(SUFFIX))
    fcntl.flock(lock, fcntl.LOCK_EX)  # the previous process may still be ending
    _clear(place)
    Checker.own_rows_only = task.own_rows_only
    module = import_module(KINDS[task.type])
    sink: Sink = module.open_sink(place, module.Options(**task.options))
    gc.set_threshold(_COLLECTED)
    poll = _WOKEN_POLL_SECONDS if task.is_woken else _POLL_SECONDS
    work = Work(place, task.type, sink, log, task.collect_seconds, hurry, poll)
    while True:
        wait = work.step()
        if work.failures:
            time.sleep(wait)
        else:
            hurry.wait(wait)


def _clear(place: Place) -> None:
    """Remove temporary files that a crash has left."""
    for file in (place.cursor, place.status):
        for path in file.parent.glob(f"{file.name}.*{UNFINISHED}"):
            path.unlink(missing_ok=True)


class SinkTask(msgspec.Struct):
    """The input of a sink's process."""

    name: str
    home: str
    hub: str
    type: str
    options: dict[str, Any]  # of the type of the sink, which checks them
    own_rows_only: bool = False
    collect_seconds: float = 0.0
    is_woken: bool = False


class FollowTask(msgspec.Struct):
    """The input of joblens.hub.follower."""

    home: str
    hub: str
    scheduler: str
    store: str
    options: JobsSettings


Task = TypeVar("Task", SinkTask, FollowTask)


def read_task(kind: type[Task]) -> Task:
    """Read the first line of a process that a hub has started, and no byte more: commands follow it."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    return msgspec.convert(json.loads(line), kind)


def end_with_the_hub(hurry: Hurry | None = None) -> None:
    """Read commands of the hub, and exit with it."""
    rest = b""
    while data := os.read(0, 4096):
        *lines, rest = (rest + data).split(b"\n")
        if hurry is not None:
            hurry.read(lines)
    os._exit(0)  # at any moment, as in a crash


def log(message: str) -> None:
    with suppress(OSError):
        print(f"joblens hub: {printable(message)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
