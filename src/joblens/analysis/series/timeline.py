"""A job's time as a row of stretches, from raw samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from joblens.analysis.rule_input import mean
from joblens.analysis.series.rates import rates
from joblens.record.ends import EndedProcess
from joblens.record.report import GpuPoint, Point
from joblens.store.reader import Series

if TYPE_CHECKING:
    import numpy

    from joblens.store.end_table import EndTable

# In 20 ms one tick of the kernel's clock is half a core: shorter stretches say nothing about cores.
_STEADY_SECONDS = 0.25
_SHORTEST = 0.01  # seconds that a process takes at least: starts and ends are in clock ticks


def longest_stretch(interval: float, seconds: float, most: int) -> float:
    """Between two moments at which something is known, of so many in so many seconds: else it is a gap."""
    return max(3 * interval, 1.5 * seconds / most, 1.0)


def make_points(start: float, end: float, series: Series, longest: float) -> list[Point]:
    """Each from one moment to the next. A job's counters are zero at its start, so that is the first.

    Of a stretch longer than `longest` nothing is known but what was seen at its end.
    """
    if not series.times:
        return []
    times = [start, *series.times]
    unknown: list[float | None] = [None] * len(series.times)
    processes = series.peak.get("processes") or unknown

    def rate(name: str) -> list[float | None]:
        counter = series.last.get(name)
        return rates(times, [0.0, *counter], longest) if counter else unknown

    def level(name: str) -> list[float | None]:
        """For a point that ends after the job, return the level of the sample at its start."""
        found, seen = list(series.peak.get(name) or unknown), series.last.get(name) or unknown
        for n in range(1, len(found)):
            if processes[n] == 0 and times[n + 1] - times[n] <= longest:
                found[n] = seen[n - 1]
        return found

    columns = (
        *(rate(name) for name in ("cpu_seconds", "system_seconds")),
        level("memory_bytes"),
        *(rate(name) for name in ("read_bytes", "written_bytes")),
        *(level(name) for name in ("threads", "processes")),
        rate("run_delay_seconds"),
        series.mean.get("blocked") or unknown,
    )
    found = []
    for n in range(len(series.times)):
        begin = times[n]
        if begin >= times[n + 1] or begin >= end:
            continue
        if times[n + 1] - begin > longest:
            begin = times[n + 1] - longest / 3
            found.append(Point(times[n], begin))
        if begin < end:
            found.append(Point(begin, times[n + 1], *(column[n] for column in columns)))
    return found


def limit_cores(points: Iterable[Point], node_cores: float) -> None:
    """CPU time of processes that no sample saw appears at once, when they have been waited for. Not all of it
    was used in that stretch if that would have taken more cores than the node has."""
    for point in points:
        if point.cores is not None and point.cores > node_cores and point.seconds >= _STEADY_SECONDS:
            point.system = None if point.system is None else point.system * node_cores / point.cores
            point.cores = node_cores


def steady(points: Iterable[Point]) -> list[Point]:
    """Short ones put together, so that cores in use are a figure that counts. Gaps stay as they are."""
    found: list[Point] = []
    waiting: list[Point] = []
    for point in points:
        if point.cores is None:
            found = [*_with_rest(found, waiting), point]
            waiting = []
            continue
        waiting.append(point)
        if point.end - waiting[0].start >= _STEADY_SECONDS:
            found += _joined(waiting)
            waiting = []
    return _with_rest(found, waiting)


def _with_rest(found: list[Point], rest: list[Point]) -> list[Point]:
    """Merge a rest that is too short for a point of its own into the point before it, if that is known."""
    if not rest or not found or found[-1].cores is None:
        return found + _joined(rest)
    return found[:-1] + _joined([found[-1], *rest])


def _joined(points: list[Point]) -> list[Point]:
    if len(points) < 2:
        return points
    first, last = points[0], points[-1]

    def level(name: str) -> float | None:
        known = [(getattr(point, name), point.seconds) for point in points]
        return mean([(value, seconds) for value, seconds in known if value is not None])

    def most(name: str) -> float | None:
        return max((v for v in (getattr(point, name) for point in points) if v is not None), default=None)

    return [
        Point(
            first.start, last.end, level("cores"), level("system"), most("memory"), level("read"),
            level("written"), most("threads"), most("processes"), level("delayed"), level("blocked"),
        )
    ]  # fmt: skip


def resample(
    points: Sequence[Point] | Sequence[GpuPoint], name: str, start: float, end: float, width: int
) -> list[float | None]:
    """The mean of what overlaps each column, None where nothing is known."""
    found: list[float | None] = []
    step = (end - start) / width
    first = 0
    for column in range(width):
        left, right = start + column * step, start + (column + 1) * step
        total = weight = 0.0
        while first < len(points) - 1 and points[first].end <= left:
            first += 1
        for point in points[first:]:
            if point.start >= right:
                break
            overlap = min(point.end, right) - max(point.start, left)
            value = getattr(point, name)
            if value is not None and overlap > 0:
                total += value * overlap
                weight += overlap
        found.append(total / weight if weight else None)
    return found


def make_points_of_ends(table: EndTable[EndedProcess], start: float, end: float, most: int) -> list[Point]:
    """Return so many stretches with the mean number of processes and cores in use, of a job that only capture
    has recorded: the CPU time of each process is spread evenly over its life."""
    import numpy

    columns = table.columns("began_seconds", "ended_seconds", "user_seconds", "system_seconds")
    began, ended, user, system = (numpy.asarray(it, dtype=numpy.float64) for it in columns)
    known = numpy.isfinite(began) & numpy.isfinite(ended)
    if end <= start or not known.any():
        return []
    began, ended = began[known] - start, ended[known] - start  # small numbers, for exact sums
    ended = numpy.maximum(ended, began + _SHORTEST)
    rate = numpy.nan_to_num(user + system)[known] / (ended - began)
    edges = numpy.linspace(0.0, end - start, most + 1)

    def amount(weights: numpy.ndarray[Any, Any], at: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
        """What has been added up until each edge by what goes on from `at`."""
        order = numpy.argsort(at)
        count = numpy.searchsorted(at[order], edges)
        sums = [numpy.concatenate(([0.0], numpy.cumsum(it[order]))) for it in (weights, weights * at)]
        return edges * sums[0][count] - sums[1][count]

    def level(weights: numpy.ndarray[Any, Any]) -> list[float]:
        until = amount(weights, began) - amount(weights, ended)
        found: list[float] = numpy.maximum(numpy.diff(until) / numpy.diff(edges), 0.0).tolist()
        return found

    cores, processes = level(rate), level(numpy.ones_like(rate))
    times = (start + edges).tolist()
    return [
        Point(left, right, cores=some, processes=count)
        for left, right, some, count in zip(times, times[1:], cores, processes)
    ]
