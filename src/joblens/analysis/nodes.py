"""A job on several nodes: the samples of each of them, and their sum on one time axis.

Nodes sample at times of their own, start and stop at different times, and have their own gaps. So points are
computed per node, and only known values of an interval are added up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import sub

from joblens.analysis.series.rates import gaps
from joblens.analysis.series.timeline import longest_stretch, make_points, steady
from joblens.core.named_tuple import NamedTuple
from joblens.record.report import Gap, NodeUse, Point
from joblens.store.reader import Break, Reader, Series, Span

COUNTERS = (
    "cpu_seconds", "system_seconds", "read_bytes", "written_bytes", "read_chars_bytes", "written_chars_bytes",
    "run_delay_seconds", "throttled_seconds", "oom_kills",
)  # fmt: skip
LEVELS = ("memory_bytes", "processes", "threads", "blocked")
_RATES = ("cores", "system", "read", "written", "delayed", "blocked")
_HEARTBEAT = "load"  # a set that an agent samples at every tick, with or without jobs
_FEW = 0.1  # so many of the nodes may be unknown for a sum over all of them
_FEWEST_BEATS = 3  # that show that the job was absent all the time
_ENOUGH_TIMES = 1000  # to know how far they lie apart
Stretch = tuple[float, float, float | None]


class NodeSeries(NamedTuple):
    """The job on one node."""

    node: str
    series: Series  # counters without resets
    points: list[Point]
    times: list[float]  # at the job, or at the node when nothing of the job was there
    gaps: list[tuple[float, float]]

    def total(self, name: str) -> float | None:
        return next((value for value in reversed(self.series.last.get(name, [])) if value is not None), None)

    def use(self, duration: float, samples: int, expected: int | None) -> NodeUse:
        cpu = self.total("cpu_seconds")
        mean = cpu / duration if cpu is not None and duration > 0 else None
        seen = max((p.cores for p in steady(self.points) if p.cores is not None), default=None)
        memory = max((p.memory for p in self.points if p.memory is not None), default=None)
        return NodeUse(
            self.node,
            cores_mean=mean,
            cores_peak=None if seen is None else max(seen, mean or 0.0),
            memory_peak_bytes=None if memory is None else int(memory),
            cpu_seconds=cpu,
            samples=samples,
            expected_samples=expected,
            gaps=[Gap(*gap) for gap in self.gaps],
        )


class Whole(NamedTuple):
    """The job on all of its nodes."""

    span: Span
    finish: float  # of the job; the last sample follows it
    nodes: list[NodeSeries]
    times: list[float]
    series: Series
    points: list[Point]
    gaps: list[tuple[float, float]]


def find_nodes(
    reader: Reader, span: Span, finish: float, names: Sequence[str], interval: float, most: int
) -> Whole:
    """Read the job's run in this span on these nodes. `most` is the maximum number of points."""
    jobs = _of_its_cluster(reader.times_by_node(span, "job"), span.cluster, names)
    span = span._replace(cluster=span.cluster if any(cluster == span.cluster for cluster, _ in jobs) else "")
    seen = {node: times for (_, node), times in jobs.items()}
    nodes = list(dict.fromkeys([*_as_seen(names, seen), *seen]))
    beats = _heartbeats(reader, span, nodes)
    between = max(interval, *(_typical(times) for times in seen.values()), 0.0)
    split = reader.split(span, "job", ("node",), (*COUNTERS, *LEVELS), most)
    breaks = reader.breaks(span, "job", COUNTERS, 1.5 * between)
    longest = longest_stretch(between, finish - span.start, most)
    found = [
        _node(
            node, span.start, finish, split.get((node,)), breaks.get(node, []), seen.get(node, []),
            beats.get(node, []), longest, between, most,
        )
        for node in nodes
    ]  # fmt: skip
    times = sorted({time for node in found for time in node.times})
    holes = gaps(times, span.start, finish, max(3 * interval, 0.5))
    series, points = _together(found, span.start, finish, max(interval, (finish - span.start) / most))
    return Whole(span, finish, found, times, series, points, holes)


def _of_its_cluster(
    found: dict[tuple[str, str], list[float]], cluster: str, names: Sequence[str]
) -> dict[tuple[str, str], list[float]]:
    """Another cluster can have a job with that id. An agent without a configured one reports another name."""
    own = {key: times for key, times in found.items() if key[0] == cluster} or found
    short = set(map(_short, names))
    return {key: times for key, times in own.items() if _short(key[1]) in short} or own


def _short(node: str) -> str:
    """A scheduler's c1 can be an agent's c1.example.org. An address is a name as it stands."""
    return node if node.replace(".", "").isdigit() else node.partition(".")[0]


def _as_seen(names: Sequence[str], seen: Iterable[str]) -> list[str]:
    known = {_short(node): node for node in seen}
    return [name if name in known.values() else known.get(_short(name), name) for name in names]


