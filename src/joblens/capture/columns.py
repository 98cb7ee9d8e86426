"""The records of a node as columns of NumPy, for jobs of many processes.

They are merged in C (joblens/core/capture_records.c) if that was built, else by joblens.capture.processes,
which is the reference: a test holds both to the same rows.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from joblens.capture.processes import (
    NO_PROGRAM,
    Merger,
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
    FIELDS,
    LETTERS,
    MOST,
    MOST_PID,
    THREAD,
    WAIT,
    Damage,
    Records,
)
from joblens.capture.sets import process_rows, thread_rows
from joblens.core import counter_file
from joblens.core.model import ABSENT, Rows

if TYPE_CHECKING:
    Numbers = numpy.ndarray[Any, numpy.dtype[numpy.int64]]
    Mask = numpy.ndarray[Any, numpy.dtype[numpy.bool_]]

_PLACES = {kind: {name: place for place, name in enumerate(names)} for kind, names in FIELDS.items()}
_NONE = -1  # row of a record
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


class MergedRecords(NamedTuple):
    """Processes by their number, and the records that belong to them by their rows."""

    keys: dict[str, Numbers]
    program: Numbers
    programs: list[Program]
    images: Numbers
    began: Numbers
    ended: Numbers
    end: Numbers  # row of its end, or _NONE
    is_last: Mask  # whether the program restricts its system calls since then
    wait: Numbers  # row of the wait for it, or _NONE
    peak_before: Numbers  # memory before its program
    ends: Numbers
    waits: Numbers
    threads: Numbers
    thread_of: list[Numbers]  # process, its start as it was known then, program, and counts before
    thread_name: Numbers
    thread_names: list[str]
    counts: Numbers
    counts_of: list[Numbers]  # process and program


class PlainReader:
    """Takes the bytes of a file in pieces; then has its processes and threads."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._merger = Merger()
        self.damage = Damage(0, 0)

    def take(self, piece: bytes) -> None:
        self._pieces.append(piece)

    def finish(self) -> None:
        records, self._pieces = Records(b"".join(self._pieces)), []
        self._merger.take(records)
        self.damage = records.damage

    def merge(self) -> tuple[ProcessColumns, ThreadColumns]:
        """Return all of them. To be called once, after `finish`."""
        ends, threads = self._merger.processes(), self._merger.threads
        programs: dict[Program, int] = {}
        names: dict[str, int] = {}
        program = [
            programs.setdefault(
                Program(it.executable, it.folder, it.tags, it.rank, it.step, it.command), len(programs)
            )
            for it in ends
        ]
        name = [names.setdefault(it.name, len(names)) for it in threads]
        own = ("pid", "start", "parent", "group", "session", "uid")
        keys = {name: _array([getattr(it, name) for it in ends]) for name in own}
        of_threads = {
            "pid": _array([it.pid for it in threads]),
            "start": _array([it.start for it in threads]),
            "tid": _array([it.thread for it in threads]),
        }
        job = ("", "", "")
        return (
            ProcessColumns(keys, _array(program), list(programs), _columns(process_rows(job, ends))),
            ThreadColumns(of_threads, _array(name), list(names), _columns(thread_rows(job, threads))),
        )


class NativeReader:
    """The same in C."""

    def __init__(self) -> None:
        self._records = counter_file.native.new_records(bytes(len(FIELDS[kind]) for kind in LETTERS))
        self.damage = Damage(0, 0)

    def take(self, piece: bytes) -> None:
        self.damage = Damage(*counter_file.native.take_records(self._records, piece, False))

    def finish(self) -> None:
        self.damage = Damage(*counter_file.native.take_records(self._records, b"", True))

    def merge(self) -> tuple[ProcessColumns, ThreadColumns]:
        state = self._state()
        return _Processes(state).columns(), _thread_columns(state)

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


def new_reader() -> PlainReader | NativeReader:
    is_native = hasattr(counter_file.native, "new_records") and sys.byteorder == "little"
    return NativeReader() if is_native else PlainReader()


def _array(numbers: list[int]) -> Numbers:
    return numpy.array(numbers, dtype=numpy.int64)


def _columns(rows: Rows) -> list[Numbers]:
    return list(_array(rows.values).reshape(-1, len(rows.schema.columns)).T)


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
        is_exact = ((state.end != _NONE) & ~state.is_last) | is_own
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
