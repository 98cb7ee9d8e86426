"""Totals over the processes of a job, one chunk after the other, and the few that a record lists."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.importers.epmt.lake_rows import command_lines, sum_by_process
from joblens.importers.epmt.process_data import Chunk, code_texts
from joblens.record.job import IoTotals
from joblens.record.job import Totals as RecordTotals
from joblens.record.report import GroupSums, ProcessUse
from joblens.store.lake.columns import LATEST_NS

if TYPE_CHECKING:
    import numpy

    from joblens.importers.epmt.process_data import Numbers

NOT_SUMMED = ("num_threads", "starttime")  # as in EPMT's own sums
_CPU = ("usertime", "systemtime")
_MOST_LISTED = 50
_MOST_EXAMPLES = 5
_MOST_HOSTS = 10_000
_MOST_PROGRAMS = 10_000
_LONGEST_COMMAND = 256
_WORD = 1 << 63
_MOST, _MOST_LETTERS = 500, 1 << 16  # of a job; more are not part of its record
_MOST_BYTES = 1 << 60


class _Listed(NamedTuple):
    cpu: int
    number: int
    process: ProcessUse


class Totals:
    def __init__(self) -> None:
        self.processes = self.threads = 0
        self.sums: dict[str, int] = {}  # over all threads, by the names of EPMT
        self.hosts: list[str] = []
        self.interval = 0, _WORD - 1  # of the job, in microseconds
        self.broken = self.stopped_counters = self.incomplete = self.outside = 0
        self.examples: list[str] = []
        self._rss = 0
        self._largest: list[_Listed] = []
        self._programs: dict[str, tuple[int, int]] = {}  # number of processes, CPU time
        self.by_tags, self.by_name = Groups("tags"), Groups("exename")

    def report(self, where: str, what: str) -> None:
        """Count what could not be read."""
        self.broken += 1
        if len(self.examples) < _MOST_EXAMPLES:
            self.examples.append(f"{where:.200}: {what}")

    def add(self, chunk: Chunk) -> None:
        by_process = sum_by_process(chunk)
        for name, values in chunk.metrics.items():
            if name not in NOT_SUMMED:
                self.sums[name] = self.sums.get(name, 0) + _sum(values)
        for host in dict.fromkeys(chunk.texts.get("hostname", ())):
            if host and host not in self.hosts and len(self.hosts) < _MOST_HOSTS:
                self.hosts.append(host)
        if "rssmax" in by_process:
            self._rss = max(self._rss, int(by_process["rssmax"].max()))
        if "rdtsc_duration" in by_process:
            self.stopped_counters += int((by_process["rdtsc_duration"] <= 0).sum())
        first, last = self.interval
        self.outside += int(((chunk.numbers["start"] < first) | (chunk.numbers["end"] > last)).sum())
        self.incomplete += int((chunk.said != chunk.threads).sum())
        self._list(chunk, by_process)
        for groups in (self.by_tags, self.by_name):
            groups.add(chunk, by_process)
        self.processes += len(chunk.first)
        self.threads += int(chunk.threads.sum())

    @property
    def cpu_seconds(self) -> float | None:
        known = [self.sums[name] for name in _CPU if name in self.sums]
        return max(sum(known) / 1e6, 0.0) if known else None

    @property
    def run_delay_seconds(self) -> float | None:
        waited = self.sums.get("time_waiting")
        return None if waited is None else max(waited / 1e9, 0.0)

    def shown_sums(self) -> dict[str, int | float]:
        return {name: it if -_WORD < it < _WORD else float(it) for name, it in self.sums.items()}

    def as_record(self) -> RecordTotals:
        """As the totals of the kernel at the end of a job."""

        def known(name: str) -> int | None:
            found = self.sums.get(name)
            return None if found is None or not 0 <= found < _WORD else found

        user, system = known("usertime"), known("systemtime")
        return RecordTotals(
            user_seconds=None if user is None else user / 1e6,
            system_seconds=None if system is None else system / 1e6,
            largest_rss_bytes=self._rss * 1024 if 0 < self._rss < 1 << 50 else None,
            minor_faults=known("minflt"),
            major_faults=known("majflt"),
            voluntary_switches=known("vol_ctxsw"),
            involuntary_switches=known("invol_ctxsw"),
            io=IoTotals(known("rchar"), known("wchar"), known("read_bytes"), known("write_bytes")),
        )

    def largest(self) -> list[ProcessUse]:
        """Return the processes that used most CPU time, in order of their start."""
        listed = [it.process for it in sorted(self._largest, key=lambda it: it.process.first)]
        shown: dict[str, tuple[int, float]] = {}
        for process in listed:
            count, cpu = shown.get(process.name, (0, 0.0))
            shown[process.name] = count + 1, cpu + (process.cpu_seconds or 0.0)
        found: list[ProcessUse] = []
        for process in listed:
            count, cpu = shown.pop(process.name, (0, 0.0))
            all_of_it = self._programs.get(process.name, (0, 0)) if count else (0, 0)
            more = max(all_of_it[0] - count, 0)
            rest = max(all_of_it[1] / 1e6 - cpu, 0.0) if more else 0.0
            is_known = not more or process.cpu_seconds is not None  # of all, or of none of them
            found.append(process.replace(alike=more, alike_cpu_seconds=rest if is_known else None))
        return found

    def _list(self, chunk: Chunk, by_process: dict[str, Numbers]) -> None:
        import numpy

        names, places = code_texts(chunk.texts["exename"])
        zero: Numbers = numpy.zeros(len(chunk.first), dtype=numpy.int64)
        cpu = by_process.get("usertime", zero) + by_process.get("systemtime", zero)
        sums = numpy.zeros(len(names), dtype=numpy.int64)
        numpy.add.at(sums, places, cpu)
        for name, count, used in zip(names, numpy.bincount(places).tolist(), sums.tolist()):
            before = self._programs.get(name)
            if before is not None or len(self._programs) < _MOST_PROGRAMS:
                number, total = before or (0, 0)
                self._programs[name] = number + count, total + used
        most = numpy.argsort(-cpu, kind="stable")[:_MOST_LISTED]
        commands = command_lines(_only(chunk, most.tolist()))
        for at, command in zip(most.tolist(), commands):
            use = _use(chunk, by_process, at, int(cpu[at]), command)
            self._largest.append(_Listed(int(cpu[at]), self.processes + at, use))
        self._largest = heapq.nlargest(_MOST_LISTED, self._largest, key=lambda it: (it.cpu, -it.number))


def _moment(microseconds: int) -> float:
    return min(max(microseconds, 0) / 1e6, LATEST_NS / 1e9)


def _only(chunk: Chunk, places: list[int]) -> Chunk:
    import numpy

    texts = {name: [cells[at] for at in places] for name, cells in chunk.texts.items()}
    return chunk._replace(texts=texts, suspects=numpy.arange(len(places)))


def _sum(values: Numbers) -> int:
    """Add 64-bit numbers without wrapping around."""
    import numpy

    if not len(values):
        return 0
    if max(-int(values.min()), int(values.max())) < _WORD // max(len(values), 1):
        return int(values.sum(dtype=numpy.int64))
    return sum(values.tolist())


def _use(chunk: Chunk, by_process: dict[str, Numbers], at: int, cpu: int, command: str) -> ProcessUse:
    def amount(name: str, divisor: float = 1) -> float | None:
        values = by_process.get(name)
        if values is None or values[at] < 0:
            return None
        return int(values[at]) if divisor == 1 else int(values[at]) / divisor

    def number(name: str) -> int:
        values = chunk.numbers.get(name)
        return 0 if values is None else int(values[at])

    hosts, rss = chunk.texts.get("hostname"), amount("rssmax")
    cut = command if len(command) <= _LONGEST_COMMAND else command[: _LONGEST_COMMAND - 1] + "…"
    return ProcessUse(
        pid=number("pid"),
        start=0,
        parent=number("ppid"),
        name=chunk.texts["exename"][at],
        command=cut,
        node=hosts[at] if hosts else "",
        first=_moment(number("start")),
        last=_moment(number("end")),
        user_seconds=amount("usertime", 1e6),
        system_seconds=amount("systemtime", 1e6),
        memory_peak_bytes=None if rss is None or rss >= 1 << 50 else rss * 1024,
        threads=int(chunk.threads[at]),
        read_bytes=amount("read_bytes"),
        written_bytes=amount("write_bytes"),
        run_delay_seconds=amount("time_waiting", 1e9),
        cpu_seconds=max(cpu, 0) / 1e6 if any(name in by_process for name in _CPU) else None,
        exact=True,
        left_behind=False,
    )


class Groups:
    """Processes that are alike, of all chunks: operations by their tags, programs by their name.

    They are part of the record, so that jobs are compared without reading their processes.
    """

    def __init__(self, column: str) -> None:
        self._column = column
        self._found: dict[str, GroupSums] = {}
        self._is_known = True

    def add(self, chunk: Chunk, by_process: dict[str, Numbers]) -> None:
        cells = chunk.texts.get(self._column)
        if not self._is_known or cells is None:
            self._is_known = False
            return
        texts, places = code_texts(cells)
        for made in _add_up(texts, places, chunk, by_process):
            before = self._found.get(made.key)
            self._found[made.key] = made if before is None else _together(before, made)
        is_small = len(self._found) <= _MOST and sum(map(len, self._found)) <= _MOST_LETTERS
        self._is_known = is_small and all(map(_is_sound, self._found.values()))

    def all(self) -> list[GroupSums] | None:
        """Return them in order of their first start; none if there are too many."""
        return (
            sorted(self._found.values(), key=lambda it: (it.began_seconds, it.key))
            if self._is_known
            else None
        )


def _add_up(
    texts: list[str], places: Numbers, chunk: Chunk, by_process: dict[str, Numbers]
) -> list[GroupSums]:
    import numpy

    def sums(*names: str) -> numpy.ndarray[Any, Any]:
        values = numpy.zeros(len(places))
        for name in names:
            values += by_process.get(name, 0)
        return numpy.bincount(places, values, len(texts))

    begin, end = chunk.numbers["start"], chunk.numbers["end"]
    first, last = numpy.full(len(texts), begin.max()), numpy.full(len(texts), end.min())
    numpy.minimum.at(first, places, begin)
    numpy.maximum.at(last, places, end)
    memory = numpy.zeros(len(texts), dtype=numpy.int64)
    numpy.maximum.at(memory, places, numpy.minimum(by_process.get("rssmax", 0), _MOST_BYTES >> 10))
    # As in the lake: of a process without one of both, its CPU time is unknown.
    both = ("usertime", "systemtime") if {"usertime", "systemtime"} <= by_process.keys() else ()
    columns = (
        numpy.bincount(places, minlength=len(texts)), first / 1e6, last / 1e6, sums(*both) / 1e6,
        numpy.bincount(places, end - begin, len(texts)) / 1e6,
        sums("time_waiting") / 1e9, memory * 1024,
    )  # fmt: skip
    return [GroupSums(text, *row) for text, row in zip(texts, zip(*(it.tolist() for it in columns)))]


def _together(one: GroupSums, other: GroupSums) -> GroupSums:
    return GroupSums(
        one.key,
        one.processes + other.processes,
        min(one.began_seconds, other.began_seconds),
        max(one.ended_seconds, other.ended_seconds),
        one.cpu_seconds + other.cpu_seconds,
        one.summed_wall_seconds + other.summed_wall_seconds,
        one.run_delay_seconds + other.run_delay_seconds,
        max(one.memory_peak_bytes, other.memory_peak_bytes),
    )


def _is_sound(it: GroupSums) -> bool:
    """Whether a record can have it."""
    in_order = 0 <= it.began_seconds <= it.ended_seconds < LATEST_NS / 1e9
    return in_order and 0 <= it.memory_peak_bytes < _MOST_BYTES
