"""The records of a node as columns of NumPy: what joblens.capture.processes does, for jobs of many processes.

Records are read piece by piece and merged, in C (joblens/core/capture_records.c) if that was built, else by
joblens.capture.merging. `processes` is the reference: a test holds all three to the same rows.
"""

from __future__ import annotations

import os
import sys
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from joblens.capture.merging import (
    HEADER,
    NONE,
    Merge,
    MergedRecords,
    RecordMatrix,
)
from joblens.capture.processes import (
    NO_PROGRAM,
    Program,
    make_program,
    scale_counts,
    split_texts,
    sum_counts,
)
from joblens.capture.records import (
    COUNTS,
    END,
    EVENTS,
    EXEC,
    FIELDS,
    LARGEST,
    LETTERS,
    MAGIC,
    MOST,
    MOST_PID,
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

_PLACES = {kind: {name: place for place, name in enumerate(names)} for kind, names in FIELDS.items()}
_WITH_TEXTS = frozenset(map(ord, (START, EXEC, SPAWN, THREAD)))
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


class ColumnReader:
    """Takes the bytes of a file in pieces; then has its processes and threads."""

    def __init__(self) -> None:
        self._kinds = {ord(kind): RecordMatrix(kind) for kind in FIELDS}
        self._merge = Merge(self._kinds)
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
        at, size_all, unpack, adler32 = 0, len(data), HEADER.unpack_from, zlib.adler32
        offsets: dict[int, list[int]] = {kind: [] for kind in self._kinds}
        counts: dict[int, list[int]] = {kind: [] for kind in self._kinds}
        order, view = bytearray(), memoryview(data)  # the kind of each record
        while at < until:
            if at + HEADER.size <= size_all:
                magic, checksum, size, kind, count = unpack(data, at)
                whole = (
                    magic == MAGIC and HEADER.size + 8 * count <= size <= LARGEST and at + size <= size_all
                )
                if whole and adler32(view[at + 8 : at + size]) == checksum:
                    if kind in offsets:
                        offsets[kind].append(at)
                        counts[kind].append(count)
                        order.append(kind)
                        if kind in _WITH_TEXTS:
                            self._kinds[kind].texts.append(data[at + HEADER.size + 8 * count : at + size])
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

    def _state(self) -> MergedRecords:
        return self._merge.state()


class NativeReader(ColumnReader):
    """The same in C."""

    def __init__(self) -> None:
        self._records = counter_file.native.new_records(bytes(len(FIELDS[kind]) for kind in LETTERS))
        self.damage = Damage(0, 0)

    def take(self, piece: bytes) -> None:
        self.damage = Damage(*counter_file.native.take_records(self._records, piece, False))

    def finish(self) -> None:
        self.damage = Damage(*counter_file.native.take_records(self._records, b"", True))

    def _state(self) -> MergedRecords:
        *columns, texts = counter_file.native.merged_records(self._records)
        found = [numpy.frombuffer(column, dtype=numpy.int64) for column in columns]
        pid, start, parent, group, session, uid, program, following, *found = found
        images, began, ended, end, is_last, wait, peak_before, heads, *found = found
        thread_process, thread_start, thread_image, thread_counts, thread_name, *found = found
        count_process, count_image, _, waits, ends, threads, counts, text_ends = found
        decoder = _Decoder(texts, text_ends.tolist())
        names, name = decoder.first_texts(thread_name)
        return MergedRecords(
            {"pid": pid, "start": start, "parent": parent, "group": group, "session": session, "uid": uid},
            numpy.where(following != 0, following, program), decoder.programs(heads.tolist()), images, began,
            ended, end, is_last != 0, wait, peak_before, _rows(END, ends), _rows(WAIT, waits),
            _rows(THREAD, threads), [thread_process, thread_start, thread_image, thread_counts], name, names,
            _rows(COUNTS, counts), [count_process, count_image],
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
        return split_texts(self._texts[first : self._ends[number]])

    def _share(self, text: str) -> str:
        return self._shared.setdefault(text, text)

    def first_texts(self, numbers: Numbers) -> tuple[list[str], Numbers]:
        """Return the first text of each, and where it is among these."""
        distinct, places = numpy.unique(numbers, return_inverse=True)
        return [next(iter(self.split(it)), "") for it in distinct.tolist()], places

    def programs(self, texts: list[int]) -> list[Program]:
        """Return them by their numbers."""
        return [NO_PROGRAM, *(make_program(self.split(number), self._share) for number in texts)]


class _Processes:
    """Makes the columns of all processes."""

    def __init__(self, state: MergedRecords) -> None:
        self._state = state
        self._count = len(state.began)

    def columns(self) -> ProcessColumns:
        state, end, wait = self._state, self._of_end, self._of_wait
        is_own = (wait("own_user") != ABSENT) & (wait("own_system") != ABSENT)
        is_alone = is_own & (wait("own_user") == wait("user")) & (wait("own_system") == wait("system"))
        is_known = is_alone & (state.peak_before != ABSENT) & (wait("peak_kib") > state.peak_before)
        is_exact = ((state.end != NONE) & ~state.is_last) | is_own
        code, signal = _how_ended(_first(wait("status"), end("status")))
        values = [
            state.began, state.ended, is_exact.astype(numpy.int64), code, signal, state.images,
            end("threads"), _first(end("peak_kib"), numpy.where(is_known, wait("peak_kib"), ABSENT)),
            self._cpu_time("user", is_own), self._cpu_time("system", is_own),
            *(_first(end(name), numpy.where(is_alone, wait(name), ABSENT)) for name in _GIVEN),
            *self._counts(),
        ]  # fmt: skip
        return ProcessColumns(state.keys, state.program, state.programs, values)

    def _of_end(self, name: str) -> Numbers:
        return _chosen(self._state.ends, self._state.end, _PLACES[END].get(name))

    def _of_wait(self, name: str) -> Numbers:
        return _chosen(self._state.waits, self._state.wait, _PLACES[WAIT].get(name))

    def _cpu_time(self, name: str, is_own: Numbers) -> Numbers:
        """Return user or system time. Without that of the process alone, children are subtracted."""
        own, below, whole = self._of_end(name), self._of_end(f"children_{name}"), self._of_wait(name)
        is_both = (whole != ABSENT) & (below != ABSENT)
        found = numpy.where(is_both, numpy.maximum(whole - _or_zero(below), _or_zero(own)), own)
        return numpy.where(is_own, self._of_wait(f"own_{name}"), found)

    def _counts(self) -> list[Numbers]:
        of_process: dict[int, list[dict[str, int]]] = {}
        for (number, _, _), counts in _find_counts(self._state).items():
            of_process.setdefault(number, []).append(counts)
        return _counted(self._count, {number: sum_counts(it) for number, it in of_process.items()})


def _find_counts(
    state: MergedRecords, first: int = 0, last: int | None = None
) -> dict[tuple[int, int, int], dict[str, int]]:
    """Return them by process, program and thread: of several records, the last one holds."""
    found = {}
    for number, image, values in zip(*(it[first:last].tolist() for it in (*state.counts_of, state.counts))):
        fields = {name: value for name, value in zip(FIELDS[COUNTS], values) if value != ABSENT}
        found[number, image, fields.get("thread", 0)] = scale_counts(fields)
    return found


def _thread_counts(state: MergedRecords, tid: Numbers) -> list[Numbers]:
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


def _thread_columns(state: MergedRecords) -> ThreadColumns:
    places, (process, start, *_) = _PLACES[THREAD], state.thread_of
    tid = _or_zero(state.threads[:, places["thread"]])
    keys = {
        "pid": state.keys["pid"][process],
        "start": start,
        "tid": numpy.minimum(tid, MOST_PID),
    }
    values = [state.threads[:, places[name]] for name in _OF_THREAD] + _thread_counts(state, tid)
    names, again = state.thread_name, _recorded_already(keys, values)
    if again:
        keys = {name: numpy.delete(key, again) for name, key in keys.items()}
        names, values = numpy.delete(names, again), [numpy.delete(it, again) for it in values]
    return ThreadColumns(keys, names, state.thread_names, values)


def _chosen(rows: Numbers, places: Numbers, column: int | None) -> Numbers:
    """Return a field of the record of each process, ABSENT where there is none."""
    found = numpy.full(len(places), ABSENT, dtype=numpy.int64)
    if column is not None:
        there = places != NONE
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


def _counted(rows: int, known: dict[int, dict[str, int]]) -> list[Numbers]:
    """Return a column for each event."""
    columns = [numpy.full(rows, ABSENT, dtype=numpy.int64) for _ in _COUNTED]
    for row, counts in known.items():
        for column, name in zip(columns, _COUNTED):
            value = counts.get(name, ABSENT)
            column[row] = value if value < MOST else ABSENT
    return columns


def _or_zero(column: Numbers) -> Numbers:
    return numpy.where(column == ABSENT, 0, column)


def _first(one: Numbers, other: Numbers) -> Numbers:
    """Return the one where it is known, else the other."""
    return numpy.where(one != ABSENT, one, other)


def _how_ended(status: Numbers) -> tuple[Numbers, Numbers]:
    """Return exit code and signal from a status of waitpid(2)."""
    low = status & 0x7F
    is_signal = (status != ABSENT) & (low != 0)
    code = numpy.where((status != ABSENT) & ~is_signal, (status >> 8) & 0xFF, ABSENT)
    return code, numpy.where(is_signal, low, ABSENT)


def basename(executable: str) -> str:
    return os.path.basename(executable) or "unknown"
