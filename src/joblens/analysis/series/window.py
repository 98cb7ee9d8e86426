"""A part of a job's time: what was known of all of it, with counters that begin at the part's own start."""

from __future__ import annotations

from bisect import bisect_right

from joblens.analysis.nodes import COUNTERS, NodeSeries, Whole
from joblens.record.report import Point
from joblens.store.reader import Series


class Cut:
    """From one moment to another, of a job that began at `job_start`."""

    def __init__(self, start: float, end: float, job_start: float) -> None:
        self.start, self.end, self.job_start = start, max(end, start), job_start

    def whole(self, whole: Whole) -> Whole:
        nodes = [self._node(node) for node in whole.nodes]
        seen = [node for node in nodes if node.points]
        series = seen[0].series if len(seen) == 1 else self._together(whole.series, seen)
        return Whole(
            whole.span._replace(start=self.start, end=self.end),
            self.end,
            nodes,
            self._times(whole.times),
            series,
            self._points(whole.points),
            self._gaps(whole.gaps),
        )

    def _node(self, node: NodeSeries) -> NodeSeries:
        return NodeSeries(
            node.node, self._series(node.series), self._points(node.points), self._times(node.times),
            self._gaps(node.gaps),
        )  # fmt: skip

    def _times(self, times: list[float]) -> list[float]:
        return [time for time in times if self.start <= time <= self.end]

    def _gaps(self, gaps: list[tuple[float, float]]) -> list[tuple[float, float]]:
        cut = [(max(first, self.start), min(last, self.end)) for first, last in gaps]
        return [(first, last) for first, last in cut if first < last]

    def _points(self, points: list[Point]) -> list[Point]:
        """The values of a point are taken to hold for each part of it."""
        return [
            point.replace(start=max(point.start, self.start), end=min(point.end, self.end))
            for point in points
            if point.end > self.start and point.start < self.end
        ]

    def _chosen(self, times: list[float]) -> slice:
        """Up to the first sample at or after the end, as it covers the time before it."""
        first = bisect_right(times, self.start)
        last = next((n for n in range(first, len(times)) if times[n] >= self.end), len(times) - 1)
        return slice(first, last + 1)

    def _series(self, series: Series) -> Series:
        chosen = self._chosen(series.times)
        times = [min(time, self.end) for time in series.times[chosen]]
        last = {name: values[chosen] for name, values in series.last.items()}
        for name in COUNTERS:
            if name in last:
                known = [(t, v) for t, v in zip(series.times, series.last[name]) if v is not None]
                stood = [(self.job_start, 0.0), *known]
                begin = _at(stood, self.start)
                last[name] = [_at(stood, time) - begin for time in times] if known else last[name]
        parts = ({name: values[chosen] for name, values in part.items()} for part in series[2:])
        return Series(times, last, *parts)

    def _together(self, series: Series, nodes: list[NodeSeries]) -> Series:
        """Totals at the end, as joblens.analysis.nodes has them."""
        cut = self._series(series)
        for name in COUNTERS:
            known = [total for node in nodes for total in [node.total(name)] if total is not None]
            if known and cut.times:
                cut.last[name] = [*[None] * (len(cut.times) - 1), sum(known)]
        return cut


def _at(known: list[tuple[float, float]], moment: float) -> float:
    """Return the value of a counter, interpolated linearly between two samples."""
    place = bisect_right(known, (moment, float("inf")))
    if place == len(known):
        return known[-1][1]
    if place == 0:
        return known[0][1]
    (first, before), (last, after) = known[place - 1], known[place]
    return before + (after - before) * (moment - first) / (last - first)
