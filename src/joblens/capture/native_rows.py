"""Rows of the processes and threads in a few records, merged in C: the report of a short job waits for them.

The same as joblens.capture.processes has, without its objects for each record, and without NumPy, which takes
longer to load than this. A test holds both to the same rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from joblens.capture.processes import NO_PROGRAM, Program, make_program, make_spawned, split_texts
from joblens.capture.records import END, EVENTS, FIELDS, LETTERS, MOST, MOST_PID, THREAD, WAIT, Damage
from joblens.capture.sets import KEYS, JobKey
from joblens.collectors.ends.sets import PROCESS_END, THREAD_END, how_ended
from joblens.core import counter_file
from joblens.core.model import ABSENT, Rows

_NONE = -1
_NO_COUNTS = [ABSENT] * len(EVENTS)
_ENDS, _WAITS, _THREADS = (len(FIELDS[kind]) for kind in (END, WAIT, THREAD))
_NO_END, _NO_WAIT = [ABSENT] * _ENDS, [ABSENT] * _WAITS
_USER, _SYSTEM = (FIELDS[WAIT].index(name) for name in ("user", "system"))
_PLACES = [FIELDS[END].index(name) for name in ("threads", "peak_kib", "user", "system")]
_AT_THREADS, _AT_PEAK, _AT_USER, _AT_SYSTEM = _PLACES
_AT_CHILDREN = FIELDS[END].index("children_user")
_AT_STATUS = FIELDS[END].index("status")
_WAIT_STATUS, _WAIT_PEAK = FIELDS[WAIT].index("status"), FIELDS[WAIT].index("peak_kib")
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
        self._pid, self._start, self._parent, self._born, *columns = columns
        self._group, self._session, self._uid, self._program, self._next, *columns = columns
        self._images, self._began, self._ended, self._end, self._is_last, self._wait, *columns = columns
        bases, heads, self._thread_of, self._thread_start, _, _, self._thread_name, *columns = columns
        _, _, self._writers, self._waits, self._ends, self._threads, self.counts, text_ends = columns
        self._texts, self._text_ends = texts, text_ends
        self._programs = self._make_programs(bases, heads)

    def _split(self, number: int) -> list[str]:
        return split_texts(
            self._texts[self._text_ends[number - 1] if number else 0 : self._text_ends[number]]
        )

    def _make_programs(self, bases: list[int], heads: list[int]) -> list[Program]:
        found = [NO_PROGRAM]
        for base, number in zip(bases, heads):
            words = self._split(number)
            found.append(make_program(words) if base == _NONE else make_spawned(found[base], words))
        return found

    def _labels(self) -> Callable[[int], tuple[str, ...]]:
        """Return a function from a process to the texts of its program, which many processes share."""
        known: dict[tuple[int, int], tuple[str, ...]] = {}

        def find(place: int) -> tuple[str, ...]:
            key = self._program[place], self._next[place]
            if key not in known:
                program = self._programs[key[0]]
                if key[1] != _NONE:
                    text = self._split(key[1])[0]
                    program = program._replace(executable=text, command=text)
                known[key] = (
                    program.step, os.path.basename(program.executable) or "unknown", program.command,
                    program.executable, program.folder, program.tags, program.rank,
                )  # fmt: skip
            return known[key]

        return find

    def process_rows(self, job: JobKey) -> Rows:
        (cluster, id, node), labels = job, self._labels()
        keys = []
        identities = zip(self._pid, self._start, self._parent, self._group, self._session, self._uid)
        for place, identity in enumerate(identities):
            step, *texts = labels(place)
            keys.append((cluster, id, step, node, *identity, *texts, ""))
        values = [value for place in range(len(keys)) for value in self._process_values(place)]
        return Rows(PROCESS_END, tuple(keys), values)

    def _process_values(self, place: int) -> list[int]:
        end, wait = self._end_of(place), self._wait_of(place)
        status = end[_AT_STATUS] if wait[_WAIT_STATUS] == ABSENT else wait[_WAIT_STATUS]
        code, signal = (ABSENT, ABSENT) if status == ABSENT else how_ended(status, ABSENT)
        user, system, given = end[_AT_USER], end[_AT_SYSTEM], [end[at] for at in _OF_END]
        if wait is not _NO_WAIT:
            user, system = (self._exact(place, it, end, wait) for it in (0, 1))
            for number, at in enumerate(_OF_WAIT):
                given[number] = wait[at] if given[number] == ABSENT else given[number]
        is_exact = (end is not _NO_END and not self._is_last[place]) or wait[_USER] != ABSENT
        peak = wait[_WAIT_PEAK] if end[_AT_PEAK] == ABSENT else end[_AT_PEAK]
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

    def _exact(self, place: int, mode: int, end: list[int], wait: list[int]) -> int:
        """Return the time in user mode (0) or in the kernel (1). What was waited for includes children."""
        own, whole, below = end[_AT_USER + mode], wait[_USER + mode], end[_AT_CHILDREN + mode]
        if whole == ABSENT:
            return own
        below = self._waited()[place][mode] if below == ABSENT else below
        found = max(whole - below, 0 if own == ABSENT else own)
        return found if found < MOST else ABSENT

    def _waited(self) -> list[list[int]]:
        """Return what each process has waited for. Only some without the library have no record of that."""
        if not hasattr(self, "_sums"):
            self._sums = [[0, 0] for _ in self._pid]
            for number, writer in enumerate(self._writers):
                if writer != _NONE:
                    _add(self._sums[writer], self._waits, number * _WAITS + _USER)
            for place, end in self._find_unwaited():
                _add(self._sums[place], self._ends, end * _ENDS + _AT_USER)
                _add(self._sums[place], self._ends, end * _ENDS + _AT_CHILDREN)
        return self._sums

    def _find_unwaited(self) -> Iterator[tuple[int, int]]:
        """Yield the ends that no record waits for, with the parent, if that is without the library."""
        outside = {
            self._pid[place]: place
            for place, wait in enumerate(self._wait)
            if wait != _NONE and not self._born[place] and self._waits[wait * _WAITS + _USER] != ABSENT
        }
        for place, parent in enumerate(self._parent):
            if parent in outside and self._wait[place] == _NONE and self._end[place] != _NONE:
                yield outside[parent], self._end[place]

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


def _add(sums: list[int], values: list[int], at: int) -> None:
    for mode in (0, 1):
        sums[mode] += max(values[at + mode], 0)  # ABSENT is negative
