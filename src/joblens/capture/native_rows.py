"""Rows of the processes and threads in a few records, merged in C: the report of a short job waits for them.

The same as joblens.capture.processes has, without its objects for each record, and without NumPy, which takes
longer to load than this. A test holds both to the same rows.
"""

from __future__ import annotations

import os
import sys

from joblens.capture.processes import NO_PROGRAM, Program, make_program, split_texts
from joblens.capture.records import END, EVENTS, FIELDS, LETTERS, MOST_PID, THREAD, WAIT, Damage
from joblens.capture.sets import KEYS, JobKey
from joblens.collectors.ends.sets import PROCESS_END, THREAD_END, how_ended
from joblens.core import counter_file
from joblens.core.model import ABSENT, Rows

_NONE = -1
_NO_COUNTS = [ABSENT] * len(EVENTS)
_ENDS, _WAITS, _THREADS = (len(FIELDS[kind]) for kind in (END, WAIT, THREAD))
_NO_END, _NO_WAIT = [ABSENT] * _ENDS, [ABSENT] * _WAITS
_USER = FIELDS[WAIT].index("user")
_PLACES = [FIELDS[END].index(name) for name in ("threads", "peak_kib", "user", "system")]
_AT_THREADS, _AT_PEAK, _AT_USER, _AT_SYSTEM = _PLACES
_AT_CHILDREN = FIELDS[END].index("children_user")
_AT_STATUS = FIELDS[END].index("status")
_WAIT_STATUS, _WAIT_PEAK = FIELDS[WAIT].index("status"), FIELDS[WAIT].index("peak_kib")
_OWN = FIELDS[WAIT].index("own_user")
_WAITED = KEYS[2:6]  # faults and switches: the kernel reports these to who waits, too
_OF_END = [FIELDS[END].index(name) for name in KEYS[2:15]]
_OF_WAIT = [FIELDS[WAIT].index(name) for name in _WAITED]
_OF_THREAD = [FIELDS[THREAD].index(name) for name in ("thread_start", "time", "running", "cpu", *KEYS[:15])]
_TID, _STARTED, _TIME, _RUNNING = (
    FIELDS[THREAD].index(name) for name in ("thread", "thread_start", "time", "running")
)


def is_available() -> bool:
    return hasattr(counter_file.native, "new_records") and sys.byteorder == "little"


def read_rows(job: JobKey, data: bytes) -> tuple[Rows, Rows, Damage] | None:
    """Return the rows of processes and threads; None if events were counted, which are merged elsewhere."""
    records = counter_file.native.new_records(bytes(len(FIELDS[kind]) for kind in LETTERS))
    damage = Damage(*counter_file.native.take_records(records, data, True))
    *columns, texts = counter_file.native.merged_records(records)
    merged = _Merged([memoryview(column).cast("q").tolist() for column in columns], texts)
    if merged.counts:
        return None
    return merged.process_rows(job), merged.thread_rows(job), damage


class _Merged:
    """What the C library has merged, as lists."""

    def __init__(self, columns: list[list[int]], texts: bytes) -> None:
        self._pid, self._start, self._parent, self._group, self._session, self._uid, *columns = columns
        program, following, self._images, self._began, self._ended, self._end, *columns = columns
        self._is_last, self._wait, self._peak_before, heads, *columns = columns
        self._thread_of, self._thread_start, _, _, self._thread_name, *columns = columns
        _, _, _, self._waits, self._ends, self._threads, self.counts, text_ends = columns
        self._texts, self._text_ends = texts, text_ends
        self._program = [then or before for before, then in zip(program, following)]
        self._programs = [NO_PROGRAM, *(make_program(self._split(number)) for number in heads)]

    def _split(self, number: int) -> list[str]:
        return split_texts(
            self._texts[self._text_ends[number - 1] if number else 0 : self._text_ends[number]]
        )

    def process_rows(self, job: JobKey) -> Rows:
        (cluster, id, node), labels = job, [_label(program) for program in self._programs]
        keys = []
        identities = zip(self._pid, self._start, self._parent, self._group, self._session, self._uid)
        for place, identity in enumerate(identities):
            step, *texts = labels[self._program[place]]
            keys.append((cluster, id, step, node, *identity, *texts, ""))
        values = [value for place in range(len(keys)) for value in self._process_values(place)]
        return Rows(PROCESS_END, tuple(keys), values)

    def _process_values(self, place: int) -> list[int]:
        end, wait = self._end_of(place), self._wait_of(place)
        own = wait[_OWN : _OWN + 2]
        is_own = ABSENT not in own
        status = end[_AT_STATUS] if wait[_WAIT_STATUS] == ABSENT else wait[_WAIT_STATUS]
        code, signal = (ABSENT, ABSENT) if status == ABSENT else how_ended(status, ABSENT)
        user, system, given = end[_AT_USER], end[_AT_SYSTEM], [end[at] for at in _OF_END]
        if wait is not _NO_WAIT:
            user, system = own if is_own else (_exact(it, end, wait) for it in (0, 1))
        peak = end[_AT_PEAK]
        if is_own and own == wait[_USER : _USER + 2]:
            for number, at in enumerate(_OF_WAIT):
                given[number] = wait[at] if given[number] == ABSENT else given[number]
            if peak == ABSENT and wait[_WAIT_PEAK] > self._peak_before[place] != ABSENT:
                peak = wait[_WAIT_PEAK]
        is_exact = (end is not _NO_END and not self._is_last[place]) or is_own
        return [
            self._began[place], self._ended[place], int(is_exact), code, signal, self._images[place],
            end[_AT_THREADS], peak, user, system, *given, *_NO_COUNTS,
        ]  # fmt: skip

    def _end_of(self, place: int) -> list[int]:
        number = self._end[place]
        return _NO_END if number == _NONE else self._ends[number * _ENDS : (number + 1) * _ENDS]

    def _wait_of(self, place: int) -> list[int]:
        number = self._wait[place]
        return _NO_WAIT if number == _NONE else self._waits[number * _WAITS : (number + 1) * _WAITS]

    def thread_rows(self, job: JobKey) -> Rows:
        cluster, id, node = job
        keys, values = [], list[int]()
        ended: dict[tuple[int, int, int], int] = {}
        for number, place in enumerate(self._thread_of):
            row = self._threads[number * _THREADS : (number + 1) * _THREADS]
            tid = min(max(row[_TID], 0), MOST_PID)
            thread = self._pid[place], self._thread_start[number], tid
            if row[_RUNNING] in (0, ABSENT):
                ended[thread] = row[_TIME]
            elif thread in ended and row[_STARTED] != ABSENT and ended[thread] >= row[_STARTED]:
                continue  # it was about to end when its process did, and has a record already
            name = next(iter(self._split(self._thread_name[number])), "")
            keys.append((cluster, id, node, *thread, name, ""))
            values += [row[at] for at in _OF_THREAD]
            values += _NO_COUNTS
        return Rows(THREAD_END, tuple(keys), values)


def _label(program: Program) -> tuple[str, ...]:
    return (
        program.step, os.path.basename(program.executable) or "unknown", program.command, program.executable,
        program.folder, program.tags, program.rank,
    )  # fmt: skip


def _exact(mode: int, end: list[int], wait: list[int]) -> int:
    """Return the time in user mode (0) or in the kernel (1). What was waited for includes children."""
    own, whole, below = end[_AT_USER + mode], wait[_USER + mode], end[_AT_CHILDREN + mode]
    if ABSENT in (whole, below):
        return own
    return max(whole - below, 0 if own == ABSENT else own)
