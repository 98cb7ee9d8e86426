"""The interface of joblens.store.reader over a server that speaks PromQL.

A small number of samples is fetched raw, with the same results as from the lake. A large number is
aggregated by the server, one value per point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from operator import sub
from time import time as wall_clock

from joblens.record.report import ProcessUse
from joblens.store.reader import KEYS, NO_LABELS, SPAN_MARGIN, Break, End, Reader, Series, Span, find_breaks
from joblens.store.tsdb.processes import find_processes
from joblens.store.tsdb.promql import QUERY_LABEL, PromSeries, Query, Server, duration, one_of, union
from joblens.store.tsdb.resample import Grid, as_series, make_grid, resample
from joblens.store.tsdb.series import JobSeries, equal, window

MOST_TIMES = 400_000
_Parts = tuple[dict[str, list[float | None]], ...]  # last, mean and peak


class TsdbReader(Reader):
    def __init__(self, server: Server, known: JobSeries | None = None) -> None:
        self.server = server
        self._series = known or JobSeries(server)
        self._times: dict[tuple[Span, str], dict[tuple[str, str], list[float]]] = {}

    def split(
        self,
        span: Span,
        set_name: str,
        labels: Sequence[str],
        columns: Sequence[str],
        points: int,
        only: Mapping[str, str] = NO_LABELS,
    ) -> dict[tuple[str, ...], Series]:
        span = _until_now(span)
        known = self._series.names(span, set_name)
        chosen = {name: known[name] for name in dict.fromkeys(columns) if name in known}
        if not chosen or span.end < span.start:
            return {}
        width = max((span.end - span.start) / max(points, 1), 1e-6)
        amount = self._series.amount(span, next(iter(chosen.values())), only)
        if amount.is_small(len(chosen)):
            return self._resample(span, labels, chosen, width, only)
        grid = make_grid(span.start, span.end, max(width, 2 * amount.distance))
        groups = self._aggregate(span, labels, chosen, grid, only)
        cached = self._cached_times(span, set_name) if tuple(labels) == ("node",) else {}
        return {
            key: as_series(parts, grid.ends(cached.get(key, []), span.end), chosen)
            for key, parts in sorted(groups.items())
        }

    def measured(self, span: Span, set_name: str) -> tuple[str, ...]:
        return tuple(name for name in self._series.names(span, set_name) if name not in KEYS)

    def processes(self, span: Span) -> list[ProcessUse]:
        known = self._series.names(_until_now(span), "process")
        around = span._replace(start=span.start - SPAN_MARGIN, end=span.end + SPAN_MARGIN)
        return find_processes(self._series, _until_now(around), known)

    def ends(self, span: Span, kind: type[End], most: int | None = None) -> list[End]:
        """Records of ends are no series: a server has none."""
        return []

    def count_ends(self, span: Span) -> tuple[int, int]:
        return 0, 0

    def sample_times(self, span: Span) -> list[float]:
        return sorted({time for times in self.times_by_node(span, "job").values() for time in times})

    def times_by_node(self, span: Span, set_name: str) -> dict[tuple[str, str], list[float]]:
        span = _until_now(span)
        key = span, set_name
        if key not in self._times:
            known = self._series.names(span, set_name)
            self._times[key] = self._find_times(span, list(known.values())) if known else {}
        return self._times[key]

    def _find_times(self, span: Span, names: list[str]) -> dict[tuple[str, str], list[float]]:
        name = self._series.fullest(span, names)
        amount = self._series.amount(span, name)
        if amount.samples <= MOST_TIMES:
            raw = self._series.timestamps(span, name)
        else:
            step = max((span.end - span.start) * amount.series / MOST_TIMES, 2 * amount.distance)
            selected = self._series.select(span, name)
            grouped = f"count by (cluster, node) (last_over_time({selected}[{duration(step)}]))"
            raw = self.server.range(grouped, span.start + step, span.end + step, step)
        found: dict[tuple[str, str], set[float]] = {}
        for one in raw:
            key = one.labels.get("cluster", ""), one.labels.get("node", "")
            found.setdefault(key, set()).update(one.times)
        return {key: sorted(times) for key, times in sorted(found.items())}

    def _cached_times(self, span: Span, set_name: str) -> dict[tuple[str, ...], list[float]]:
        """Return cached sample times. With them, a point has the time of its last sample."""
        found: dict[tuple[str, ...], list[float]] = {}
        for (_, node), times in self._times.get((span, set_name), {}).items():
            found[node,] = sorted({*times, *found[node,]}) if (node,) in found else times
        return found

    def breaks(
        self, span: Span, set_name: str, counters: Sequence[str], longest: float
    ) -> dict[str, list[Break]]:
        span = _until_now(span)
        known = self._series.names(span, set_name)
        chosen = {name: known[name] for name in counters if name in known}
        nodes = self._broken(span, set_name, list(chosen.values()), longest)
        if not nodes:
            return {}
        at: dict[str, dict[float, dict[str, float]]] = {}
        raw = self._series.raws(span, list(chosen.values()), [one_of("node", nodes)])
        for name, series in chosen.items():
            for one in raw[series]:
                moments = at.setdefault(one.labels.get("node", ""), {})
                for time, value in zip(one.times, one.values):
                    values = moments.setdefault(time, {})
                    values[name] = values.get(name, 0.0) + value
        found = {
            node: find_breaks(sorted(moments.items()), counters, longest) for node, moments in at.items()
        }
        return {node: some for node, some in sorted(found.items()) if some}

    def _broken(self, span: Span, set_name: str, names: list[str], longest: float) -> list[str]:
        """Return the nodes with a gap or a counter reset."""
        times_of = self.times_by_node(span, set_name)
        nodes = {
            node
            for (_, node), times in times_of.items()
            if max(map(sub, times[1:], times), default=0.0) > longest
        }
        resets = {
            name: f"sum by (node) (resets({self._series.select(span, name)}[{window(span)}])) > 0"
            for name in names
        }
        nodes.update(one.labels.get("node", "") for one in self._series.instant(union(resets), span))
        return sorted(nodes)

    def _resample(
        self, span: Span, labels: Sequence[str], chosen: dict[str, str], width: float, only: Mapping[str, str]
    ) -> dict[tuple[str, ...], Series]:
        groups: dict[tuple[str, ...], dict[str, list[PromSeries]]] = {}
        raw = self._series.raws(span, list(chosen.values()), equal(only))
        for column, name in chosen.items():
            for one in raw[name]:
                key = tuple(one.labels.get(label, "") for label in labels)
                groups.setdefault(key, {}).setdefault(column, []).append(one)
        found = {key: resample(columns, span.start, width) for key, columns in groups.items()}
        return {key: series for key, series in sorted(found.items()) if series.times}

    def _aggregate(
        self, span: Span, labels: Sequence[str], chosen: dict[str, str], grid: Grid, only: Mapping[str, str]
    ) -> dict[tuple[str, ...], _Parts]:
        """Let the server aggregate. The last value of a counter is also its peak."""
        groups: dict[tuple[str, ...], _Parts] = {}
        columns = {name: column for column, name in chosen.items()}
        queries = self._queries(span, labels, list(columns), grid, only)
        for which, found in enumerate(self.server.concurrently(*queries)):
            for one in found:
                name = one.labels.get(QUERY_LABEL if which else "__name__", "")
                if name in columns and one.times:
                    key = tuple(one.labels.get(label, "") for label in labels)
                    parts, row = groups.setdefault(key, ({}, {}, {})), grid.row(one)
                    for part in parts if _is_counter(name) else (parts[which],):
                        part[columns[name]] = row
        return groups

    def _queries(
        self, span: Span, labels: Sequence[str], names: list[str], grid: Grid, only: Mapping[str, str]
    ) -> list[Query]:
        step, by = duration(grid.step), ", ".join(labels)
        selected = self._series.select_all(span, names, equal(only))
        queries = [f"sum by ({', '.join(['__name__', *labels])}) (last_over_time({selected}[{step}]))"]
        levels = {
            name: self._series.select(span, name, equal(only)) for name in names if not _is_counter(name)
        }
        for function in ("avg_over_time", "max_over_time") if levels else ():
            grouped = {name: f"sum by ({by}) ({function}({it}[{step}]))" for name, it in levels.items()}
            queries.append(union(grouped))
        return [partial(self.server.range, it, grid.first, grid.last, grid.step) for it in queries]


def _is_counter(name: str) -> bool:
    return name.endswith("_total")


def _until_now(span: Span) -> Span:
    """Limit the end: range selectors count back from it, and one far ahead would select nothing."""
    return span._replace(end=max(min(span.end, math.ceil(wall_clock()) + 60.0), span.start))
