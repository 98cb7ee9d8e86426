"""Resample to the points of a timeline: raw samples, or values that a server has aggregated."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from typing import NamedTuple

from joblens.store.reader import Series
from joblens.store.tsdb.promql import PromSeries


class Grid(NamedTuple):
    """Steps of equal length, each including its start and excluding its end.

    Servers include the end and exclude the start, some include both, in milliseconds. So each step is
    evaluated one millisecond before its end, where all servers agree.
    """

    start: float
    step: float
    steps: int

    @property
    def first(self) -> float:
        return self.start + self.step - 0.001

    @property
    def last(self) -> float:
        return self.first + (self.steps - 1) * self.step

    def place(self, time: float) -> int:
        """Return the step that ends at this time, or -1."""
        inside = self.start <= time <= self.last + 0.001
        return round((time - self.first) / self.step) if inside else -1

    def row(self, found: PromSeries) -> list[float | None]:
        """Return one value per step. Most series have a value in each step from their first to their last."""
        row: list[float | None] = [None] * self.steps
        first, last = self.place(found.times[0]), self.place(found.times[-1])
        if first >= 0 and last - first == len(found.values) - 1:
            row[first : last + 1] = found.values
            return row
        for time, value in zip(found.times, found.values):
            place = self.place(time)
            if place >= 0:
                row[place] = value
        return row

    def ends(self, samples: Sequence[float], end: float) -> list[float]:
        """Return the time of the last sample in each step, or the end of the step if it has none."""
        found = []
        for number in range(self.steps):
            last = self.first + number * self.step
            place = bisect_right(samples, last)
            known = place > 0 and samples[place - 1] > last - self.step
            found.append(samples[place - 1] if known else min(last, end))
        return found


def make_grid(start: float, end: float, step: float) -> Grid:
    """Round the step up to milliseconds, the resolution of servers."""
    step = max(math.ceil(round(step * 1000, 6)), 1) / 1000
    return Grid(start, step, math.floor((end - start) / step) + 1)


def resample(columns: dict[str, list[PromSeries]], start: float, width: float) -> Series:
    """Sum the samples of the same time over all series, then aggregate those of each point."""
    points = {name: _by_point(found, start, width) for name, found in columns.items()}
    points = {name: some for name, some in points.items() if some}
    ends: dict[int, float] = {}
    for some in points.values():
        for number, (time, _) in some.items():
            ends[number] = max(time, ends.get(number, time))
    numbers = sorted(ends)
    series = Series([ends[number] for number in numbers], {}, {}, {})
    for name, some in points.items():
        cells = [some[number][1] if number in some else [] for number in numbers]
        series.last[name] = [values[-1] if values else None for values in cells]
        series.mean[name] = [sum(values) / len(values) if values else None for values in cells]
        series.peak[name] = [max(values, default=None) for values in cells]
    return series


def _by_point(found: list[PromSeries], start: float, width: float) -> dict[int, tuple[float, list[float]]]:
    """Return the time of the last sample and all values, by number of the point."""
    points: dict[int, tuple[float, list[float]]] = {}
    for time, value in _sum_series(found):
        number = math.floor((time - start) / width)
        values = points[number][1] if number in points else []
        values.append(value)
        points[number] = time, values
    return points


def _sum_series(found: list[PromSeries]) -> Iterable[tuple[float, float]]:
    if len(found) == 1:
        return zip(found[0].times, found[0].values)
    moments: dict[float, float] = {}
    for one in found:
        for time, value in zip(one.times, one.values):
            moments[time] = moments.get(time, 0.0) + value
    return sorted(moments.items())


def as_series(
    parts: Sequence[dict[str, list[float | None]]], times: list[float], columns: Collection[str]
) -> Series:
    """Drop points without any value. `parts` are last, mean and peak."""
    rows = [row for part in parts for row in part.values()]
    known = [any(value is not None for value in cells) for cells in zip(*rows)]
    unknown: list[float | None] = [None] * len(times)
    chosen = ({name: list(compress(part.get(name, unknown), known)) for name in columns} for part in parts)
    return Series(list(compress(times, known)), *chosen)
