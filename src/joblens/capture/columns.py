"""The records of a node as columns of NumPy: what joblens.capture.processes does, for jobs of many processes.

Records are read piece by piece. Their numbers go to one matrix for each kind of record; only what says which
process a record belongs to is looked at one by one. `processes` is the reference: a test holds both to the
same rows.
"""

from __future__ import annotations

import bisect
import os
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from joblens.capture.processes import NO_PROGRAM, Program, scale_counts, sum_counts
from joblens.capture.records import (
    COUNTS,
    END,
    ENDING,
    EVENTS,
    EXEC,
    EXEC_FAILED,
    FIELDS,
    FORK,
    LARGEST,
    LAST,
    MAGIC,
    SPAWN,
    START,
    THREAD,
    WAIT,
    Damage,
)
from joblens.core.model import ABSENT

if TYPE_CHECKING:
    Numbers = numpy.ndarray[Any, numpy.dtype[numpy.int64]]

_HEADER = struct.Struct("<4sIHBB")
_KINDS = {ord(kind): kind for kind in FIELDS}
_WITH_TEXTS = frozenset(map(ord, (START, EXEC, SPAWN, THREAD)))
_MOST_PID, _MOST = 1 << 31, 1 << 62
_TEXTS = 5  # of a start, before the arguments
_NONE, _OTHER = -1, 1 << 40  # places of records
_MOST_PROGRAMS = 10_000  # whose texts are remembered
_GIVEN = (
    "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches", "read_chars",
    "written_chars", "read_calls", "write_calls", "read_bytes", "written_bytes", "cancelled_bytes",
    "run_delay", "slices",
)  # fmt: skip
_COUNTED = tuple(f"perf_{name}" for name in EVENTS)
_OF_THREAD = ("thread_start", "time", "running", "cpu", "user", "system", *_GIVEN)


class ProcessColumns(NamedTuple):
    """A row for each process, in the order of their first records; ABSENT for what is unknown."""

    keys: dict[str, Numbers]  # pid, start, parent, group, session, uid
    programs: list[Program]
    values: Numbers  # a column for each of PROCESS_END


class ThreadColumns(NamedTuple):
    keys: dict[str, Numbers]  # pid, start, tid
    names: list[str]
    values: Numbers


class _Kind:
    """The records of one kind."""

    def __init__(self, kind: str) -> None:
        self.width = len(FIELDS[kind])
        self.places = {name: place for place, name in enumerate(FIELDS[kind])}
        self.blocks: list[Numbers] = []
        self.firsts: list[int] = []  # the place of the first record of each block
        self.count = 0  # of the records before this piece
        self.texts: list[bytes] = []  # of the records in this piece

    def add(self, data: bytes, offsets: list[int], counts: list[int]) -> Numbers:
        whole = 8 * self.width
        first = _HEADER.size
        if min(counts) >= self.width:
            parts = [data[at + first : at + first + whole] for at in offsets]
        else:  # of an earlier version
            parts = [
                data[at + first : at + first + 8 * min(count, self.width)].ljust(whole, b"\xff")
                for at, count in zip(offsets, counts)
            ]
        # Unknown, and what no kernel reports, is ABSENT from here on.
        found = numpy.frombuffer(b"".join(parts), dtype="<u8").reshape(-1, self.width)
        block = found.astype(numpy.int64)
        block[found >= _MOST] = ABSENT
        self.blocks.append(block)
        self.firsts.append(self.count)
        return block

    def row(self, place: int) -> list[int]:
        block = bisect.bisect_right(self.firsts, place) - 1
        found: list[int] = self.blocks[block][place - self.firsts[block]].tolist()
        return found

    def matrix(self) -> Numbers:
        if not self.blocks:
            return numpy.empty((0, self.width), dtype=numpy.int64)
        found = self.blocks[0] if len(self.blocks) == 1 else numpy.concatenate(self.blocks)
        self.blocks, self.firsts = [found], [0]
        return found


