"""Jobs side by side: totals and groups of processes, relative to the first job or to a group of runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from joblens.core.named_tuple import NamedTuple
from joblens.record.report import JobRecord
from joblens.store.end_groups import GroupUse

METRICS = (
    "duration_seconds", "cpu_seconds", "user_seconds", "system_seconds", "cores_mean", "memory_peak_bytes",
    "processes", "run_delay_seconds", "involuntary_switches", "major_faults", "read_chars_bytes",
    "written_chars_bytes", "read_bytes", "written_bytes",
)  # fmt: skip
_MUCH = 0.1  # relative difference that counts as a change
_LEAST_SHARE = 0.01  # of the job's CPU time, of what an operation must differ by


class Compared(NamedTuple):
    """One figure of several jobs."""

    what: tuple[str, ...]  # the metric, or the group of processes whose CPU time it is
    values: list[float | None]
    ratio: float | None = None  # of the mean of the second group of runs to that of the first
    interval: float | None = None  # plus or minus, by the standard deviations of both


class Comparison(NamedTuple):
    totals: list[Compared]
    operations: list[Compared]
    programs: list[Compared]
    first_change: tuple[str, ...] | None  # the first operation, in order of start, that changed

    def limit(self, most: int, first: int) -> Comparison:
        """Return it with the operations, in order of start, and the programs that differ most."""
        chosen = sorted(self.operations, key=lambda it: -_difference(it, first))[:most]
        names = {it.what for it in chosen}
        operations = [it for it in self.operations if it.what in names]
        return self._replace(operations=operations, programs=self.programs[:most])


def compare(
    records: Sequence[JobRecord],
    operations: Sequence[Sequence[GroupUse]],
    programs: Sequence[Sequence[GroupUse]],
    first: int,
) -> Comparison:
    """The first so many jobs are runs of one group, the others those that are compared with it."""
    totals = [_compared((name,), [getattr(it.used, name) for it in records], first) for name in METRICS]
    starts = [it.job.start for it in records]
    by_tags, by_name = (_groups(groups, starts, first) for groups in (operations, programs))
    whole = _mean([it.used.cpu_seconds for it in records[:first]])
    changed = next((it.what for it in by_tags if _is_change(it, first, whole)), None)
    return Comparison(
        [it for it in totals if any(value is not None for value in it.values)],
        by_tags,
        sorted(by_name, key=lambda it: -_difference(it, first)),
        changed,
    )


def _groups(jobs: Sequence[Sequence[GroupUse]], starts: Sequence[float], first: int) -> list[Compared]:
    """In order of their first start in any job, from the start of this job. A job with records of its
    processes has 0 of a group that it lacks."""
    tables = [{group.key: group.cpu_seconds for group in groups} for groups in jobs]
    began: dict[tuple[str, ...], float] = {}
    for start, groups in zip(starts, jobs):
        for group in groups:
            after = math.inf if group.began_seconds is None else group.began_seconds - start
            began[group.key] = min(after, began.get(group.key, math.inf))
    keys = sorted(began, key=lambda key: began[key])
    return [
        _compared(key, [table.get(key, 0.0) if table else None for table in tables], first) for key in keys
    ]


def _compared(what: tuple[str, ...], values: list[float | None], first: int) -> Compared:
    one, other = ([value for value in part if value is not None] for part in (values[:first], values[first:]))
    if not one or not other or not statistics.fmean(one):
        return Compared(what, values)
    ratio = statistics.fmean(other) / statistics.fmean(one)
    return Compared(what, values, ratio, _interval(ratio, one, other))


def _interval(ratio: float, one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the standard deviation of the ratio, as hyperfine does; none if one group is a single run."""
    if len(one) < 2 or len(other) < 2 or not statistics.fmean(other):
        return None
    return ratio * math.hypot(*(statistics.stdev(part) / statistics.fmean(part) for part in (one, other)))


def _is_change(it: Compared, first: int, whole: float) -> bool:
    """More than a tenth of it and a hundredth of the job, and more than the runs differ among each other."""
    if _difference(it, first) <= _LEAST_SHARE * whole:
        return False
    return it.ratio is None or abs(it.ratio - 1.0) > max(_MUCH, 2.0 * (it.interval or 0.0))


def _difference(it: Compared, first: int) -> float:
    return abs(_mean(it.values[first:]) - _mean(it.values[:first]))


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else 0.0
