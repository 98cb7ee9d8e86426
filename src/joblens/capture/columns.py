"""The records of a node as columns of NumPy: what joblens.capture.processes does, for jobs of many processes.

Records are read piece by piece. Their numbers go to one matrix for each kind of record; only what says which
process a record belongs to is looked at one by one: in C (joblens/core/capture_records.c) if that was built.
`processes` is the reference: a test holds all three to the same rows.
"""

from __future__ import annotations

import bisect
import os
import struct
import sys
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
from joblens.core import counter_file
from joblens.core.model import ABSENT

if TYPE_CHECKING:
    Numbers = numpy.ndarray[Any, numpy.dtype[numpy.int64]]

_HEADER = struct.Struct("<4sIHBB")
_KINDS = {ord(kind): kind for kind in FIELDS}
_LETTERS = START + FORK + EXEC + EXEC_FAILED + SPAWN + WAIT + END + LAST + THREAD + COUNTS
_PLACES = {kind: {name: place for place, name in enumerate(names)} for kind, names in FIELDS.items()}
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
    program: Numbers  # its place in `programs`
    programs: list[Program]
    values: list[Numbers]  # a column for each of PROCESS_END


class ThreadColumns(NamedTuple):
    keys: dict[str, Numbers]  # pid, start, tid
    name: Numbers  # its place in `names`
    names: list[str]
    values: list[Numbers]


class _State(NamedTuple):
    """Processes by their number, and the records that belong to them by their rows."""

    keys: dict[str, Numbers]
    is_captured: Any
    program: Numbers
    programs: list[Program]
    images: Numbers
    began: Numbers
    ended: Numbers
    end: Numbers  # row of its end, or _NONE
    is_last: Any  # whether the program restricts its system calls since then
    wait: Numbers  # row of the wait for it, or _NONE
    writers: Numbers  # of each wait: the process that waited, or _NONE
    ends: Numbers
    waits: Numbers
    threads: Numbers
    thread_of: list[Numbers]  # process, its start as it was known then, program, and counts before
    thread_name: Numbers
    thread_names: list[str]
    counts: Numbers
    counts_of: list[Numbers]  # process and program


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
        state = self._state()
        return _Processes(state).columns(), _thread_columns(state)

    def _state(self) -> _State:
        return self._merge.state()


class NativeReader(ColumnReader):
    """The same in C."""

    def __init__(self) -> None:
        self._records = counter_file.native.new_records(bytes(len(FIELDS[kind]) for kind in _LETTERS))
        self.damage = Damage(0, 0)

    def take(self, piece: bytes) -> None:
        self.damage = Damage(*counter_file.native.take_records(self._records, piece, False))

    def finish(self) -> None:
        self.damage = Damage(*counter_file.native.take_records(self._records, b"", True))

    def _state(self) -> _State:
        *columns, texts = counter_file.native.merged_records(self._records)
        found = [numpy.frombuffer(column, dtype=numpy.int64) for column in columns]
        pid, start, parent, born, group, session, uid, program, following, *found = found
        images, began, ended, end, is_last, wait, bases, heads, *found = found
        thread_process, thread_start, thread_image, thread_counts, thread_name, *found = found
        count_process, count_image, writers, waits, ends, threads, counts, text_ends = found
        decoder = _Decoder(texts, text_ends.tolist())
        names, name = decoder.first_texts(thread_name)
        programs = decoder.programs(bases.tolist(), heads.tolist())
        return _State(
            {"pid": pid, "start": start, "parent": parent, "group": group, "session": session, "uid": uid},
            born != 0, *decoder.replace(program, programs, following), images, began, ended, end,
            is_last != 0, wait, writers, _rows(END, ends), _rows(WAIT, waits), _rows(THREAD, threads),
            [thread_process, thread_start, thread_image, thread_counts], name, names, _rows(COUNTS, counts),
            [count_process, count_image],
        )  # fmt: skip


def new_reader() -> ColumnReader:
    is_native = hasattr(counter_file.native, "new_records") and sys.byteorder == "little"
    return NativeReader() if is_native else ColumnReader()


def _rows(kind: str, numbers: Numbers) -> Numbers:
    return numbers.reshape(-1, len(FIELDS[kind]))