class ColumnReader:
    """Takes the bytes of a file in pieces; then has its processes and threads."""

    def __init__(self) -> None:
        self._kinds = {ord(kind): _Kind(kind) for kind in FIELDS}
        self._merge = _Merge(self._kinds)
        self._rest = b""
        self.damage = Damage(0, 0)

    def take(self, piece: bytes) -> None:
        data = self._rest + piece if self._rest else piece
        self._rest = data[self._scan(data, len(data) - LARGEST) :]

    def finish(self) -> None:
        data, self._rest = self._rest, b""
        self._scan(data, len(data))

    def _scan(self, data: bytes, until: int) -> int:
        """Take the records that begin before that place. Return where the next one begins."""
        at, size_all, unpack, adler32 = 0, len(data), _HEADER.unpack_from, zlib.adler32
        offsets: dict[int, list[int]] = {kind: [] for kind in self._kinds}
        counts: dict[int, list[int]] = {kind: [] for kind in self._kinds}
        order, view = bytearray(), memoryview(data)  # the kind of each record
        while at < until:
            if at + _HEADER.size <= size_all:
                magic, checksum, size, kind, count = unpack(data, at)
                whole = (
                    magic == MAGIC and _HEADER.size + 8 * count <= size <= LARGEST and at + size <= size_all
                )
                if whole and adler32(view[at + 8 : at + size]) == checksum:
                    if kind in offsets:
                        offsets[kind].append(at)
                        counts[kind].append(count)
                        order.append(kind)
                        if kind in _WITH_TEXTS:
                            self._kinds[kind].texts.append(data[at + _HEADER.size + 8 * count : at + size])
                    at += size
                    continue
            following = data.find(MAGIC, at + 1)
            end = size_all if following < 0 else following
            self.damage = Damage(self.damage.places + 1, self.damage.bytes + end - at)
            at = end
        blocks = {kind: self._kinds[kind].add(data, it, counts[kind]) for kind, it in offsets.items() if it}
        self._merge.take(order, blocks)
        for kind, it in offsets.items():
            self._kinds[kind].count += len(it)
            self._kinds[kind].texts = []
        return at

    def merge(self) -> tuple[ProcessColumns, ThreadColumns]:
        """Return all of them. To be called once, after `finish`."""
        return self._merge.processes(), self._merge.threads()


