"""Jobs side by side: totals, groups of processes, timelines; relative to the first job or a group of runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from joblens.analysis.series.timeline import resample
from joblens.core.named_tuple import NamedTuple
from joblens.record.report import JobRecord, Point
from joblens.store.end_groups import GroupUse

METRICS = (
    "duration_seconds", "cpu_seconds", "user_seconds", "system_seconds", "cores_mean", "memory_peak_bytes",
    "processes", "run_delay_seconds", "involuntary_switches", "major_faults", "read_chars_bytes",
    "written_chars_bytes", "read_bytes", "written_bytes",
)  # fmt: skip
OPERATION_METRICS = ("cpu_seconds", "span_seconds", "processes")
PROGRAM_METRICS = ("cpu_seconds", "summed_wall_seconds", "processes")
TIMELINES = ("cores", "memory", "read", "written", "threads", "processes")
STRETCHES = 120  # of the timelines, from the start to the end of the longest job
PARTS = ("totals", "operations", "programs")
_MUCH = 0.1  # relative difference that counts as a change
_LEAST_SHARE = 0.01  # of the whole job, of what an operation must differ by
_DEPARTED = {
    "cores": 0.1,
    "memory": float(1 << 20),
}  # timelines that can be the first change; least difference
_MUCH_OF_PEAK, _LONG = 0.25, 5  # of the peak, for so many stretches: a timeline has departed from another


class Compared(NamedTuple):
    """One figure of several jobs."""

    what: tuple[str, ...]  # the group of processes that it is of; of totals the metric
    values: list[float | None]
    ratio: float | None = None  # of the mean of the second group of runs to that of the first
    interval: float | None = None  # plus or minus, by the standard deviations of both
    metric: str = "cpu_seconds"


class Timelines(NamedTuple):
    """One metric of several jobs over time, in stretches from the start of each: none of what is unknown."""

    metric: str
    values: list[list[float | None]]


class Change(NamedTuple):
    """What changed first: an operation, a program, or where there are none the timeline of a metric."""

    kind: str
    what: tuple[str, ...]
    metric: str
    seconds: float | None  # after the start of the job
    ratio: float | None = None


class Comparison(NamedTuple):
    totals: list[Compared]
    operations: list[Compared]  # each with several metrics, in order of start
    programs: list[Compared]
    first_change: Change | None
    timelines: Sequence[Timelines] = ()
    step_seconds: float = 0.0  # length of a stretch of the timelines

    def limit(self, most: int, first: int) -> Comparison:
        """Return it with the operations, in order of start, and the programs whose CPU time differs most."""
        chosen = sorted(by_cpu(self.operations), key=lambda it: _by_difference(it, first))[:most]
        names = [{it.what for it in part} for part in (chosen, by_cpu(self.programs)[:most])]
        operations, programs = (
            [it for it in part if it.what in some]
            for part, some in zip((self.operations, self.programs), names)
        )
        return self._replace(operations=operations, programs=programs)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield part, group or total, metric, value of each job, ratio and interval. The part `timelines` has
        seconds after the start in place of a group."""
        for part in PARTS:
            for it in getattr(self, part):
                yield (part, " ".join(it.what), it.metric, *it.values, it.ratio, it.interval)
        for line in self.timelines:
            for number, values in enumerate(zip(*line.values)):
                yield ("timelines", f"{number * self.step_seconds:.6g}", line.metric, *values, None, None)


def by_cpu(groups: Sequence[Compared]) -> list[Compared]:
    """Return one figure of each group, its CPU time."""
    return [it for it in groups if it.metric == "cpu_seconds"]


def compare(
    records: Sequence[JobRecord],
    operations: Sequence[Sequence[GroupUse]],
    programs: Sequence[Sequence[GroupUse]],
    first: int,
    points: Sequence[Sequence[Point]] = (),
) -> Comparison:
    """The first so many jobs are runs of one group, the others those that are compared with it.

    `points`: the timeline of each job, if it is not that of its record."""
    totals = [_compared((name,), name, [getattr(it.used, name) for it in records], first) for name in METRICS]
    starts = [it.job.start for it in records]
    tagged = [groups if any(any(group.key) for group in groups) else [] for groups in operations]
    by_tags = _groups(tagged, starts, first, OPERATION_METRICS)
    by_name = _groups(programs, starts, first, PROGRAM_METRICS)
    longest = max(it.job.duration for it in records)
    lines = _timelines(records, points or [it.timeline for it in records], longest)
    step = longest / STRETCHES
    change = _first_change(by_tags, by_name, lines, step, records, first)
    by_name.sort(key=lambda group: _by_difference(group.rows[0], first))
    return Comparison(
        [it for it in totals if any(value is not None for value in it.values)],
        [it for group in by_tags for it in group.rows],
        [it for group in by_name for it in group.rows],
        change,
        lines,
        step if lines else 0.0,
    )


class _Group(NamedTuple):
    began: float  # after the start of the job in which it was first
    rows: list[Compared]  # its metrics, the CPU time first