class _Decoder:
    """The texts of records; those that are alike are one."""

    def __init__(self, texts: bytes, ends: list[int]) -> None:
        self._texts, self._ends = texts, ends
        self._shared: dict[str, str] = {}

    def split(self, number: int) -> list[str]:
        first = self._ends[number - 1] if number else 0
        return _split(self._texts[first : self._ends[number]])

    def _share(self, text: str) -> str:
        return self._shared.setdefault(text, text)

    def first_texts(self, numbers: Numbers) -> tuple[list[str], Numbers]:
        """Return the first text of each, and where it is among these."""
        distinct, places = numpy.unique(numbers, return_inverse=True)
        return [next(iter(self.split(it)), "") for it in distinct.tolist()], places

    def programs(self, bases: list[int], texts: list[int]) -> list[Program]:
        """Return them by their numbers. A spawned one is another with other texts."""
        found = [NO_PROGRAM]
        for base, number in zip(bases, texts):
            words = self.split(number)
            if base == _NONE:
                found.append(_make_program(words, self._share))
            else:
                found.append(_spawned(found[base], words, self._share))
        return found

    def replace(
        self, program: Numbers, programs: list[Program], following: Numbers
    ) -> tuple[Numbers, list[Program]]:
        """A program that was executed and is not captured replaces the one before."""
        program, made = program.copy(), dict[tuple[int, int], int]()
        for place in numpy.flatnonzero(following != _NONE).tolist():
            key = int(program[place]), int(following[place])
            if key not in made:
                made[key] = len(programs)
                text = self._share(self.split(key[1])[0])
                programs.append(programs[key[0]]._replace(executable=text, command=text))
            program[place] = made[key]
        return program, programs


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
            program = self._programs[data] = _make_program(_split(data), self._text)
        self._program[number], self._next[number] = program, ""
        self._images[number] += 1
        self._born[number] = row
        self._parent[number] = self._parent[number] or parent
        self._see(number, time)

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
            texts = _split(self._texts(SPAWN, row))
            self._program[number] = _spawned(self._program[number], texts, self._text)
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
        self._threads.append((row, number, self._start[number], self._images[number], len(self._counts)))
        self._thread_names.append(self._text(texts[0]) if texts else "")

    def _take_counts(self, row: int, time: int, pid: int, start: int, parent: int, *_: int) -> None:
        number = self._find(pid, start, parent)
        self._counts.append((number, self._images[number], row))

    def state(self) -> _State:
        ends, lasts = self._kinds[END].matrix(), self._kinds[LAST].matrix()
        end = _array(self._end)
        is_last = end >= _OTHER
        threads = [_array(list(column)) for column in zip(*self._threads)] or [_array([])] * 5
        names: dict[str, int] = {}
        name = _array([names.setdefault(it, len(names)) for it in self._thread_names])
        programs: dict[Program, int] = {}
        program = [programs.setdefault(it, len(programs)) for it in self._named_programs()]
        counts = [_array(list(column)) for column in zip(*self._counts)] or [_array([])] * 3
        writers = numpy.full(self._kinds[WAIT].count, _NONE, dtype=numpy.int64)
        writers[list(self._writers)] = list(self._writers.values())
        return _State(
            self._keys(), _array(self._born) != _NONE, _array(program), list(programs), _array(self._images),
            _array(self._began), _array(self._ended), numpy.where(is_last, end - _OTHER + len(ends), end),
            is_last, _array(self._wait), writers, numpy.concatenate([ends, lasts]),
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

    def _named_programs(self) -> list[Program]:
        """A program that was executed and is not captured replaces the one before."""
        found = self._program
        for number, text in enumerate(self._next):
            if text:
                found[number] = found[number]._replace(executable=text, command=text)
        return found


class _Processes:
    """Makes the columns of all processes."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._count = len(state.began)

    def columns(self) -> ProcessColumns:
        state, end, wait = self._state, self._of_end, self._of_wait
        is_waited = wait("user") != ABSENT
        is_exact = ((state.end != _NONE) & ~state.is_last) | is_waited
        code, signal = _how_ended(_first(wait("status"), end("status")))
        values = [
            state.began, state.ended, is_exact.astype(numpy.int64), code, signal, state.images,
            end("threads"), _first(end("peak_kib"), wait("peak_kib")), self._cpu_time("user", is_waited),
            self._cpu_time("system", is_waited), *(_first(end(name), wait(name)) for name in _GIVEN),
            *self._counts(),
        ]  # fmt: skip
        return ProcessColumns(state.keys, state.program, state.programs, values)

    def _of_end(self, name: str) -> Numbers:
        return _chosen(self._state.ends, self._state.end, _PLACES[END].get(name))

    def _of_wait(self, name: str) -> Numbers:
        return _chosen(self._state.waits, self._state.wait, _PLACES[WAIT].get(name))

    def _cpu_time(self, name: str, is_waited: Numbers) -> Numbers:
        """Return user or system time. What a parent has waited for includes waited-for children."""
        own, below, whole = self._of_end(name), self._of_end(f"children_{name}"), self._of_wait(name)
        waited = self._sum_waited(name) + self._sum_unwaited(self._find_outside(is_waited), own, below)
        children = numpy.where(below == ABSENT, waited, below)
        exact = numpy.maximum(whole - children, numpy.where(own == ABSENT, 0, own))
        return numpy.where(is_waited, exact, own)

    def _sum_waited(self, name: str) -> Numbers:
        """Return what each process has waited for."""
        sums = numpy.zeros(self._count, dtype=numpy.int64)
        known = self._state.writers != _NONE
        used = self._state.waits[known, _PLACES[WAIT][name]]
        numpy.add.at(sums, self._state.writers[known], numpy.where(used == ABSENT, 0, used))
        return sums

    def _find_outside(self, is_waited: Numbers) -> Numbers:
        """Return for each process its parent, if that is without the library and was waited for."""
        state, pid = self._state, self._state.keys["pid"]
        places = {int(pid[it]): it for it in numpy.flatnonzero(is_waited & ~state.is_captured).tolist()}
        found = numpy.full(self._count, _NONE, dtype=numpy.int64)
        if places:
            found[:] = [places.get(parent, _NONE) for parent in state.keys["parent"].tolist()]
        unwaited = (state.wait == _NONE) & (state.end != _NONE)
        return numpy.where(unwaited, found, _NONE)

    def _sum_unwaited(self, outside: Numbers, own: Numbers, below: Numbers) -> Numbers:
        sums = numpy.zeros(self._count, dtype=numpy.int64)
        chosen = outside != _NONE
        used = numpy.where(own == ABSENT, 0, own) + numpy.where(below == ABSENT, 0, below)
        numpy.add.at(sums, outside[chosen], used[chosen])
        return sums

    def _counts(self) -> list[Numbers]:
        of_process: dict[int, list[dict[str, int]]] = {}
        for (number, _, _), counts in _find_counts(self._state).items():
            of_process.setdefault(number, []).append(counts)
        return _counted(self._count, {number: sum_counts(it) for number, it in of_process.items()})


def _find_counts(
    state: _State, first: int = 0, last: int | None = None
) -> dict[tuple[int, int, int], dict[str, int]]:
    """Return them by process, program and thread: of several records, the last one holds."""
    found = {}
    for number, image, values in zip(*(it[first:last].tolist() for it in (*state.counts_of, state.counts))):
        fields = {name: value for name, value in zip(FIELDS[COUNTS], values) if value != ABSENT}
        found[number, image, fields.get("thread", 0)] = scale_counts(fields)
    return found


def _thread_counts(state: _State, tid: Numbers) -> list[Numbers]:
    """Those that were written before the end of the thread."""
    process, _, images, before = state.thread_of
    found: dict[tuple[int, int, int], dict[str, int]] = {}
    known, taken = {}, 0
    if len(state.counts):
        owners = zip(process.tolist(), images.tolist(), tid.tolist())
        for place, (owner, until) in enumerate(zip(owners, before.tolist())):
            if until > taken:
                found.update(_find_counts(state, taken, until))
                taken = until
            if owner in found:
                known[place] = found[owner]
    return _counted(len(tid), known)


def _thread_columns(state: _State) -> ThreadColumns:
    places, (process, start, *_) = _PLACES[THREAD], state.thread_of
    tid = state.threads[:, places["thread"]]
    keys = {
        "pid": state.keys["pid"][process],
        "start": start,
        "tid": numpy.where(tid == ABSENT, 0, numpy.minimum(tid, _MOST_PID)),
    }
    values = [state.threads[:, places[name]] for name in _OF_THREAD] + _thread_counts(state, keys["tid"])
    names, again = state.thread_name, _recorded_already(keys, values)
    if again:
        keys = {name: numpy.delete(key, again) for name, key in keys.items()}
        names, values = numpy.delete(names, again), [numpy.delete(it, again) for it in values]
    return ThreadColumns(keys, names, state.thread_names, values)


def _chosen(rows: Numbers, places: Numbers, column: int | None) -> Numbers:
    """Return a field of the record of each process, ABSENT where there is none."""
    found = numpy.full(len(places), ABSENT, dtype=numpy.int64)
    if column is not None:
        there = places != _NONE
        found[there] = rows[places[there], column]
    return found


def _recorded_already(keys: dict[str, Numbers], values: list[Numbers]) -> list[int]:
    """Return the rows of threads that were about to end when their process did, and have another one."""
    start, time, running = (values[_OF_THREAD.index(name)] for name in ("thread_start", "time", "running"))
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


def _make_program(texts: list[str], share: Callable[[str], str]) -> Program:
    """From the texts of a start."""
    shared = [share(text) for text in [*texts[:_TEXTS], *[""] * _TEXTS][:_TEXTS]]
    return Program._make([*shared, " ".join(texts[_TEXTS:])])


def _spawned(program: Program, texts: list[str], share: Callable[[str], str]) -> Program:
    path, *arguments = texts or [""]
    return program._replace(executable=share(path), command=" ".join(arguments))


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
