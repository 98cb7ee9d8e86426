"""From the records of a node to its processes and threads.

A process has one row, whatever programs it has executed one after the other. Its usage comes from two
sources: its own record, written as it ends, and the record of the parent that waited for it. The second one
exists for static, setuid and killed programs too, and includes what the kernel does after the program's end.
It also includes waited-for children. The CPU time of the process alone is in it, too; other figures are those
of the process if that is the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from joblens.capture.records import (
    COUNTS,
    END,
    ENDING,
    EVENTS,
    EXEC,
    EXEC_FAILED,
    FORK,
    LAST,
    MOST,
    MOST_PID,
    SPAWN,
    START,
    THREAD,
    WAIT,
    Record,
)
from joblens.core.named_tuple import NamedTuple

_TEXTS = 5  # of a program, before the arguments
_NO_TEXTS = ("",) * _TEXTS


class ProcessEnd(NamedTuple):
    pid: int
    start: int  # clock ticks since boot; 0 if unknown
    parent: int
    group: int
    session: int
    uid: int
    name: str
    command: str
    executable: str
    folder: str
    tags: str
    rank: str
    step: str
    exact: bool
    images: int  # programs that it has executed
    usage: dict[str, int]


class ThreadEnd(NamedTuple):
    pid: int
    start: int
    thread: int
    name: str
    usage: dict[str, int]


class Program(NamedTuple):
    """Texts of a start, an exec or a spawn; those that many processes share are the same objects."""

    executable: str = ""
    folder: str = ""
    tags: str = ""
    rank: str = ""
    step: str = ""
    command: str = ""


NO_PROGRAM = Program()


def make_program(texts: list[str], share: Callable[[str], str] = str) -> Program:
    """From its texts. Those that many processes share become the same objects."""
    shared = [share(text) for text in [*texts[:_TEXTS], *_NO_TEXTS][:_TEXTS]]
    return Program._make([*shared, " ".join(texts[_TEXTS:])])


def split_texts(data: bytes) -> list[str]:
    """What follows the last zero byte is a text that was cut off, or nothing."""
    return data.decode("utf-8", "replace").split("\0")[:-1]


class _Process:
    __slots__ = (
        "began", "counts", "counts_before", "end", "ended", "group", "images", "is_last", "is_reaped",
        "next_program", "parent", "peak_before", "pid", "program", "session", "start", "uid", "wait",
        "waiter",
    )  # fmt: skip

    def __init__(self, pid: int, start: int, parent: int) -> None:
        self.pid, self.start, self.parent = pid, start, parent
        self.group = self.session = 0
        self.uid = -1
        self.program = NO_PROGRAM
        self.next_program: Program | None = None  # that it executes, if that is not captured
        self.peak_before: int | None = None  # memory before its program, which the kernel's peak includes
        self.images = 0
        self.began: int | None = None
        self.ended: int | None = None
        self.end: dict[str, int] = {}
        self.wait: dict[str, int] = {}
        self.waiter: _Process | None = None
        self.is_reaped = self.is_last = False
        self.counts: dict[int, dict[str, int]] = {}  # of events, by thread of the current program
        self.counts_before: list[dict[str, int]] = []  # and of earlier programs

    def see(self, time: int) -> None:
        self.began = time if self.began is None else min(self.began, time)

    def has_started(self, record: Record) -> None:
        self.see(record.fields["time"])
        self.parent = self.parent or record.fields.get("parent", 0)
        self.group = record.fields.get("group", 0)
        self.session = record.fields.get("session", 0)
        self.uid = record.fields.get("uid", -1)

    @property
    def is_exact(self) -> bool:
        return (bool(self.end) and not self.is_last) or self._own_time is not None

    @property
    def _own_time(self) -> list[int] | None:
        """CPU time in both modes, by who waited for it."""
        found = [self.wait[name] for name in ("own_user", "own_system") if name in self.wait]
        return found if len(found) == 2 else None

    def describe(self) -> ProcessEnd:
        program = self.next_program or self.program
        return ProcessEnd(
            self.pid, self.start, self.parent, self.group, self.session, self.uid,
            os.path.basename(program.executable) or "unknown", program.command,
            program.executable, program.folder, program.tags, program.rank, program.step,
            self.is_exact, self.images, self._usage(),
        )  # fmt: skip

    def _usage(self) -> dict[str, int]:
        found = {**self._waited_alone(), **self.end}
        own = self._own_time
        for place, name in enumerate(("user", "system")):
            below = self.end.get(f"children_{name}")
            if own is not None:
                found[name] = own[place]
            elif name in self.wait and below is not None:
                found[name] = max(self.wait[name] - below, self.end.get(name, 0))
        if "status" in self.wait:
            found["status"] = self.wait["status"]
        if self.began is not None:
            found["began"] = self.began
        if self.ended is not None:
            found["ended"] = self.ended
        return {**found, **sum_counts([*self.counts_before, *self.counts.values()])}

    def _waited_alone(self) -> dict[str, int]:
        """Return the figures of who waited for it, if they include no children: as far as they are those of
        its last program. The peak of memory is if the one before has had less."""
        if self._own_time is None or self._own_time != [self.wait.get(name) for name in ("user", "system")]:
            return {}
        found = dict(self.wait)
        if self.peak_before is None or found.get("peak_kib", 0) <= self.peak_before:
            found.pop("peak_kib", None)
        return found


class Merger:
    """Takes the records of one node in the order in which they were written."""

    def __init__(self) -> None:
        self._all: list[_Process] = []
        self._by_pid: dict[int, _Process] = {}  # the last one with that pid
        self.threads: list[ThreadEnd] = []
        self._thread_ends: dict[tuple[int, int, int], int] = {}  # by pid, start and tid

    def take(self, records: Iterable[Record]) -> None:
        for record in records:
            fields = record.fields
            if "time" in fields and fields.get("pid", MOST_PID) < MOST_PID:
                _TAKE[record.kind](self, record)

    def processes(self) -> list[ProcessEnd]:
        return [process.describe() for process in self._all]

    def _new(self, pid: int, start: int, parent: int) -> _Process:
        process = _Process(pid, start, parent)
        self._all.append(process)
        self._by_pid[pid] = process
        return process

    def _find(self, record: Record) -> _Process:
        """Return the process that wrote it."""
        pid, start = record.fields["pid"], record.fields.get("start", 0)
        known = self._by_pid.get(pid)
        if known is None or (known.is_reaped and known.start != start):
            return self._new(pid, start, record.fields.get("parent", 0))
        if known.start and start and known.start != start:  # the pid is reused
            return self._new(pid, start, record.fields.get("parent", 0))
        known.start = known.start or start
        return known

    def _take_start(self, record: Record) -> None:
        process = self._find(record)
        process.program = make_program(record.texts)
        process.next_program = None
        process.peak_before = record.fields.get("peak_kib")
        process.images += 1
        process.counts_before += process.counts.values()
        process.counts = {}
        process.has_started(record)

    def _take_fork(self, record: Record) -> None:
        parent = self._by_pid.get(record.fields.get("parent", 0))
        process = self._find(record)
        if parent is not None and not process.images:
            process.program = parent.program
        process.peak_before = 0
        process.has_started(record)

    def _take_exec(self, record: Record) -> None:
        process = self._find(record)
        process.see(record.fields["time"])
        process.next_program = _make_named(record.texts)
        process.peak_before = record.fields.get("peak_kib")

    def _take_failed_exec(self, record: Record) -> None:
        self._find(record).next_program = None

    def _take_spawn(self, record: Record) -> None:
        """Its record may follow those of the child."""
        fields = record.fields
        child, before = fields.get("child", MOST_PID), fields.get("before", 0)
        if child >= MOST_PID:
            return
        process = self._by_pid.get(child)
        if process is None or (process.is_reaped and (process.ended or 0) < before):
            process = self._new(child, 0, fields["pid"])
        if not process.images and process.next_program is None:
            process.next_program = _make_named(record.texts)
            process.peak_before = fields.get("peak_kib")
        process.see(before)

    def _take_wait(self, record: Record) -> None:
        fields = record.fields
        child = fields.get("child", MOST_PID)
        if child >= MOST_PID:
            return
        writer = self._find(record) if fields["pid"] else None  # joblens itself has no process here
        process = self._by_pid.get(child)
        is_same = process is not None and _is_same_wait(process, writer, fields)
        if process is None or (process.is_reaped and not is_same):  # killed before it could write, or static
            process = self._new(child, 0, fields["pid"])
            process.program = writer.program if writer else NO_PROGRAM
        process.wait, process.is_reaped, process.ended = fields, True, fields["time"]
        process.waiter = writer

    def _take_end(self, record: Record) -> None:
        process = self._find(record)
        process.see(record.fields["time"])
        process.end, process.is_last = record.fields, record.kind == LAST
        if not process.is_reaped:
            process.ended = None if process.is_last else record.fields["time"]

    def _take_counts(self, record: Record) -> None:
        """They are those since the start of the thread or program: of several, the last one holds."""
        self._find(record).counts[record.fields.get("thread", 0)] = scale_counts(record.fields)

    def _take_thread(self, record: Record) -> None:
        process = self._find(record)
        fields = {**record.fields, **process.counts.get(record.fields.get("thread", 0), {})}
        name = record.texts[0] if record.texts else ""
        thread = ThreadEnd(process.pid, process.start, min(fields.get("thread", 0), MOST_PID), name, fields)
        ended = self._thread_ends.get(thread[:3])
        if fields.get("running"):
            if ended is not None and ended >= fields.get("thread_start", MOST):
                return  # it was about to end when its process did, and has a record already
        else:
            self._thread_ends[thread[:3]] = fields["time"]
        self.threads.append(thread)


_TAKE = {
    START: Merger._take_start,
    FORK: Merger._take_fork,
    EXEC: Merger._take_exec,
    EXEC_FAILED: Merger._take_failed_exec,
    SPAWN: Merger._take_spawn,
    WAIT: Merger._take_wait,
    END: Merger._take_end,
    LAST: Merger._take_end,
    THREAD: Merger._take_thread,
    COUNTS: Merger._take_counts,
}


def _is_same_wait(process: _Process, writer: _Process | None, fields: dict[str, int]) -> bool:
    """A debugger waits for it before its parent does. The kernel then adds its usage to the parent only."""
    if not process.is_reaped or process.waiter is writer or "user" not in fields:
        return False
    return all(process.wait.get(name) == fields.get(name) for name in ENDING)


def _make_named(texts: list[str]) -> Program | None:
    return make_program(texts) if texts and texts[0] else None


def scale_counts(fields: dict[str, int]) -> dict[str, int]:
    """Extrapolate what was not counted all the time: the CPU may have fewer counters than were chosen."""
    found: dict[str, int] = {}
    for name in EVENTS:
        value, enabled, running = (fields.get(name + part) for part in ("", "_enabled", "_running"))
        if value is not None and running:
            found["perf_" + name] = value if running == enabled else value * (enabled or 0) // running
    return found


def sum_counts(counts: list[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for some in counts:
        for name, value in some.items():
            found[name] = found.get(name, 0) + value
    return found