class _Merge:
    """The state of each process is in lists, by its number; records are named by their places in matrices."""

    def __init__(self, kinds: dict[int, _Kind]) -> None:
        self._kinds = {_KINDS[number]: kind for number, kind in kinds.items()}
        self._by_pid: dict[int, int] = {}
        self._pid: list[int] = []
        self._start: list[int] = []
        self._parent: list[int] = []
        self._born: list[int] = []  # a start, or after all of these a fork
        self._program: list[Program] = []
        self._next: list[str] = []  # program that it executes, if that is not captured
        self._images: list[int] = []
        self._began: list[int] = []
        self._ended: list[int] = []
        self._end: list[int] = []  # or after all of these a last record
        self._wait: list[int] = []
        self._writers: dict[int, int] = {}  # of waits
        self._threads: list[tuple[int, int, int, str]] = []  # record, pid, start and name
        self._thread_of: list[tuple[int, int, int]] = []  # process and program of each, and counts until then
        self._counts: list[tuple[int, int, int]] = []  # process, program and record
        self._programs: dict[bytes, Program] = {}
        self._shared: dict[str, str] = {}

    def take(self, order: bytearray, blocks: dict[int, Numbers]) -> None:
        rows = {number: iter(self._rows(_KINDS[number], block)) for number, block in blocks.items()}
        take = {number: _TAKE[_KINDS[number]] for number in blocks}
        for kind in order:
            record = next(rows[kind])
            if record[1] != ABSENT and 0 <= record[2] < _MOST_PID:
                take[kind](self, *record)
        if len(self._programs) > _MOST_PROGRAMS:
            self._programs = {}

    def _rows(self, kind: str, block: Numbers) -> Iterable[tuple[int, ...]]:
        """Yield of each record its place, time, pid, start, parent, child and time before that started."""
        first, places = self._kinds[kind].count, self._kinds[kind].places
        columns: list[Iterable[int]] = [range(first, first + len(block))]
        for name in ("time", "pid", "start", "parent", "child", "before"):
            if name not in places:
                columns.append([0] * len(block))
                continue
            found = block[:, places[name]]
            if name in ("start", "parent", "before"):
                found = numpy.where(found == ABSENT, 0, found)
            columns.append(found.tolist())
        return zip(*columns)

    def _texts(self, kind: str, row: int) -> bytes:
        return self._kinds[kind].texts[row - self._kinds[kind].count]

    def _new(self, pid: int, start: int, parent: int) -> int:
        number = len(self._pid)
        self._by_pid[pid] = number
        self._pid.append(pid)
        self._start.append(start)
        self._parent.append(parent)
        self._born.append(_NONE)
        self._program.append(NO_PROGRAM)
        self._next.append("")
        self._images.append(0)
        self._began.append(ABSENT)
        self._ended.append(ABSENT)
        self._end.append(_NONE)
        self._wait.append(_NONE)
        return number

    def _find(self, pid: int, start: int, parent: int) -> int:
        number = self._by_pid.get(pid)
        if number is None:
            return self._new(pid, start, parent)
        known = self._start[number]
        if known != start and (self._wait[number] != _NONE or (known and start)):
            return self._new(pid, start, parent)
        if not known:
            self._start[number] = start
        return number

    def _see(self, number: int, time: int) -> None:
        began = self._began[number]
        if began == ABSENT or time < began:
            self._began[number] = time

    def _text(self, text: str) -> str:
        return self._shared.setdefault(text, text)

    def _take_start(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        data = self._texts(START, row)
        program = self._programs.get(data)
        if program is None:
            program = self._programs[data] = self._make_program(data)
        self._program[number], self._next[number] = program, ""
        self._images[number] += 1
        self._born[number] = row
        self._parent[number] = self._parent[number] or parent
        self._see(number, time)

    def _make_program(self, data: bytes) -> Program:
        texts = _split(data)
        shared = [self._text(text) for text in [*texts[:_TEXTS], *[""] * _TEXTS][:_TEXTS]]
        return Program._make([*shared, " ".join(texts[_TEXTS:])])

    def _take_fork(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        above = self._by_pid.get(parent)
        number = self._find(pid, start, parent)
        if above is not None and not self._images[number]:
            self._program[number] = self._program[above]
        self._born[number] = _OTHER + row
        self._parent[number] = self._parent[number] or parent
        self._see(number, time)

    def _take_exec(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        self._see(number, time)
        texts = _split(self._texts(EXEC, row))
        self._next[number] = self._text(texts[0]) if texts else ""

    def _take_failed_exec(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        self._next[self._find(pid, start, parent)] = ""

    def _take_spawn(self, *record: int) -> None:
        row, _, pid, _, _, child, before = record
        if not 0 <= child < _MOST_PID:
            return
        number = self._by_pid.get(child)
        if number is None or (self._wait[number] != _NONE and max(self._ended[number], 0) < before):
            number = self._new(child, 0, pid)
        if not self._program[number].executable:
            texts = _split(self._texts(SPAWN, row)) or [""]
            changes = {"executable": self._text(texts[0]), "command": " ".join(texts[1:])}
            self._program[number] = self._program[number]._replace(**changes)
        self._see(number, before)

    def _take_wait(self, *record: int) -> None:
        row, time, pid, start, parent, child, _ = record
        if not 0 <= child < _MOST_PID:
            return
        writer = self._find(pid, start, parent) if pid else _NONE
        number = self._by_pid.get(child)
        if number is not None and self._is_same_wait(number, writer, row):
            self._writers.pop(self._wait[number], None)
        elif number is None or self._wait[number] != _NONE:
            number = self._new(child, 0, pid)
            self._program[number] = NO_PROGRAM if writer == _NONE else self._program[writer]
        self._wait[number], self._ended[number] = row, time
        if writer != _NONE:
            self._writers[row] = writer

    def _is_same_wait(self, number: int, writer: int, row: int) -> bool:
        """A debugger waits for it before its parent does."""
        before = self._wait[number]
        if before == _NONE or self._writers.get(before, _NONE) == writer:
            return False
        kind = self._kinds[WAIT]
        now, first = kind.row(row), kind.places[ENDING[0]]
        return now[kind.places["user"]] != ABSENT and kind.row(before)[first:] == now[first:]

    def _take_end(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        self._see(number, time)
        self._end[number] = row
        if self._wait[number] == _NONE:
            self._ended[number] = time

    def _take_last(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        self._see(number, time)
        self._end[number] = _OTHER + row
        if self._wait[number] == _NONE:
            self._ended[number] = ABSENT

    def _take_thread(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        texts = _split(self._texts(THREAD, row))
        self._threads.append((row, pid, self._start[number], self._text(texts[0]) if texts else ""))
        self._thread_of.append((number, self._images[number], len(self._counts)))

    def _take_counts(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        self._counts.append((number, self._images[number], row))

    def _find_counts(
        self, first: int = 0, last: int | None = None
    ) -> dict[tuple[int, int, int], dict[str, int]]:
        """Return them by process, program and thread: of several records, the last one holds."""
        kind, found = self._kinds[COUNTS], {}
        for number, image, row in self._counts[first:last]:
            values = kind.matrix()[row].tolist()
            fields = {name: values[place] for name, place in kind.places.items() if values[place] != ABSENT}
            found[number, image, fields.get("thread", 0)] = scale_counts(fields)
        return found

    def _process_counts(self) -> list[Numbers]:
        of_process: dict[int, list[dict[str, int]]] = {}
        for (number, _, _), counts in self._find_counts().items():
            of_process.setdefault(number, []).append(counts)
        return _counted(len(self._pid), {number: sum_counts(it) for number, it in of_process.items()})

    def _thread_counts(self, threads: list[int]) -> list[Numbers]:
        """Those that were written before the end of the thread."""
        found: dict[tuple[int, int, int], dict[str, int]] = {}
        known, taken = {}, 0
        for place, ((number, image, until), thread) in enumerate(zip(self._thread_of, threads)):
            if until > taken:
                found.update(self._find_counts(taken, until))
                taken = until
            if (number, image, thread) in found:
                known[place] = found[number, image, thread]
        return _counted(len(threads), known)

    def processes(self) -> ProcessColumns:
        end, wait = (
            _Chosen(self._kinds[END], self._end, self._kinds[LAST]),
            _Chosen(self._kinds[WAIT], self._wait),
        )
        is_waited = wait.column("user") != ABSENT
        user, system = self._cpu_times(end, wait, is_waited)
        is_exact = (end.there & (end.rows < _OTHER)) | is_waited
        code, signal = _how_ended(_first(wait.column("status"), end.column("status")))
        columns = [
            _array(self._began), _array(self._ended), is_exact.astype(numpy.int64), code, signal,
            _array(self._images), end.column("threads"),
            _first(end.column("peak_kib"), wait.column("peak_kib")), user, system,
            *(_first(end.column(name), wait.column(name)) for name in _GIVEN), *self._process_counts(),
        ]  # fmt: skip
        return ProcessColumns(self._keys(), self._named_programs(), numpy.stack(columns, axis=1))

    def _cpu_times(self, end: _Chosen, wait: _Chosen, is_waited: Numbers) -> list[Numbers]:
        """Return user and system time. What a parent has waited for includes waited-for children."""
        outside = self._find_outside(is_waited)
        found = []
        for name in ("user", "system"):
            own, below, whole = end.column(name), end.column(f"children_{name}"), wait.column(name)
            waited = self._sum_waited(name) + self._sum_unwaited(outside, own, below)
            children = numpy.where(below == ABSENT, waited, below)
            exact = numpy.maximum(whole - children, numpy.where(own == ABSENT, 0, own))
            found.append(numpy.where(is_waited, exact, own))
        return found

    def _sum_waited(self, name: str) -> Numbers:
        """Return what each process has waited for."""
        sums = numpy.zeros(len(self._pid), dtype=numpy.int64)
        used = self._kinds[WAIT].matrix()[list(self._writers), self._kinds[WAIT].places[name]]
        numpy.add.at(sums, list(self._writers.values()), numpy.where(used == ABSENT, 0, used))
        return sums

    def _find_outside(self, is_waited: Numbers) -> Numbers:
        """Return for each process its parent, if that is without the library and was waited for."""
        captured = _array(self._born) != _NONE
        places = {self._pid[number]: number for number in numpy.flatnonzero(is_waited & ~captured).tolist()}
        found = numpy.full(len(self._pid), _NONE, dtype=numpy.int64)
        if places:
            found[:] = [places.get(parent, _NONE) for parent in self._parent]
        unwaited = (_array(self._wait) == _NONE) & (_array(self._end) != _NONE)
        return numpy.where(unwaited, found, _NONE)

    def _sum_unwaited(self, outside: Numbers, own: Numbers, below: Numbers) -> Numbers:
        sums = numpy.zeros(len(self._pid), dtype=numpy.int64)
        chosen = outside != _NONE
        used = numpy.where(own == ABSENT, 0, own) + numpy.where(below == ABSENT, 0, below)
        numpy.add.at(sums, outside[chosen], used[chosen])
        return sums

    def _keys(self) -> dict[str, Numbers]:
        chosen = _Chosen(self._kinds[START], self._born, self._kinds[FORK])
        keys = {"pid": _array(self._pid), "start": _array(self._start), "parent": _array(self._parent)}
        for name, otherwise in zip(_BORN, (0, 0, -1)):
            found = chosen.column(name)
            keys[name] = numpy.where(found == ABSENT, otherwise, found)
        return keys

    def _named_programs(self) -> list[Program]:
        """A program that was executed and is not captured replaces the one before."""
        found = self._program
        for number, text in enumerate(self._next):
            if text:
                found[number] = found[number]._replace(executable=text, command=text)
        return found

    def threads(self) -> ThreadColumns:
        kind = self._kinds[THREAD]
        rows, pids, starts, names = (list(it) for it in zip(*self._threads)) if self._threads else ([],) * 4
        found = kind.matrix()[rows]
        tid = found[:, kind.places["thread"]]
        keys = {
            "pid": _array(pids),
            "start": _array(starts),
            "tid": numpy.where(tid == ABSENT, 0, numpy.minimum(tid, _MOST_PID)),
        }
        counts = numpy.stack(self._thread_counts(keys["tid"].tolist()), axis=1)
        values = found[:, [kind.places[name] for name in _OF_THREAD]]
        values = numpy.concatenate([values, counts], axis=1)
        again = _recorded_already(keys, values)
        if again:
            keys = {name: numpy.delete(key, again) for name, key in keys.items()}
            names = [name for place, name in enumerate(names) if place not in again]
            values = numpy.delete(values, again, axis=0)
        return ThreadColumns(keys, names, values)


def _recorded_already(keys: dict[str, Numbers], values: Numbers) -> list[int]:
    """Return the rows of threads that were about to end when their process did, and have another one."""
    start, time, running = (values[:, _OF_THREAD.index(name)] for name in ("thread_start", "time", "running"))
    ran = numpy.flatnonzero((running != 0) & (running != ABSENT) & (start != ABSENT))
    if not len(ran):
        return []
    near = numpy.flatnonzero(numpy.isin(keys["tid"], keys["tid"][ran]))
    ended: dict[tuple[int, int, int], int] = {}
    found = []
    for place in near.tolist():
        thread = (int(keys["pid"][place]), int(keys["start"][place]), int(keys["tid"][place]))
        if running[place] in (0, ABSENT):
            ended[thread] = int(time[place])
        elif thread in ended and start[place] != ABSENT and ended[thread] >= start[place]:
            found.append(place)
    return found


class _Chosen:
    """One record for each process, or none; those from _OTHER on are of another kind."""

    def __init__(self, kind: _Kind, rows: list[int], other: _Kind | None = None) -> None:
        self._kind, self._other = kind, other
        self.rows = _array(rows)
        self.there = self.rows != _NONE

    def column(self, name: str) -> Numbers:
        found = numpy.full(len(self.rows), ABSENT, dtype=numpy.int64)
        own = self.there & (self.rows < _OTHER)
        for kind, chosen, first in ((self._kind, own, 0), (self._other, self.there & ~own, _OTHER)):
            if kind is not None and name in kind.places:
                found[chosen] = kind.matrix()[self.rows[chosen] - first, kind.places[name]]
        return found


def _split(data: bytes) -> list[str]:
    """What follows the last zero byte is a text that was cut off, or nothing."""
    return data.decode("utf-8", "replace").split("\0")[:-1]


def _array(numbers: list[int]) -> Numbers:
    return numpy.array(numbers, dtype=numpy.int64)


def _counted(rows: int, known: dict[int, dict[str, int]]) -> list[Numbers]:
    """Return a column for each event."""
    columns = [numpy.full(rows, ABSENT, dtype=numpy.int64) for _ in _COUNTED]
    for row, counts in known.items():
        for column, name in zip(columns, _COUNTED):
            value = counts.get(name, ABSENT)
            column[row] = value if value < _MOST else ABSENT
    return columns


def _first(one: Numbers, other: Numbers) -> Numbers:
    """Return the one where it is known, else the other."""
    return numpy.where(one != ABSENT, one, other)


def _how_ended(status: Numbers) -> tuple[Numbers, Numbers]:
    """Return exit code and signal from a status of waitpid(2)."""
    low = status & 0x7F
    is_signal = (status != ABSENT) & (low != 0)
    code = numpy.where((status != ABSENT) & ~is_signal, (status >> 8) & 0xFF, ABSENT)
    return code, numpy.where(is_signal, low, ABSENT)


_BORN = ("group", "session", "uid")
_TAKE: dict[str, Callable[..., None]] = {
    START: _Merge._take_start,
    FORK: _Merge._take_fork,
    EXEC: _Merge._take_exec,
    EXEC_FAILED: _Merge._take_failed_exec,
    SPAWN: _Merge._take_spawn,
    WAIT: _Merge._take_wait,
    END: _Merge._take_end,
    LAST: _Merge._take_last,
    THREAD: _Merge._take_thread,
    COUNTS: _Merge._take_counts,
}


def basename(executable: str) -> str:
    return os.path.basename(executable) or "unknown"
