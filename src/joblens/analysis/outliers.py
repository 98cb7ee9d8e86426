"""Values that are unlike the others, and where they come from.

Three methods for one metric at a time: `modified-z` by median and median deviation (Iglewicz and Hoaglin
1993), which few runs are enough for; `z` by mean and standard deviation; `iqr` by quartiles (Tukey). What
they find must also be outside of a prediction interval of the others: the spread of few values is often
small by chance. A value that differs from the median by less than a tenth, or by a trifle, is never an
outlier: runs that are almost equal would make one of any difference.
A fourth, `mahalanobis` for all metrics of a job together, is in joblens.analysis.mahalanobis.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from joblens.analysis.small_samples import prediction
from joblens.core.named_tuple import NamedTuple
from joblens.store.end_groups import GroupUse

MAHALANOBIS = "mahalanobis"
# Of two others a prediction interval is hundreds of deviations wide: none of three jobs can be called unlike
# the others. The score of z is at most (n - 1) / √n, which is more than its threshold from 11 on.
LEAST_JOBS = {"modified-z": 4, "z": 11, "iqr": 4, MAHALANOBIS: 4}
LEAST_DIFFERENCE = 0.1  # from the median, relative to it
_LEAST_SECONDS, _LEAST_BYTES, _LEAST_COUNT = 1.0, float(1 << 20), 2.0  # smaller differences are trifles
_FALSE = 0.03  # aim for the share of sets of like jobs in which one is found
_MOST_UNLIKE = 5  # one of so many jobs is left out of the interval of the others, if it is far from them
LEAST_SHARE = 0.01  # of the job's usual amount, of what a group must differ by
_LEAST_OF_CAUSE = 0.05  # of the difference that it explains
_MOST_CAUSES = 5
OF_NORMAL = 0.6745  # of a standard deviation is half of a normal distribution
METRICS = (
    "duration_seconds", "cpu_seconds", "memory_peak_bytes", "processes", "read_chars_bytes",
    "written_chars_bytes",
)  # fmt: skip
SYMPTOMS = {
    "run_delay_seconds": "processes were ready and had no core (other work on the node, or too many at once)",
    "involuntary_switches": "processes were interrupted because others wanted the core",
    "major_faults": "pages had to be read from storage (memory was short, or files were not cached)",
    "read_bytes": "data came from storage instead of the page cache",
}
GROUP_METRICS = ("cpu_seconds", "summed_wall_seconds", "processes", "memory_peak_bytes")

Values = Sequence[float | None]


class Outlier(NamedTuple):
    """A value of a job that is unlike those of the others."""

    job: int  # its place among the jobs
    metric: str
    value: float
    usual: float  # the median of the others
    score: float
    group: tuple[str, ...] = ()  # the processes that it is of; none: of the whole job

    @property
    def ratio(self) -> float | None:
        """How many times the usual value it is."""
        return self.value / self.usual if self.usual else None


class Cause(NamedTuple):
    """Processes that use more, or less, than usual, and their share of the whole difference."""

    group: tuple[str, ...]
    metric: str
    value: float
    usual: float
    share: float


def modified_z(values: Sequence[float]) -> list[float]:
    """In median deviations. If most values are equal, any other is infinitely far away."""
    middle = statistics.median(values)
    away = [abs(value - middle) for value in values]
    spread = statistics.median(away) / OF_NORMAL
    return [_in_units(value - middle, spread) for value in values]


def z(values: Sequence[float]) -> list[float]:
    middle, spread = statistics.fmean(values), statistics.stdev(values)
    return [(value - middle) / spread if spread else 0.0 for value in values]


def iqr(values: Sequence[float]) -> list[float]:
    """How far outside of the quartiles, in distances between these."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    width = high - low
    outside = [min(value - low, 0.0) or max(value - high, 0.0) for value in values]
    return [_in_units(it, width) for it in outside]


def _in_units(distance: float, unit: float) -> float:
    if unit or not distance:
        return distance / unit if unit else 0.0
    return math.copysign(math.inf, distance)


METHODS: Mapping[str, tuple[Callable[[Sequence[float]], list[float]], float]] = {
    "modified-z": (modified_z, 3.5),
    "z": (z, 3.0),
    "iqr": (iqr, 1.5),
}


def least_difference(metric: str, usual: float) -> float:
    """Return what a value must differ by: a tenth of the usual one, and more than a trifle."""
    unit = (
        _LEAST_SECONDS
        if metric.endswith("_seconds")
        else _LEAST_BYTES
        if metric.endswith("_bytes")
        else _LEAST_COUNT
    )
    return max(LEAST_DIFFERENCE * abs(usual), unit)


