"""Samples put together to points, from those of a server or from what it has put together itself."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from typing import NamedTuple

from joblens.store.reader import Series
from joblens.store.tsdb.promql_answer import Found


class Grid(NamedTuple):
    """Stretches of equal length, each with its begin and without its end.

    Servers count the end in and not the begin, some both, in milliseconds: one less, and all mean the same.
    """

    start: float
    step: float
    stretches: int

    @property
    def first(self) -> float:
        return self.start + self.step - 0.001

    @property
    def last(self) -> float:
        return self.first + (self.stretches - 1) * self.step

    def place(self, time: float) -> int:
        """The stretch that ends then, -1 if none does."""
        inside = self.start <= time <= self.last + 0.001
        return round((time - self.first) / self.step) if inside else -1

    def row(self, found: Found) -> list[float | None]:
        """Its values, one for each stretch. Most series have one in each, from their first to their last."""
        row: list[float | None] = [None] * self.stretches
        first, last = self.place(found.times[0]), self.place(found.times[-1])
        if first >= 0 and last - first == len(found.values) - 1:
            row[first : last + 1] = found.values
            return row
        for time, value in zip(found.times, found.values):
            place = self.place(time)
            if place >= 0:
                row[place] = value
        return row

    def ends(self, looks: Sequence[float], end: float) -> list[float]:
        """When the last look in each stretch was. Where none is known, the stretch's end."""
        found = []
        for number in range(self.stretches):
            last = self.first + number * self.step
            place = bisect_right(looks, last)
            known = place > 0 and looks[place - 1] > last - self.step
            found.append(looks[place - 1] if known else min(last, end))
        return found


def make_grid(start: float, end: float, step: float) -> Grid:
    """Servers count in milliseconds."""
    step = max(math.ceil(round(step * 1000, 6)), 1) / 1000
    return Grid(start, step, math.floor((end - start) / step) + 1)


def fold(columns: dict[str, list[Found]], start: float, width: float) -> Series:
    """From all samples: those of one moment are added up, then those of one point put together."""
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


def _by_point(found: list[Found], start: float, width: float) -> dict[int, tuple[float, list[float]]]:
    """By number of the point, the time of its last sample and its values."""
    points: dict[int, tuple[float, list[float]]] = {}
    for time, value in _added(found):
        number = math.floor((time - start) / width)
        values = points[number][1] if number in points else []
        values.append(value)
        points[number] = time, values
    return points


def _added(found: list[Found]) -> Iterable[tuple[float, float]]:
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
    """Without the points of which nothing is known. The parts: what was last, on average, and at most."""
    rows = [row for part in parts for row in part.values()]
    known = [any(value is not None for value in cells) for cells in zip(*rows)]
    unknown: list[float | None] = [None] * len(times)
    chosen = ({name: list(compress(part.get(name, unknown), known)) for name in columns} for part in parts)
    return Series(list(compress(times, known)), *chosen)
