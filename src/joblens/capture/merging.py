"""What belongs to each process, among the records of a node: the numbers of records as matrices of NumPy.

Only what says which process a record belongs to is looked at one by one. joblens/core/capture_records.c does
the same; joblens.capture.columns makes columns of either's result.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from joblens.capture.processes import NO_PROGRAM, Program, make_program, split_texts
from joblens.capture.records import (
    COUNTS,
    END,
    ENDING,
    EXEC,
    EXEC_FAILED,
    FIELDS,
    FORK,
    LAST,
    MOST,
    MOST_PID,
    SPAWN,
    START,
    THREAD,
    WAIT,
)
from joblens.core.model import ABSENT

if TYPE_CHECKING:
    Numbers = numpy.ndarray[Any, numpy.dtype[numpy.int64]]

HEADER = struct.Struct("<4sIHBB")
NONE, _OTHER = -1, 1 << 40  # places of records
_KINDS = {ord(kind): kind for kind in FIELDS}
_MOST_PROGRAMS = 10_000  # whose texts are remembered


class MergedRecords(NamedTuple):
    """Processes by their number, and the records that belong to them by their rows."""

    keys: dict[str, Numbers]
    program: Numbers
    programs: list[Program]
    images: Numbers
    began: Numbers
    ended: Numbers
    end: Numbers  # row of its end, or NONE
    is_last: Any  # whether the program restricts its system calls since then
    wait: Numbers  # row of the wait for it, or NONE
    peak_before: Numbers  # memory before its program
    ends: Numbers
    waits: Numbers
    threads: Numbers
    thread_of: list[Numbers]  # process, its start as it was known then, program, and counts before
    thread_name: Numbers
    thread_names: list[str]
    counts: Numbers
    counts_of: list[Numbers]  # process and program


class RecordMatrix:
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
        first = HEADER.size
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
        block[found >= MOST] = ABSENT
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


class Merge:
    """The state of each process is in lists, by its number; records are named by their places in matrices."""

    def __init__(self, kinds: dict[int, RecordMatrix]) -> None:
        self._kinds = {_KINDS[number]: kind for number, kind in kinds.items()}
        self._by_pid: dict[int, int] = {}
        self._pid: list[int] = []
        self._start: list[int] = []
        self._parent: list[int] = []
        self._born: list[int] = []  # a start, or after all of these a fork
        self._program: list[Program] = []
        self._next: list[Program | None] = []  # that it executes, if that is not captured
        self._peak: list[int] = []  # of memory, before its program
        self._images: list[int] = []
        self._began: list[int] = []
        self._ended: list[int] = []
        self._end: list[int] = []  # or after all of these a last record
        self._wait: list[int] = []
        self._writers: dict[int, int] = {}  # of waits
        # The record, the process, its start and program, and how many counts were written before.
        self._threads: list[tuple[int, int, int, int, int]] = []
        self._thread_names: list[str] = []
        self._counts: list[tuple[int, int, int]] = []  # process, program and record
        self._programs: dict[bytes, Program] = {}
        self._shared: dict[str, str] = {}

    def take(self, order: bytearray, blocks: dict[int, Numbers]) -> None:
        rows = {number: iter(self._rows(_KINDS[number], block)) for number, block in blocks.items()}
        take = {number: _TAKE[_KINDS[number]] for number in blocks}
        for kind in order:
            record = next(rows[kind])
            if record[1] != ABSENT and 0 <= record[2] < MOST_PID:
                take[kind](self, *record)
        if len(self._programs) > _MOST_PROGRAMS:
            self._programs = {}

    def _rows(self, kind: str, block: Numbers) -> Iterable[tuple[int, ...]]:
        """Yield of each record its place, time, pid, start, parent, child, time before, and memory."""
        first, places = self._kinds[kind].count, self._kinds[kind].places
        columns: list[Iterable[int]] = [range(first, first + len(block))]
        for name in ("time", "pid", "start", "parent", "child", "before", "peak_kib"):
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
        self._born.append(NONE)
        self._program.append(NO_PROGRAM)
        self._next.append(None)
        self._peak.append(ABSENT)
        self._images.append(0)
        self._began.append(ABSENT)
        self._ended.append(ABSENT)
        self._end.append(NONE)
        self._wait.append(NONE)
        return number

    def _find(self, pid: int, start: int, parent: int) -> int:
        number = self._by_pid.get(pid)
        if number is None:
            return self._new(pid, start, parent)
        known = self._start[number]
        if known != start and (self._wait[number] != NONE or (known and start)):
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

    def _make_program(self, data: bytes) -> Program:
        program = self._programs.get(data)
        if program is None:
            program = self._programs[data] = make_program(split_texts(data), self._text)
        return program

    def _make_named(self, data: bytes) -> Program | None:
        return self._make_program(data) if data.find(b"\0") > 0 else None

    def _take_start(self, *record: int) -> None:
        row, time, pid, start, parent, _, _, peak = record
        number = self._find(pid, start, parent)
        self._program[number], self._next[number] = self._make_program(self._texts(START, row)), None
        self._peak[number] = peak
        self._images[number] += 1
        self._born[number] = row
        self._parent[number] = self._parent[number] or parent
        self._see(number, time)

    def _take_fork(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        above = self._by_pid.get(parent)
        number = self._find(pid, start, parent)
        if above is not None and not self._images[number]:
            self._program[number] = self._program[above]
        self._peak[number] = 0
        self._born[number] = _OTHER + row
        self._parent[number] = self._parent[number] or parent
        self._see(number, time)

    def _take_exec(self, *record: int) -> None:
        row, time, pid, start, parent, _, _, peak = record
        number = self._find(pid, start, parent)
        self._see(number, time)
        self._next[number] = self._make_named(self._texts(EXEC, row))
        self._peak[number] = peak

    def _take_failed_exec(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        self._next[self._find(pid, start, parent)] = None

    def _take_spawn(self, *record: int) -> None:
        row, _, pid, _, _, child, before, peak = record
        if not 0 <= child < MOST_PID:
            return
        number = self._by_pid.get(child)
        if number is None or (self._wait[number] != NONE and max(self._ended[number], 0) < before):
            number = self._new(child, 0, pid)
        if not self._images[number] and self._next[number] is None:
            self._next[number] = self._make_named(self._texts(SPAWN, row))
            self._peak[number] = peak
        self._see(number, before)

    def _take_wait(self, *record: int) -> None:
        row, time, pid, start, parent, child, *_ = record
        if not 0 <= child < MOST_PID:
            return
        writer = self._find(pid, start, parent) if pid else NONE
        number = self._by_pid.get(child)
        is_same = number is not None and self._is_same_wait(number, writer, row)
        if number is None or (self._wait[number] != NONE and not is_same):
            number = self._new(child, 0, pid)
            self._program[number] = NO_PROGRAM if writer == NONE else self._program[writer]
        self._wait[number], self._ended[number] = row, time
        if writer != NONE:
            self._writers[row] = writer

    def _is_same_wait(self, number: int, writer: int, row: int) -> bool:
        """A debugger waits for it before its parent does."""
        before = self._wait[number]
        if before == NONE or self._writers.get(before, NONE) == writer:
            return False
        kind = self._kinds[WAIT]
        now, first = kind.row(row), kind.places[ENDING[0]]
        last = first + len(ENDING)
        return now[kind.places["user"]] != ABSENT and kind.row(before)[first:last] == now[first:last]

    def _take_end(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        self._see(number, time)
        self._end[number] = row
        if self._wait[number] == NONE:
            self._ended[number] = time

    def _take_last(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        self._see(number, time)
        self._end[number] = _OTHER + row
        if self._wait[number] == NONE:
            self._ended[number] = ABSENT

    def _take_thread(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        texts = split_texts(self._texts(THREAD, row))
        self._threads.append((row, number, self._start[number], self._images[number], len(self._counts)))
        self._thread_names.append(self._text(texts[0]) if texts else "")

    def _take_counts(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        self._counts.append((number, self._images[number], row))

    def state(self) -> MergedRecords:
        ends, lasts = self._kinds[END].matrix(), self._kinds[LAST].matrix()
        end = _array(self._end)
        is_last = end >= _OTHER
        threads = [_array(list(column)) for column in zip(*self._threads)] or [_array([])] * 5
        names: dict[str, int] = {}
        name = _array([names.setdefault(it, len(names)) for it in self._thread_names])
        programs: dict[Program, int] = {}
        last = [following or program for program, following in zip(self._program, self._next)]
        program = [programs.setdefault(it, len(programs)) for it in last]
        counts = [_array(list(column)) for column in zip(*self._counts)] or [_array([])] * 3
        return MergedRecords(
            self._keys(), _array(program), list(programs), _array(self._images), _array(self._began),
            _array(self._ended), numpy.where(is_last, end - _OTHER + len(ends), end), is_last,
            _array(self._wait), _array(self._peak), numpy.concatenate([ends, lasts]),
            self._kinds[WAIT].matrix(), self._kinds[THREAD].matrix()[threads[0]], threads[1:], name,
            list(names), self._kinds[COUNTS].matrix()[counts[2]], counts[:2],
        )  # fmt: skip

    def _keys(self) -> dict[str, Numbers]:
        chosen = _Chosen(self._kinds[START], self._born, self._kinds[FORK])
        keys = {"pid": _array(self._pid), "start": _array(self._start), "parent": _array(self._parent)}
        for name, otherwise in zip(_BORN, (0, 0, -1)):
            found = chosen.column(name)
            keys[name] = numpy.where(found == ABSENT, otherwise, found)
        return keys


class _Chosen:
    """One record for each process, or none; those from _OTHER on are of another kind."""

    def __init__(self, kind: RecordMatrix, rows: list[int], other: RecordMatrix | None = None) -> None:
        self._kind, self._other = kind, other
        self.rows = _array(rows)
        self.there = self.rows != NONE

    def column(self, name: str) -> Numbers:
        found = numpy.full(len(self.rows), ABSENT, dtype=numpy.int64)
        own = self.there & (self.rows < _OTHER)
        for kind, chosen, first in ((self._kind, own, 0), (self._other, self.there & ~own, _OTHER)):
            if kind is not None and name in kind.places:
                found[chosen] = kind.matrix()[self.rows[chosen] - first, kind.places[name]]
        return found


def _array(numbers: list[int]) -> Numbers:
    return numpy.array(numbers, dtype=numpy.int64)


_BORN = ("group", "session", "uid")
_TAKE: dict[str, Callable[..., None]] = {
    START: Merge._take_start,
    FORK: Merge._take_fork,
    EXEC: Merge._take_exec,
    EXEC_FAILED: Merge._take_failed_exec,
    SPAWN: Merge._take_spawn,
    WAIT: Merge._take_wait,
    END: Merge._take_end,
    LAST: Merge._take_last,
    THREAD: Merge._take_thread,
    COUNTS: Merge._take_counts,
}
