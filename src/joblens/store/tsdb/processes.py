"""The processes of a job, from the series that a server has of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from joblens.store.reader import WAITING_FOR_DISK, ProcessUse, Span
from joblens.store.tsdb.promql_answer import Found
from joblens.store.tsdb.promql_text import WHICH, lasting, one_of, together
from joblens.store.tsdb.series import Amount, JobSeries, whole

_MOST = (
    "user_seconds", "system_seconds", "threads", "read_bytes", "written_bytes", "rss_file_bytes",
    "run_delay_seconds",
)  # fmt: skip
_MEMORY = ("rss_anon_bytes", "rss_shmem_bytes")
_FINEST = 120  # stretches in which it is looked for when a process was there
_BY = "by (node, pid, start)"

Identity = tuple[str, int, int]  # node, pid, start


def find_processes(series: JobSeries, span: Span, known: Mapping[str, str]) -> list[ProcessUse]:
    """`known`: by column, the series of the set `process`."""
    if "threads" not in known:
        return []
    wanted = {name: known[name] for name in (*_MOST, *_MEMORY, "state") if name in known}
    amount = series.amount(span, known["threads"])
    uses = _Uses()
    if amount.is_little(len(wanted)):
        _take_all(uses, series, span, wanted)
    elif amount.samples:
        _take_most(uses, series, span, wanted, amount)
    plain = [use.plain(*identity) for identity, use in uses.items() if use.looks]
    return sorted(plain, key=lambda it: (it.first, it.pid, it.start, it.node))


class _Use:
    """What is known of one process. Its title can change, and then it has several series."""

    def __init__(self) -> None:
        self.most: dict[str, float] = {}
        self.labels: dict[str, str] = {}
        self.newest = 0.0
        self.first, self.last = math.inf, 0.0
        self.looks = self.waiting = 0

    def keep(self, name: str, value: float) -> None:
        self.most[name] = max(value, self.most.get(name, value))

    def seen(self, first: float, last: float) -> None:
        self.first, self.last = min(self.first, first), max(self.last, last)

    def name(self, labels: dict[str, str], newest: float) -> None:
        if newest >= self.newest:
            self.labels, self.newest = labels, newest

    def take(self, column: str, one: Found) -> None:
        """All samples of one of its series."""
        self.name(one.labels, one.times[-1])
        if column == "threads":
            self.seen(one.times[0], one.times[-1])
            self.looks += len(one.times)
        if column == "state":
            self.waiting += one.values.count(WAITING_FOR_DISK)
        if column in _MOST:
            self.keep(column, max(one.values))

    def plain(self, node: str, pid: int, start: int) -> ProcessUse:
        known, whole = self.most, {name: round(value) for name, value in self.most.items()}
        return ProcessUse(
            pid, start, _number(self.labels, "parent"), self.labels.get("name", ""),
            self.labels.get("command", ""), node, min(self.first, self.last), self.last,
            known.get("user_seconds"), known.get("system_seconds"), whole.get("memory"), whole.get("threads"),
            whole.get("read_bytes"), whole.get("written_bytes"), whole.get("rss_file_bytes"), self.looks,
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


# From all samples


def _take_all(uses: _Uses, series: JobSeries, span: Span, wanted: dict[str, str]) -> None:
    found = series.raws(span, list(wanted.values()))
    for name, it in wanted.items():
        for one in found[it]:
            if one.times:
                uses.of(one.labels).take(name, one)
    anonymous, shared = (found.get(wanted.get(name, ""), []) for name in _MEMORY)
    _take_memory(uses, anonymous, shared)


def _take_memory(uses: _Uses, anonymous: list[Found], shared: list[Found]) -> None:
    """The most that both were together."""
    known = {
        (_identity(one.labels), time): value
        for one in anonymous
        for time, value in zip(one.times, one.values)
    }
    for one in shared:
        identity = _identity(one.labels)
        for time, value in zip(one.times, one.values):
            if (identity, time) in known:
                uses[identity].keep("memory", value + known[identity, time])


# As the server puts them together


def _take_most(uses: _Uses, series: JobSeries, span: Span, wanted: dict[str, str], amount: Amount) -> None:
    """When a process was there is looked for in steps."""
    server, columns = series.server, {name: column for column, name in wanted.items()}
    pace = max(amount.distance, (span.end - span.start) / _FINEST)
    there = f"last_over_time({series.select(span, wanted['threads'])}[{lasting(pace)}])"
    counters, levels, waits, times = server.at_once(
        lambda: _counters(series, span, wanted),
        lambda: _levels(series, span, wanted),
        lambda: _waits(series, span, wanted, amount),
        lambda: server.range(there, span.start + pace, span.end + pace, pace),
    )
    for one in amount.counts:
        uses.of(one.labels).looks += round(one.values[0])
    for one in counters:
        if one.labels.get("__name__") in columns:
            uses.of(one.labels).keep(columns[one.labels["__name__"]], one.values[0])
    for one in levels:
        uses.of(one.labels).keep(one.labels.get(WHICH, ""), one.values[0])
    for one in waits:
        uses.of(one.labels).waiting += round(one.values[0])
    for one in times:
        if one.times:
            use = uses.of(one.labels)
            use.seen(one.times[0] - pace, min(one.times[-1], span.end))
            use.name(one.labels, one.times[-1])


def _counters(series: JobSeries, span: Span, wanted: dict[str, str]) -> list[Found]:
    """Of one process they never go back: the last is the most, and of that a server keeps the names."""
    names = [name for name in wanted.values() if name.endswith("_total")]
    last = f"last_over_time({series.select_all(span, names)}[{whole(span)}])"
    return series.instant(f"max by (__name__, node, pid, start) ({last})", span) if names else []


def _levels(series: JobSeries, span: Span, wanted: dict[str, str]) -> list[Found]:
    most = {
        name: f"max_over_time({series.select(span, it)}[{whole(span)}])"
        for name, it in wanted.items()
        if name != "state" and not it.endswith("_total")
    }
    memory = [most.pop(name) for name in _MEMORY if name in most]
    if len(memory) == len(_MEMORY):
        most["memory"] = " + ".join(memory)
    return series.instant(together({name: f"max {_BY} ({it})" for name, it in most.items()}), span)


def _waits(series: JobSeries, span: Span, wanted: dict[str, str], amount: Amount) -> list[Found]:
    """How often each was found waiting for a disk.

    Of all letters for a state D is the first of the alphabet, so the least tells who ever was in it. Where
    these are few, all of their looks are counted, else some.
    """
    if "state" not in wanted:
        return []
    selected = series.select(span, wanted["state"])
    some = series.instant(f"min_over_time({selected}[{whole(span)}]) <= {WAITING_FOR_DISK}", span)
    if not some:
        return []
    pids = {one.labels.get("pid", "") for one in some}
    few = sum(one.values[0] for one in amount.counts if one.labels.get("pid", "") in pids)
    if Amount(few, 0, 0.0, []).is_little(1):
        raw = series.raws(span, [wanted["state"]], [one_of("pid", sorted(pids))])
        counts = [(one, one.values.count(WAITING_FOR_DISK)) for one in raw[wanted["state"]]]
        return [Found(one.labels, [span.end], [float(count)]) for one, count in counts if count]
    pace = max(amount.distance, (span.end - span.start) / _FINEST)
    looks = f"({selected} == {WAITING_FOR_DISK})[{whole(span)}:{lasting(pace)}]"
    sampled = series.instant(f"sum {_BY} (count_over_time({looks}))", span)
    part = pace / max(amount.distance, 1e-6)
    return [Found(one.labels, one.times, [one.values[0] * part]) for one in sampled]