def find_outliers(
    metric: str,
    values: Values,
    method: str,
    least: float = 0.0,
    group: tuple[str, ...] = (),
    explains: bool = False,
) -> Iterator[Outlier]:
    """Yield the values that are unlike the others, and differ from the median by `least` or more.

    `explains`: what only explains another outlier may be within the prediction interval."""
    known = [(job, float(value)) for job, value in enumerate(values) if value is not None]
    if len(known) < LEAST_JOBS[method]:
        return
    score_of, threshold = METHODS[method]
    numbers = [value for _, value in known]
    scores = score_of(numbers)
    middle = statistics.median(numbers)
    far = [place for place, score in enumerate(scores) if abs(score) > threshold]
    needed = max(least_difference(metric, middle), least)
    for place in far if explains else _outside(numbers, far, middle):
        job, value = known[place]
        if abs(value - middle) >= needed:
            usual = statistics.median(other for at, other in enumerate(numbers) if at != place)
            yield Outlier(job, metric, value, usual, scores[place], group)


def _outside(values: Sequence[float], far: Sequence[int], middle: float) -> list[int]:
    """Return those of the places whose values are outside of a prediction interval of the others."""
    most = max(1, len(values) // _MOST_UNLIKE)
    chosen = sorted(far, key=lambda place: -abs(values[place] - middle))[:most]
    others = [value for place, value in enumerate(values) if place not in chosen]
    centre = statistics.fmean(others)
    probability = _FALSE / len(METRICS) / len(values)
    limit = prediction(len(others), probability) * statistics.stdev(others)
    return sorted(place for place in chosen if abs(values[place] - centre) > limit)


def find_group_outliers(
    jobs: Sequence[Sequence[GroupUse]], method: str, only_common: bool = False
) -> list[Outlier]:
    """Find groups of processes that are unlike those of the other jobs, the largest difference first.

    `only_common`: only groups that most jobs have. Command lines can have names of temporary files.
    """
    tables = [{group.key: group for group in groups} for groups in jobs]
    count = Counter(group.key for groups in jobs for group in groups)
    keys = [key for key, number in count.items() if not only_common or number > len(jobs) / 2]
    found: list[tuple[float, Outlier]] = []
    for metric in GROUP_METRICS:
        totals = [sum(getattr(group, metric) for group in groups) for groups in jobs]
        least = LEAST_SHARE * statistics.median(totals) if totals else 0.0
        for key in keys:
            values = [float(getattr(table.get(key, GroupUse(key)), metric)) for table in tables]
            unlike = find_outliers(metric, values, method, least, key)
            found += [(abs(it.value - it.usual) / (least or 1.0), it) for it in unlike]
    return [it for _, it in sorted(found, key=lambda pair: -pair[0])]


def find_causes(outlier: Outlier, jobs: Sequence[Sequence[GroupUse]]) -> list[Cause]:
    """Return the groups of processes that most of a difference in CPU time comes from."""
    if outlier.metric != "cpu_seconds":
        return []
    changes = _find_changes(outlier, jobs, "cpu_seconds")
    return _choose(changes, sum(value - usual for _, value, usual in changes), "cpu_seconds")


def find_longer(outlier: Outlier, jobs: Sequence[Sequence[GroupUse]]) -> list[Cause]:
    """Return the operations that most of a difference in duration comes from: those that took longer, or
    shorter, from their first start to their last end. Processes without a tag are no operation."""
    if outlier.metric != "duration_seconds":
        return []
    tagged = [[group for group in groups if any(group.key)] for groups in jobs]
    changes = _find_changes(outlier, tagged, "span_seconds")
    return _choose(changes, outlier.value - outlier.usual, "span_seconds")


_Change = tuple[tuple[str, ...], float, float]  # group, value, usual value


def _find_changes(outlier: Outlier, jobs: Sequence[Sequence[GroupUse]], metric: str) -> list[_Change]:
    """Each group with its value in the job and in the others, 0 of a group that one lacks. Jobs without
    records of their processes are left out."""
    tables = [{group.key: float(getattr(group, metric)) for group in groups} for groups in jobs]
    own, others = tables[outlier.job], [it for at, it in enumerate(tables) if at != outlier.job and it]
    if not own or not others:
        return []
    keys = dict.fromkeys([*own, *(key for table in others for key in table)])
    return [
        (key, own.get(key, 0.0), statistics.median(table.get(key, 0.0) for table in others)) for key in keys
    ]


def _choose(changes: Sequence[_Change], whole: float, metric: str) -> list[Cause]:
    if not whole:
        return []
    found = [Cause(key, metric, value, usual, (value - usual) / whole) for key, value, usual in changes]
    chosen = [it for it in found if it.share >= _LEAST_OF_CAUSE]
    return sorted(chosen, key=lambda it: -it.share)[:_MOST_CAUSES]
