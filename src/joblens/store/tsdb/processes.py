"""The processes of a job, from the series that a server has of the set `process`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from joblens.record.report import ProcessUse
from joblens.store.reader import MEMORY, PEAKS, WAITING_FOR_DISK, Span
from joblens.store.tsdb.promql import QUERY_LABEL, PromSeries, duration, one_of, union
from joblens.store.tsdb.series import Amount, JobSeries, window

_MOST_STEPS = 120  # in which the first and the last sample of a process are searched
_BY = "by (node, pid, start)"

Identity = tuple[str, int, int]  # node, pid, start


def find_processes(series: JobSeries, span: Span, known: Mapping[str, str]) -> list[ProcessUse]:
    """Return the use of each process. `known` maps columns of the set `process` to series."""
    if "threads" not in known:
        return []
    wanted = {name: known[name] for name in (*PEAKS, *MEMORY, "state") if name in known}
    amount = series.amount(span, known["threads"])
    uses = _Uses()
    if amount.is_small(len(wanted)):
        _add_raw(uses, series, span, wanted)
    elif amount.samples:
        _add_aggregated(uses, series, span, wanted, amount)
    found = [use.summary(*identity) for identity, use in uses.items() if use.samples]
    return sorted(found, key=lambda it: (it.first, it.pid, it.start, it.node))


class _Use:
    """One process. It has several series if its title changes."""

    def __init__(self) -> None:
        self.peaks: dict[str, float] = {}
        self.labels: dict[str, str] = {}
        self.newest = 0.0
        self.first, self.last = math.inf, 0.0
        self.samples = self.waiting = 0

    def add_peak(self, name: str, value: float) -> None:
        self.peaks[name] = max(value, self.peaks.get(name, value))

    def seen(self, first: float, last: float) -> None:
        self.first, self.last = min(self.first, first), max(self.last, last)

    def name(self, labels: dict[str, str], newest: float) -> None:
        if newest >= self.newest:
            self.labels, self.newest = labels, newest

    def add(self, column: str, one: PromSeries) -> None:
        """Add all samples of one of its series."""
        self.name(one.labels, one.times[-1])
        if column == "threads":
            self.seen(one.times[0], one.times[-1])
            self.samples += len(one.times)
        if column == "state":
            self.waiting += one.values.count(WAITING_FOR_DISK)
        if column in PEAKS:
            self.add_peak(column, max(one.values))

    def summary(self, node: str, pid: int, start: int) -> ProcessUse:
        known, whole = self.peaks, {name: round(value) for name, value in self.peaks.items()}
        return ProcessUse(
            pid, start, _number(self.labels, "parent"), self.labels.get("name", ""),
            self.labels.get("command", ""), node, min(self.first, self.last), self.last,
            known.get("user_seconds"), known.get("system_seconds"), whole.get("memory"), whole.get("threads"),
            whole.get("read_bytes"), whole.get("written_bytes"), whole.get("rss_file_bytes"), self.samples,
            self.waiting, known.get("run_delay_seconds"),
        )  # fmt: skip


class _Uses(dict[Identity, _Use]):
    def of(self, labels: Mapping[str, str]) -> _Use:
        return self.setdefault(_identity(labels), _Use())


def _identity(labels: Mapping[str, str]) -> Identity:
    return labels.get("node", ""), _number(labels, "pid"), _number(labels, "start")


def _number(labels: Mapping[str, str], name: str) -> int:
    text = labels.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


# From raw samples


def _add_raw(uses: _Uses, series: JobSeries, span: Span, wanted: dict[str, str]) -> None:
    found = series.raws(span, list(wanted.values()))
    for name, it in wanted.items():
        for one in found[it]:
            if one.times:
                uses.of(one.labels).add(name, one)
    anonymous, shared = (found.get(wanted.get(name, ""), []) for name in MEMORY)
    _add_memory(uses, anonymous, shared)


def _add_memory(uses: _Uses, anonymous: list[PromSeries], shared: list[PromSeries]) -> None:
    """Keep the peak of their sum."""
    known = {
        (_identity(one.labels), time): value
        for one in anonymous
        for time, value in zip(one.times, one.values)
    }
    for one in shared:
        identity = _identity(one.labels)
        for time, value in zip(one.times, one.values):
            if (identity, time) in known:
                uses[identity].add_peak("memory", value + known[identity, time])


# Aggregated by the server


def _add_aggregated(
    uses: _Uses, series: JobSeries, span: Span, wanted: dict[str, str], amount: Amount
) -> None:
    """First and last sample of a process are known to one step."""
    server, columns = series.server, {name: column for column, name in wanted.items()}
    pace = max(amount.distance, (span.end - span.start) / _MOST_STEPS)
    present = f"last_over_time({series.select(span, wanted['threads'])}[{duration(pace)}])"
    counters, levels, waits, times = server.concurrently(
        lambda: _counters(series, span, wanted),
        lambda: _levels(series, span, wanted),
        lambda: _waits(series, span, wanted, amount),
        lambda: server.range(present, span.start + pace, span.end + pace, pace),
    )
    for one in amount.counts:
        uses.of(one.labels).samples += round(one.values[0])
    for one in counters:
        if one.labels.get("__name__") in columns:
            uses.of(one.labels).add_peak(columns[one.labels["__name__"]], one.values[0])
    for one in levels:
        uses.of(one.labels).add_peak(one.labels.get(QUERY_LABEL, ""), one.values[0])
    for one in waits:
        uses.of(one.labels).waiting += round(one.values[0])
    for one in times:
        if one.times:
            use = uses.of(one.labels)
            use.seen(one.times[0] - pace, min(one.times[-1], span.end))
            use.name(one.labels, one.times[-1])


def _counters(series: JobSeries, span: Span, wanted: dict[str, str]) -> list[PromSeries]:
    """The counters of a process never decrease: the last value is the peak, and keeps the metric name."""
    names = [name for name in wanted.values() if name.endswith("_total")]
    last = f"last_over_time({series.select_all(span, names)}[{window(span)}])"
    return series.instant(f"max by (__name__, node, pid, start) ({last})", span) if names else []


def _levels(series: JobSeries, span: Span, wanted: dict[str, str]) -> list[PromSeries]:
    most = {
        name: f"max_over_time({series.select(span, it)}[{window(span)}])"
        for name, it in wanted.items()
        if name != "state" and not it.endswith("_total")
    }
    memory = [most.pop(name) for name in MEMORY if name in most]
    if len(memory) == len(MEMORY):
        most["memory"] = " + ".join(memory)
    return series.instant(union({name: f"max {_BY} ({it})" for name, it in most.items()}), span)


def _waits(series: JobSeries, span: Span, wanted: dict[str, str], amount: Amount) -> list[PromSeries]:
    """Count the samples of each process in state D, waiting for a disk.

    D is the first letter of all states, so a minimum of D selects the processes that were in it. If they have
    few samples, these are all counted, else one per step.
    """
    if "state" not in wanted:
        return []
    selected = series.select(span, wanted["state"])
    some = series.instant(f"min_over_time({selected}[{window(span)}]) <= {WAITING_FOR_DISK}", span)
    if not some:
        return []
    pids = {one.labels.get("pid", "") for one in some}
    count = sum(one.values[0] for one in amount.counts if one.labels.get("pid", "") in pids)
    if Amount(count, 0, 0.0, []).is_small(1):
        raw = series.raws(span, [wanted["state"]], [one_of("pid", sorted(pids))])
        counts = [(one, one.values.count(WAITING_FOR_DISK)) for one in raw[wanted["state"]]]
        return [PromSeries(one.labels, [span.end], [float(count)]) for one, count in counts if count]
    pace = max(amount.distance, (span.end - span.start) / _MOST_STEPS)
    sampled = f"({selected} == {WAITING_FOR_DISK})[{window(span)}:{duration(pace)}]"
    counted = series.instant(f"sum {_BY} (count_over_time({sampled}))", span)
    part = pace / max(amount.distance, 1e-6)
    return [PromSeries(one.labels, one.times, [one.values[0] * part]) for one in counted]
