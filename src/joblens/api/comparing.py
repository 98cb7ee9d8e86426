"""Stored jobs compared with each other, and those that are unlike the others, with the causes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from joblens.analysis.comparison import STRETCHES, Comparison, compare
from joblens.analysis.outliers import (
    LEAST_DIFFERENCE,
    LEAST_JOBS,
    MAHALANOBIS,
    METHODS,
    METRICS,
    SYMPTOMS,
    Cause,
    Outlier,
    find_causes,
    find_group_outliers,
    find_longer,
    find_outliers,
)
from joblens.core.errors import JoblensError, UsageError
from joblens.core.named_tuple import NamedTuple
from joblens.store.catalog.listing import make_filter, unknown

if TYPE_CHECKING:
    from joblens.api.source import JobSource
    from joblens.record.report import JobRecord, Judgement, Point
    from joblens.store.catalog.listing import JobFilter
    from joblens.store.end_groups import GroupUse

OPERATION, PROGRAM, PROCESS = ("tags",), ("name",), ("command",)
LEVELS = {"jobs": (), "operations": OPERATION, "programs": PROGRAM, "processes": PROCESS, "threads": ()}
ALL_METHODS = (*METHODS, MAHALANOBIS)
MOST_JOBS = 1000
_MOST_SHOWN = 3  # metrics of a job that is unlike the others in none alone
_RECORDED = {"operations": "processes", "programs": "processes"}


class Explained(NamedTuple):
    """An outlier, the operations and programs that it comes from, and what else was unusual in its job."""

    outlier: Outlier
    operations: Sequence[Cause] = ()
    programs: Sequence[Cause] = ()
    symptoms: Sequence[Outlier] = ()


class Outliers(NamedTuple):
    jobs: list[JobRecord]
    method: str
    found: list[Explained]
    threshold: float  # of the score
    left_out: int = 0  # jobs without exact records of what is compared
    distances: Sequence[float] = ()  # of each job from the others, by mahalanobis

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        names = name_jobs(self.jobs)

        def plain(it: Outlier) -> Any:
            found = {**it._asdict(), "job": names[it.job], "group": list(it.group), "ratio": it.ratio}
            return found | {"score": it.score if abs(it.score) < 1e300 else None}

        return {
            "jobs": plain_jobs(self.jobs),
            "method": self.method,
            "threshold": self.threshold,
            "left_out": self.left_out,
            "distances": dict(zip(names, self.distances)),
            "outliers": [
                {
                    **plain(it.outlier),
                    "operations": [cause._asdict() for cause in it.operations],
                    "programs": [cause._asdict() for cause in it.programs],
                    "symptoms": [
                        {**plain(found), "meaning": SYMPTOMS[found.metric]} for found in it.symptoms
                    ],
                }
                for it in self.found
            ],
        }


OUTLIER_COLUMNS = (
    "job", "group", "metric", "value", "usual", "ratio", "score", "operations", "programs",
)  # fmt: skip


def outlier_rows(found: Outliers) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each value that is unlike the others; the last columns are lists."""
    names = name_jobs(found.jobs)
    for it, operations, programs, _ in found.found:
        causes = ([" ".join(cause.group) for cause in some] for some in (operations, programs))
        score = it.score if abs(it.score) < 1e300 else None
        yield (names[it.job], " ".join(it.group), it.metric, it.value, it.usual, it.ratio, score, *causes)


JUDGED_COLUMNS = ("job", "model", "unusual", "kind", "group", "metric", "value", "usual", "ratio", "score")


