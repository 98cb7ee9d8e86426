"""The series that joblens has written to a server: which there are, how many samples they have, and these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from joblens.store.reader import LOOKS_AROUND, NO_LABELS, Span
from joblens.store.tsdb.promql import Server
from joblens.store.tsdb.promql_answer import Found
from joblens.store.tsdb.promql_text import WHICH, equals, lasting, one_of, together

# Sets whose names begin with that of another: `joblens_job_gpu_busy` is none of `job`.
LONG_SETS = (
    "collector_error", "gpu_amd", "gpu_driver", "gpu_intel", "gpu_jetson_rail", "gpu_jetson_zone",
    "gpu_nvidia", "gpu_process", "job_gpu", "job_info", "kernel_event", "kernel_log", "nfs_operation",
    "process_pss", "push_error",
)  # fmt: skip
MOST_RAW = 60_000  # samples that are fetched as they are
_MOST_COUNTED = 40  # columns among which the one with the most samples is looked for
_COUNTED_SECONDS = 600.0  # before the end: what is known of a job does not change while it runs


class Amount(NamedTuple):
    samples: float
    series: int
    distance: float  # seconds from one sample to the next
    counts: list[Found]  # of each series

    def is_little(self, columns: int) -> bool:
        return self.samples * columns <= MOST_RAW


class JobSeries:
    """What was asked is kept: a report asks for much of it several times."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._known: dict[Span, list[str]] = {}
        self._amounts: dict[tuple[Span, str, tuple[str, ...]], Amount] = {}

    def names(self, span: Span, set_name: str) -> dict[str, str]:
        """Of the columns that the set has around that time, the series; of all clusters, to ask once."""
        first, last = math.floor(span.start - LOOKS_AROUND), math.ceil(span.end + LOOKS_AROUND)
        key = span._replace(start=first, end=last, cluster="")
        if key not in self._known:
            matching = f'{{__name__=~"joblens_.+",{",".join(_matchers(key))}}}'
            self._known[key] = self.server.names(matching, first, last)
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
        """What it does not choose a server need not count: of many cores, only their sum."""
        more = tuple(equal(only))
        key = span, name, more
        if key not in self._amounts:
            counts = self.instant(f"count_over_time({self.select(span, name, more)}[{whole(span)}])", span)
            most = max((it.values[0] for it in counts), default=0.0)
            distance = (span.end - span.start) / most if most else 0.0
            total = sum(it.values[0] for it in counts)
            self._amounts[key] = Amount(total, len(counts), distance, counts)
        return self._amounts[key]

    def fullest(self, span: Span, names: Sequence[str]) -> str:
        """Not every column is known at every look: the one with the most samples is."""
        if len(names) == 1 or len(names) > _MOST_COUNTED:
            return names[0]
        last = span._replace(start=max(span.end - _COUNTED_SECONDS, span.start))
        counts = {name: f"sum(count_over_time({self.select(span, name)}[{whole(last)}]))" for name in names}
        found = {it.labels.get(WHICH, ""): it.values[0] for it in self.instant(together(counts), span)}
        return max(names, key=lambda name: found.get(name, 0.0))

    def raws(self, span: Span, names: Sequence[str], more: Iterable[str] = ()) -> dict[str, list[Found]]:
        """By name, all samples: here a server keeps the names, and so one question is enough."""
        found: dict[str, list[Found]] = {name: [] for name in names}
        for one in self.server.instant(self._raw(span, names, more), span.end) if names else ():
            found.setdefault(one.labels.get("__name__", ""), []).append(_within(one, span))
        return found

    def moments(self, span: Span, name: str) -> list[Found]:
        """Only when there were samples."""
        return [_within(one, span) for one in self.server.moments(self._raw(span, [name]), span.end)]

    def _raw(self, span: Span, names: Sequence[str], more: Iterable[str] = ()) -> str:
        return f"{self.select_all(span, names, more)}[{lasting(span.end - span.start + 0.001)}]"

    def instant(self, query: str, span: Span) -> list[Found]:
        return [found for found in self.server.instant(query, span.end) if found.values]

    def select(self, span: Span, name: str, more: Iterable[str] = ()) -> str:
        return f"{name}{{{','.join([*_matchers(span), *more])}}}"

    def select_all(self, span: Span, names: Sequence[str], more: Iterable[str] = ()) -> str:
        return f"{{{','.join([one_of('__name__', names), *_matchers(span), *more])}}}"


def equal(only: Mapping[str, str]) -> list[str]:
    return [equals(name, text) for name, text in only.items()]


def whole(span: Span) -> str:
    return lasting(span.end - span.start)


def _matchers(span: Span) -> list[str]:
    """Rows of no job have no `jobid`, or an empty one."""
    found = [one_of("jobid", (span.job, "")) if span.nodes else equals("jobid", span.job)]
    if span.nodes:
        found.append(one_of("node", span.nodes))
    if span.cluster:
        found.append(equals("cluster", span.cluster))
    return found


def _within(one: Found, span: Span) -> Found:
    one = once(one)
    first, last = span.start - 0.0005, span.end + 0.0005  # a server's times are in milliseconds
    if not one.times or (first <= min(one.times) and max(one.times) <= last):
        return one
    chosen = [n for n, time in enumerate(one.times) if first <= time <= last]
    values = [one.values[n] for n in chosen] if one.values else []
    return Found(one.labels, [one.times[n] for n in chosen], values)


def once(one: Found) -> Found:
    """Of each moment one sample: VictoriaMetrics keeps both where the same was written twice."""
    if len(set(one.times)) == len(one.times):
        return one
    if not one.values:
        return Found(one.labels, list(dict.fromkeys(one.times)), [])
    known = dict(zip(one.times, one.values))
    return Found(one.labels, list(known), list(known.values()))
