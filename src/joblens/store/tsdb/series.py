"""Series that joblens wrote to a server: their names, sample counts and samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from joblens.store.reader import NO_LABELS, SPAN_MARGIN, Span
from joblens.store.tsdb.promql import QUERY_LABEL, PromSeries, Server, duration, equals, one_of, union

# Sets whose names begin with that of another: `joblens_job_gpu_busy` is none of `job`.
LONG_SETS = (
    "collector_error", "gpu_amd", "gpu_driver", "gpu_intel", "gpu_jetson_rail", "gpu_jetson_zone",
    "gpu_nvidia", "gpu_process", "job_end", "job_gpu", "job_info", "kernel_event", "kernel_log",
    "nfs_operation", "process_end", "process_pss", "push_error", "thread_end",
)  # fmt: skip
MOST_RAW = 60_000  # samples that are fetched as they are
_MOST_COUNTED = 40  # columns whose samples are counted to find the one with the most
_COUNTED_SECONDS = 600.0  # before the end: which columns a job has does not change while it runs


class Amount(NamedTuple):
    samples: float
    series: int
    distance: float  # seconds from one sample to the next
    counts: list[PromSeries]  # one per series

    def is_small(self, columns: int) -> bool:
        return self.samples * columns <= MOST_RAW


class JobSeries:
    """Series of jobs, with a cache: a report runs many queries several times."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._known: dict[Span, list[str]] = {}
        self._amounts: dict[tuple[Span, str, tuple[str, ...]], Amount] = {}

    def names(self, span: Span, set_name: str) -> dict[str, str]:
        """Return the series name of each column that the set has around that time, in all clusters."""
        first, last = math.floor(span.start - SPAN_MARGIN), math.ceil(span.end + SPAN_MARGIN)
        key = span._replace(start=first, end=last, cluster="")
        if key not in self._known:
            selector = f'{{__name__=~"joblens_.+",{",".join(_matchers(key))}}}'
            self._known[key] = self.server.metric_names(selector, first, last)
        begin = f"joblens_{set_name}"
        longer = tuple(f"joblens_{it}" for it in LONG_SETS if it.startswith(f"{set_name}_"))
        found = {}
        for name in self._known[key]:
            column = name.removeprefix(begin)
            if not name.startswith(begin) or (longer and name.startswith(longer)):
                continue
            if column[:1] in ("", "_"):
                found[column.removeprefix("_").removesuffix("_total") or "value"] = name
        return found

    def amount(self, span: Span, name: str, only: Mapping[str, str] = NO_LABELS) -> Amount:
        """Count the samples of a series. `only` restricts what the server has to count."""
        more = tuple(equal(only))
        key = span, name, more
        if key not in self._amounts:
            counts = self.instant(f"count_over_time({self.select(span, name, more)}[{window(span)}])", span)
            most = max((it.values[0] for it in counts), default=0.0)
            distance = (span.end - span.start) / most if most else 0.0
            total = sum(it.values[0] for it in counts)
            self._amounts[key] = Amount(total, len(counts), distance, counts)
        return self._amounts[key]

    def fullest(self, span: Span, names: Sequence[str]) -> str:
        """Return the name with the most samples: not every sample has all columns."""
        if len(names) == 1 or len(names) > _MOST_COUNTED:
            return names[0]
        last = span._replace(start=max(span.end - _COUNTED_SECONDS, span.start))
        counts = {name: f"sum(count_over_time({self.select(span, name)}[{window(last)}]))" for name in names}
        found = {it.labels.get(QUERY_LABEL, ""): it.values[0] for it in self.instant(union(counts), span)}
        return max(names, key=lambda name: found.get(name, 0.0))

    def raws(self, span: Span, names: Sequence[str], more: Iterable[str] = ()) -> dict[str, list[PromSeries]]:
        """Fetch all samples by name, in one query: a range selector keeps metric names."""
        found: dict[str, list[PromSeries]] = {name: [] for name in names}
        for one in self.server.instant(self._raw(span, names, more), span.end) if names else ():
            found.setdefault(one.labels.get("__name__", ""), []).append(_within(one, span))
        return found

    def timestamps(self, span: Span, name: str) -> list[PromSeries]:
        """Fetch only the timestamps of samples."""
        return [_within(one, span) for one in self.server.timestamps(self._raw(span, [name]), span.end)]

    def _raw(self, span: Span, names: Sequence[str], more: Iterable[str] = ()) -> str:
        return f"{self.select_all(span, names, more)}[{duration(span.end - span.start + 0.001)}]"

    def instant(self, query: str, span: Span) -> list[PromSeries]:
        return [found for found in self.server.instant(query, span.end) if found.values]

    def select(self, span: Span, name: str, more: Iterable[str] = ()) -> str:
        return f"{name}{{{','.join([*_matchers(span), *more])}}}"

    def select_all(self, span: Span, names: Sequence[str], more: Iterable[str] = ()) -> str:
        return f"{{{','.join([one_of('__name__', names), *_matchers(span), *more])}}}"


def equal(only: Mapping[str, str]) -> list[str]:
    return [equals(name, text) for name, text in only.items()]


def window(span: Span) -> str:
    return duration(span.end - span.start)


def _matchers(span: Span) -> list[str]:
    """Return label matchers. Rows that belong to no job have no `jobid`, or an empty one."""
    found = [one_of("jobid", (span.job, "")) if span.nodes else equals("jobid", span.job)]
    if span.nodes:
        found.append(one_of("node", span.nodes))
    if span.cluster:
        found.append(equals("cluster", span.cluster))
    return found


def _within(one: PromSeries, span: Span) -> PromSeries:
    one = deduplicate(one)
    first, last = span.start - 0.0005, span.end + 0.0005  # a server's times are in milliseconds
    if not one.times or (first <= min(one.times) and max(one.times) <= last):
        return one
    chosen = [n for n, time in enumerate(one.times) if first <= time <= last]
    values = [one.values[n] for n in chosen] if one.values else []
    return PromSeries(one.labels, [one.times[n] for n in chosen], values)


def deduplicate(one: PromSeries) -> PromSeries:
    """Drop duplicate timestamps: VictoriaMetrics keeps both samples if one is written twice."""
    if len(set(one.times)) == len(one.times):
        return one
    if not one.values:
        return PromSeries(one.labels, list(dict.fromkeys(one.times)), [])
    known = dict(zip(one.times, one.values))
    return PromSeries(one.labels, list(known), list(known.values()))