def _heartbeats(reader: Reader, span: Span, nodes: Sequence[str]) -> dict[str, list[float]]:
    around = span._replace(nodes=tuple(nodes), cluster="")
    found = reader.times_by_node(around, _HEARTBEAT) if nodes else {}
    return {node: times for (cluster, node), times in found.items() if cluster in ("", span.cluster)} or {
        node: times for (_, node), times in found.items()
    }


def _typical(times: Sequence[float]) -> float:
    """Return the median; importing `statistics` takes longer than reading the samples of a job."""
    some = times[:_ENOUGH_TIMES]
    apart = sorted(map(sub, some[1:], some))
    return (apart[(len(apart) - 1) // 2] + apart[len(apart) // 2]) / 2 if apart else 0.0


def _node(
    node: str,
    start: float,
    finish: float,
    series: Series | None,
    breaks: list[Break],
    seen: list[float],
    beats: list[float],
    longest: float,
    between: float,
    most: int,
) -> NodeSeries:
    times = sorted({*seen, *beats})
    holes = gaps(times, start, finish, max(3 * between, 0.5))
    if not seen and (len(beats) < _FEWEST_BEATS or _seconds(holes) > _FEW * (finish - start)):
        # A sample or two do not show that there was no job.
        return NodeSeries(node, Series([], {}, {}, {}), [], times, holes)
    idle = _idle_times(seen, beats, start, 1.5 * between)
    known = _continued(series or Series([], {}, {}, {}), breaks, idle)
    width = max((finish - start) / most, between)
    filled = _with_idle(known, _thinned(idle, width), breaks)
    points = make_points(start, finish, filled, longest)
    return NodeSeries(node, filled, points, times, holes)


def _seconds(holes: list[tuple[float, float]]) -> float:
    return sum(last - first for first, last in holes)


def _idle_times(seen: list[float], beats: list[float], start: float, longest: float) -> list[float]:
    """Return samples of the node without the job. The first sample of a job follows its start."""
    edges = [start, *seen, float("inf")]
    found = []
    for beat in sorted(set(beats).difference(seen)):  # of a long job there are millions, and here most go
        place = bisect_right(edges, beat)
        before, after = edges[place - 1] if place else beat, edges[min(place, len(edges) - 1)]
        if before < beat < after and after - before > longest:
            found.append(beat)
    return found


def _thinned(times: list[float], width: float) -> list[float]:
    """Keep the first sample of each interval without the job, the last one and some in between."""
    found: list[float] = []
    for number, time in enumerate(times):
        last = number == len(times) - 1 or times[number + 1] - time > 2 * width
        if not found or last or time - found[-1] >= width:
            found.append(time)
    return found


def _continued(series: Series, breaks: list[Break], idle: list[float]) -> Series:
    """Return counters without resets.

    A job that left the node and returned counts from zero. An agent that restarted counts living processes
    from their start and no longer those that ended: its first value adds nothing.
    """
    last = dict(series.last)
    for name in COUNTERS:
        if name in last:
            steps = [(found.after, _step(found, name, idle)) for found in breaks]
            last[name] = _raised(series.times, last[name], [step for step in steps if step[1]])
    chosen = [n for n, value in enumerate(last.get("cpu_seconds") or []) if value is not None]
    if not chosen or len(chosen) == len(series.times):
        return series._replace(last=last)
    # Samples without these counters would split a known rate into two unknown ones.
    parts = ({name: [values[n] for n in chosen] for name, values in p.items()} for p in (last, *series[2:]))
    return Series([series.times[n] for n in chosen], *parts)


def _step(found: Break, name: str, idle: list[float]) -> float:
    before, after = found.counters.get(name, (None, None))
    if before is None:
        return 0.0
    if _was_gone(found, idle):
        return before
    return max(before - after, 0.0) if after is not None else 0.0


def _was_gone(found: Break, idle: list[float]) -> bool:
    place = bisect_right(idle, found.before)
    return place < len(idle) and idle[place] < found.after


def _raised(
    times: list[float], values: list[float | None], steps: list[tuple[float, float]]
) -> list[float | None]:
    if not steps:
        return values
    return [
        None if value is None else value + sum(step for moment, step in steps if moment <= time)
        for time, value in zip(times, values)
    ]


def _with_idle(series: Series, idle: list[float], breaks: list[Break]) -> Series:
    """Insert samples for moments at which the job was absent: counters are constant, and levels are 0."""
    if not idle:
        return series
    counters = [name for name in COUNTERS if name in series.last] or ["cpu_seconds"]
    gone = {name: _stood(series, breaks, idle, name) for name in counters}
    rows = sorted([*((t, n) for n, t in enumerate(series.times)), *((t, -1) for t in idle)])
    found = Series([t for t, _ in rows], {}, {}, {})
    for name in counters:
        values = series.last.get(name) or []
        found.last[name] = [gone[name](t) if n < 0 else values[n] for t, n in rows]
    for part, into in zip(series[1:], found[1:]):
        for name in LEVELS:
            levels = part.get(name) or [None] * len(series.times)
            into[name] = [0.0 if n < 0 else levels[n] for _, n in rows]
    return found


def _stood(
    series: Series, breaks: list[Break], idle: list[float], name: str
) -> Callable[[float], float | None]:
    """Return the value of a counter while the job was absent, by the sample before."""
    values = [value or 0.0 for value in series.last.get(name) or []]
    raised, ends = 0.0, []
    for found in breaks:
        before = found.counters.get(name, (None, None))[0]
        ends.append((found.before, found.after, None if before is None else before + raised))
        raised += _step(found, name, idle)

    def stood(moment: float) -> float | None:
        for first, last, value in ends:
            if first <= moment <= last:
                return value
        return values[-1] if values and moment > series.times[-1] else 0.0

    return stood


# All nodes together


def _together(
    nodes: list[NodeSeries], start: float, finish: float, step: float
) -> tuple[Series, list[Point]]:
    known = [node for node in nodes if node.points]
    if len(known) < 2:
        return (known[0].series, known[0].points) if known else (Series([], {}, {}, {}), [])
    axis = _axis([p.end for node in known for p in node.points], start, step)
    columns: dict[str, list[float | None]] = {}
    for name in _RATES:
        columns[name] = _sum([spread(_stretches(node.points, name), axis) for node in known])
    for name in ("memory", "threads", "processes"):
        columns[name] = _sum([highest(_stretches(node.points, name), axis) for node in known])
    points = [
        Point(axis[n], axis[n + 1], *(columns[name][n] for name in Point.__struct_fields__[2:]))
        for n in range(len(axis) - 1)
    ]
    means = [spread(_levels(node.series, start), axis) for node in known]
    series = Series(axis[1:], _totals(known, len(axis) - 1), {"memory_bytes": _sum(means)}, {})
    return series, [point for point in points if point.start < finish]


def _axis(times: list[float], start: float, step: float) -> list[float]:
    """Return sample times that are about `step` apart. Most nodes sample at the same times."""
    axis = [start]
    for time in sorted(times):
        if time - axis[-1] >= 0.75 * step:
            axis.append(time)
    last = max(times, default=start)
    if last > axis[-1]:  # what is left is too short to stand alone
        axis = [*(axis[:-1] if len(axis) > 1 else axis), last]
    return axis


def _stretches(points: list[Point], name: str) -> list[Stretch]:
    return [(point.start, point.end, getattr(point, name)) for point in points]


def _levels(series: Series, start: float) -> list[Stretch]:
    means = series.mean.get("memory_bytes") or [None] * len(series.times)
    return list(zip((start, *series.times), series.times, means))


def spread(stretches: Sequence[Stretch], axis: Sequence[float]) -> list[float | None]:
    """The mean over each part of the axis, None where less than half of it is known."""
    found: list[float | None] = []
    for first, last, inside in _overlaps(stretches, axis):
        seconds = total = 0.0
        for a, b, value in inside:
            if value is not None:
                overlap = (b if b < last else last) - (a if a > first else first)
                seconds += overlap
                total += value * overlap
        found.append(total / seconds if seconds > 0 and seconds >= 0.5 * (last - first) else None)
    return found


def highest(stretches: Sequence[Stretch], axis: Sequence[float]) -> list[float | None]:
    """The most in each part of the axis, by the stretches that lie in it for the most part, or fill it."""
    found: list[float | None] = []
    for first, last, inside in _overlaps(stretches, axis):
        most, longest, otherwise = None, -1.0, None
        for a, b, value in inside:
            if value is None:
                continue
            overlap = (b if b < last else last) - (a if a > first else first)
            if overlap > longest:
                longest, otherwise = overlap, value
            if (most is None or value > most) and overlap >= 0.5 * min(b - a, last - first):
                most = value
        found.append(otherwise if most is None else most)
    return found


def _overlaps(
    stretches: Sequence[Stretch], axis: Sequence[float]
) -> Iterable[tuple[float, float, Sequence[Stretch]]]:
    """For each part of the axis, yield the intervals in it. Both are sorted."""
    at, count = 0, len(stretches)
    for first, last in zip(axis, axis[1:]):
        while at < count and stretches[at][1] <= first:
            at += 1
        end = at
        while end < count and stretches[end][0] < last:
            end += 1
        yield first, last, stretches[at:end]


def _sum(columns: list[list[float | None]]) -> list[float | None]:
    """Unknown where it is for more than a few of the nodes."""
    found: list[float | None] = []
    for values in zip(*columns):
        known = [value for value in values if value is not None]
        found.append(sum(known) if known and len(values) - len(known) <= _FEW * len(values) else None)
    return found


def _totals(nodes: list[NodeSeries], length: int) -> dict[str, list[float | None]]:
    """Each at its end: that is all that is asked of it."""
    found: dict[str, list[float | None]] = {}
    for name in COUNTERS:
        known = [total for node in nodes for total in [node.total(name)] if total is not None]
        if known and length:
            found[name] = [*[None] * (length - 1), sum(known)]
    return found