def _groups(
    jobs: Sequence[Sequence[GroupUse]], starts: Sequence[float], first: int, metrics: Sequence[str]
) -> list[_Group]:
    """In order of their first start in any job, from the start of this job. A job with groups has 0 of one
    that it lacks; of a job without any, nothing is known."""
    tables = [{group.key: group for group in groups} for groups in jobs]
    began: dict[tuple[str, ...], float] = {}
    for start, groups in zip(starts, jobs):
        for group in groups:
            after = math.inf if group.began_seconds is None else group.began_seconds - start
            began[group.key] = min(after, began.get(group.key, math.inf))

    def values(key: tuple[str, ...], metric: str) -> list[float | None]:
        return [getattr(table.get(key, GroupUse(key)), metric) if table else None for table in tables]

    return [
        _Group(began[key], [_compared(key, name, values(key, name), first) for name in metrics])
        for key in sorted(began, key=lambda key: began[key])
    ]


def _compared(what: tuple[str, ...], metric: str, values: list[float | None], first: int) -> Compared:
    one, other = ([value for value in part if value is not None] for part in (values[:first], values[first:]))
    if not one or not other or not statistics.fmean(one):
        return Compared(what, values, metric=metric)
    ratio = statistics.fmean(other) / statistics.fmean(one)
    return Compared(what, values, ratio, _interval(ratio, one, other), metric)


def _interval(ratio: float, one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the standard deviation of the ratio, as hyperfine does; none if one group is a single run."""
    if len(one) < 2 or len(other) < 2 or not statistics.fmean(other):
        return None
    return ratio * math.hypot(*(statistics.stdev(part) / statistics.fmean(part) for part in (one, other)))


def _first_change(
    operations: Sequence[_Group],
    programs: Sequence[_Group],
    lines: Sequence[Timelines],
    step: float,
    records: Sequence[JobRecord],
    first: int,
) -> Change | None:
    """By operations, else by programs, else by timelines: the first of which both groups of jobs know."""
    for kind, groups in (("operation", operations), ("program", programs)):
        if any(_is_known(group.rows[0], first) for group in groups):
            return _first_group(kind, groups, records[:first], first)
    return _first_departure(lines, step, first)


def _first_group(
    kind: str, groups: Sequence[_Group], records: Sequence[JobRecord], first: int
) -> Change | None:
    """Return the first group, in order of start, whose CPU time or, of an operation, duration changed."""
    whole = {"cpu_seconds": _mean([it.used.cpu_seconds for it in records])}
    if kind == "operation":
        whole["span_seconds"] = _mean([it.job.duration for it in records])
    for group in groups:
        rows = [it for it in group.rows if it.metric in whole and (any(it.what) or it is group.rows[0])]
        changed = [it for it in rows if _is_change(it, first, whole[it.metric])]
        if changed:
            most = max(changed, key=lambda it: math.inf if it.ratio is None else abs(it.ratio - 1.0))
            seconds = max(group.began, 0.0) if math.isfinite(group.began) else None
            return Change(kind, most.what, most.metric, seconds, most.ratio)
    return None


def _is_change(it: Compared, first: int, whole: float) -> bool:
    """More than a tenth of it and a hundredth of the job, and more than the runs differ among each other."""
    if _difference(it, first) <= _LEAST_SHARE * whole:
        return False
    return it.ratio is None or abs(it.ratio - 1.0) > max(_MUCH, 2.0 * (it.interval or 0.0))


def _timelines(
    records: Sequence[JobRecord], points: Sequence[Sequence[Point]], longest: float
) -> list[Timelines]:
    """Those of which something is known in two jobs."""
    found = []
    for metric in TIMELINES if longest > 0 else ():
        values = [
            resample(some, metric, it.job.start, it.job.start + longest, STRETCHES)
            for it, some in zip(records, points)
        ]
        if sum(any(value is not None for value in line) for line in values) > 1:
            found.append(Timelines(metric, values))
    return found


def _first_departure(lines: Sequence[Timelines], step: float, first: int) -> Change | None:
    found = [
        Change("timeline", (), it.metric, at * step, ratio)
        for it in lines
        if it.metric in _DEPARTED
        for at, ratio in _departures(it, first)
    ]
    return min(found, key=lambda it: it.seconds or 0.0, default=None)


def _departures(line: Timelines, first: int) -> Iterator[tuple[int, float | None]]:
    """Yield the first stretch from which on the groups differ for a while, and by which ratio. Where one has
    ended, nothing is compared."""
    peak = max((value for values in line.values for value in values if value is not None), default=0.0)
    much = max(_MUCH_OF_PEAK * peak, _DEPARTED[line.metric])
    apart: list[tuple[float, float]] = []
    for number, column in enumerate(zip(*line.values)):
        one, other = ([it for it in part if it is not None] for part in (column[:first], column[first:]))
        spread = math.hypot(*(statistics.stdev(part) for part in (one, other) if len(part) > 1))
        if one and other and abs(_mean(other) - _mean(one)) > max(much, 2.0 * spread):
            apart.append((_mean(one), _mean(other)))
        else:
            apart.clear()
        if len(apart) == _LONG:
            before, after = (sum(part) for part in zip(*apart))
            yield number + 1 - _LONG, after / before if before else None
            return


def _by_difference(it: Compared, first: int) -> tuple[float, float]:
    """A key that sorts the largest difference first; of what one group does not know, the largest value."""
    return -_difference(it, first), -_mean(it.values)


def _difference(it: Compared, first: int) -> float:
    """Return 0 if one group does not know it: unknown is not absent."""
    return abs(_mean(it.values[first:]) - _mean(it.values[:first])) if _is_known(it, first) else 0.0


def _is_known(it: Compared, first: int) -> bool:
    """Whether a job of each group has it."""
    return all(any(value is not None for value in part) for part in (it.values[:first], it.values[first:]))


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else 0.0