def judged_rows(jobs: Sequence[str], judged: Sequence[Judgement]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each figure of a job that is unlike its model's, ranked: the job's own first."""
    for job, it in zip(jobs, judged):
        for part in (*it.deviations, *it.causes):
            figures = (part.value, part.usual, part.ratio, part.score)
            yield (job, it.model, it.unusual, part.kind, part.group, part.metric, *figures)


def name_jobs(records: Sequence[JobRecord]) -> list[str]:
    """Name each job by its id; by ID@CLUSTER if others have it too, with its start if these are its runs."""
    ids = [it.job.shown_id for it in records]
    full = [f"{it.job.shown_id}@{it.job.cluster}" for it in records]
    same_id, same_job = Counter(ids), Counter(full)
    return [
        id if same_id[id] == 1 else name if same_job[name] == 1 else f"{name} {_time(it.job.start)}"
        for id, name, it in zip(ids, full, records)
    ]


def plain_jobs(records: Sequence[JobRecord]) -> list[dict[str, Any]]:
    """As JSON has them: `job` is the name by which the rest refers to one."""
    return [
        {"job": name, "id": it.job.shown_id, "cluster": it.job.cluster, "start": it.job.start}
        for name, it in zip(name_jobs(records), records)
    ]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "seconds")


def check_distinct(records: Sequence[JobRecord]) -> None:
    """Raises UsageError."""
    runs = Counter((it.job.cluster, it.job.id, it.job.start) for it in records)
    for (_, id, _), times in runs.items():
        if times > 1:
            raise UsageError(f"job {id} is named {times} times; name each job once")


def load_named(source: JobSource, names: Sequence[str], runs: Sequence[str] = ()) -> list[JobRecord]:
    """Return the newest run of each, or with `runs` that of each number: one for each name, several of a
    single name, or `all`. Raises UsageError and LookupError."""
    if not runs:
        return [source.job(name) for name in names]
    if list(runs) == ["all"]:
        return [source.job(name, run) for name in names for run in range(1, len(source.runs(name)) + 1)]
    if not all(run.isascii() and run.isdigit() for run in runs):
        raise UsageError("--run takes numbers of runs, or all")
    if len(names) == 1:
        return [source.job(names[0], int(run)) for run in runs]
    if len(names) != len(runs):
        raise UsageError(f"--run takes one number for each of {len(names)} jobs, and not {len(runs)}")
    return [source.job(name, int(run)) for name, run in zip(names, runs)]


def load_filtered(source: JobSource, wanted: JobFilter) -> list[JobRecord]:
    """Return all that the filter selects, in order of their start."""
    rows = sorted(source.jobs(wanted._replace(limit=0)), key=lambda row: (row.start or 0.0, row.id))
    return [source.record_of(row) for row in rows]


def load_chosen(source: JobSource, names: Sequence[str] = (), **filters: Any) -> list[JobRecord]:
    """Return the jobs with these ids, or those that the filters select. Raises UsageError and LookupError."""
    if isinstance(names, str):
        raise UsageError(f"names is a list of ids, and not the text {names!r:.60}")
    if bool(names) == bool(filters):
        raise UsageError("name ids of jobs, or filters such as name and tags")
    return load_named(source, names) if names else load_filtered(source, make_filter(**filters))


def group_operations(store: JobSource, record: JobRecord) -> list[GroupUse]:
    """Return the operations of a job, without the numbers that EPMT gives to each of them."""
    from joblens.store.end_groups import merge_operations

    return merge_operations(store.end_groups(record, OPERATION))


def compare_jobs(store: JobSource, records: Sequence[JobRecord], first: int = 1) -> Comparison:
    """Compare jobs; the first so many are runs of one group. Raises UsageError."""
    if not 0 < first < len(records):
        raise UsageError("a comparison needs two jobs")
    check_distinct(records)
    operations = [group_operations(store, it) for it in records]
    programs = [store.end_groups(it, PROGRAM) for it in records]
    points = [it.timeline or _points_of_ends(store, it) for it in records]
    return compare(records, operations, programs, first, points)


def _points_of_ends(store: JobSource, record: JobRecord) -> list[Point]:
    """Return the timeline of a job without samples, as far as its processes tell it."""
    from joblens.analysis.series.timeline import make_points_of_ends
    from joblens.api.source import CutError
    from joblens.record.ends import EndedProcess

    try:
        table = store.end_table_of(record, EndedProcess)
    except CutError:  # `problems` of the source says so
        return []
    return make_points_of_ends(table, record.job.start, record.job.last, STRETCHES)


def judge_jobs(store: JobSource, records: Sequence[JobRecord], model: str) -> list[Judgement]:
    """Compare jobs with a reference model; nothing is stored. Raises JoblensError."""
    import time

    from joblens.analysis.reference import judge

    reference, now = store.model(model), time.time()
    return [
        judge(it, group_operations(store, it), store.end_groups(it, PROGRAM), reference, now)
        for it in records
    ]


def find_unusual(
    store: JobSource, records: Sequence[JobRecord], level: str = "jobs", method: str = "modified-z"
) -> Outliers:
    """Find jobs, or parts of them, that are unlike those of the others. Raises UsageError."""
    if level not in LEVELS:
        raise unknown("level", level, LEVELS)
    if method not in ALL_METHODS:
        raise unknown("method", method, ALL_METHODS)
    if method == MAHALANOBIS and level != "jobs":
        raise UsageError(f"{MAHALANOBIS} compares whole jobs, and not {level}")
    check_enough(method, len(records))
    if len(records) > MOST_JOBS:
        raise UsageError(f"outliers are found among at most {MOST_JOBS:,} jobs, and not {len(records):,}")
    check_distinct(records)
    jobs = list(records)
    if method == MAHALANOBIS:
        unusual, limit, away = _unlike_together(jobs)
        return Outliers(jobs, method, _explain(store, jobs, unusual, "modified-z"), limit, 0, away)
    limit = METHODS[method][1]
    if level == "jobs":
        unlike = [it for name in METRICS for it in find_outliers(name, _values(jobs, name), method)]
        return Outliers(jobs, method, _explain(store, jobs, unlike, method), limit)
    known = [(it, own) for it in jobs if (own := _groups(store, it, level))]
    if len(known) < LEAST_JOBS[method]:
        raise JoblensError(
            f"{len(known)} of {len(jobs)} jobs have exact records of their {_RECORDED.get(level, level)}, "
            f"and {method} needs {LEAST_JOBS[method]}"
        )
    found = find_group_outliers([it for _, it in known], method, only_common=level == "processes")
    chosen = [it for it, _ in known]
    return Outliers(chosen, method, [Explained(it) for it in found], limit, len(jobs) - len(chosen))


def check_enough(method: str, count: int) -> None:
    """Raises UsageError if the method can find nothing among so few jobs."""
    if count >= LEAST_JOBS[method]:
        return
    instead = (
        "modified-z needs fewer"
        if count >= LEAST_JOBS["modified-z"]
        else "joblens compare shows how they differ, and joblens model needs 3 to judge others"
    )
    raise UsageError(f"{method} needs {LEAST_JOBS[method]} jobs, and here are {count}; {instead}")


def _groups(store: JobSource, record: JobRecord, level: str) -> list[GroupUse]:
    if level == "operations":
        return group_operations(store, record)
    return store.thread_groups(record) if level == "threads" else store.end_groups(record, LEVELS[level])


def _unlike_together(jobs: Sequence[JobRecord]) -> tuple[list[Outlier], float, list[float]]:
    """Return the metrics that differ in jobs that are far away from the others, the threshold, and the
    distances of all jobs."""
    from joblens.analysis.mahalanobis import distances, threshold

    known = [name for name in METRICS if None not in _values(jobs, name)]
    if not known:
        raise UsageError("no metric is known of all of these jobs")
    values = [[float(getattr(it.used, name)) for name in known] for it in jobs]
    limit, away = threshold(len(known), len(jobs)), distances(values)
    found: list[Outlier] = []
    for number, distance in enumerate(away):
        if distance > limit:
            found += _contributions(values, known, number, distance)
    return found, limit, away


def _contributions(
    values: Sequence[Sequence[float]], names: Sequence[str], number: int, distance: float
) -> list[Outlier]:
    """Return the metrics of a job that differ by a tenth; if none does, those that differ most."""
    found = []
    for name, column in zip(names, zip(*values)):
        usual = statistics.median([*column[:number], *column[number + 1 :]])
        found.append(Outlier(number, name, column[number], usual, distance))
    much = [it for it in found if abs(it.value - it.usual) > LEAST_DIFFERENCE * abs(it.usual)]
    found.sort(key=lambda it: -abs(it.value - it.usual) / (abs(it.usual) or 1.0))
    return much or found[:_MOST_SHOWN]


def name_unlike(jobs: Sequence[JobRecord]) -> list[str]:
    """Name the jobs that are unlike the others in one of the main metrics."""
    found = {it.job for name in METRICS for it in find_outliers(name, _values(jobs, name), "modified-z")}
    names = name_jobs(jobs)
    return [names[job] for job in sorted(found)]


def _explain(
    store: JobSource, jobs: list[JobRecord], found: Sequence[Outlier], method: str
) -> list[Explained]:
    if not found:
        return []
    symptoms = [
        it for name in SYMPTOMS for it in find_outliers(name, _values(jobs, name), method, explains=True)
    ]
    operations = [group_operations(store, it) for it in jobs]
    programs = [store.end_groups(it, PROGRAM) for it in jobs]
    return [
        Explained(
            it,
            find_longer(it, operations) or find_causes(it, operations),
            find_causes(it, programs),
            [other for other in symptoms if other.job == it.job and other.value > other.usual],
        )
        for it in found
    ]


def _values(jobs: Sequence[JobRecord], name: str) -> list[float | None]:
    return [getattr(it.used, name) for it in jobs]
