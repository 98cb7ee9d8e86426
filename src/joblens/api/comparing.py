"""Stored jobs compared with each other, and those that are unlike the others, with the causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from joblens.analysis.comparison import Comparison, compare
from joblens.analysis.outliers import (
    LEAST_JOBS,
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
from joblens.core.errors import UsageError
from joblens.core.named_tuple import NamedTuple
from joblens.store.catalog.listing import unknown

if TYPE_CHECKING:
    from joblens.api.store import Store
    from joblens.record.report import JobRecord

OPERATION, PROGRAM, PROCESS = ("tags",), ("name",), ("command",)
LEVELS = {"jobs": (), "operations": OPERATION, "programs": PROGRAM, "processes": PROCESS}
_MOST_JOBS = 1000


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

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        names = name_jobs(self.jobs)

        def plain(it: Outlier) -> dict[str, Any]:
            found = {**it._asdict(), "job": names[it.job], "group": list(it.group), "ratio": it.ratio}
            return found | {"score": it.score if abs(it.score) < 1e300 else None}

        return {
            "jobs": plain_jobs(self.jobs),
            "method": self.method,
            "threshold": METHODS[self.method][1],
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


def _check_distinct(records: Sequence[JobRecord]) -> None:
    """Raises UsageError."""
    runs = Counter((it.job.cluster, it.job.id, it.job.start) for it in records)
    for (_, id, _), times in runs.items():
        if times > 1:
            raise UsageError(f"job {id} is named {times} times; name each job once")


def compare_jobs(store: Store, records: Sequence[JobRecord], first: int = 1) -> Comparison:
    """Compare jobs; the first so many are runs of one group. Raises UsageError."""
    if not 0 < first < len(records):
        raise UsageError("a comparison needs two jobs")
    _check_distinct(records)
    operations, programs = ([store.end_groups(it, by) for it in records] for by in (OPERATION, PROGRAM))
    return compare(records, operations, programs, first)


def find_unusual(
    store: Store, records: Sequence[JobRecord], level: str = "jobs", method: str = "modified-z"
) -> Outliers:
    """Find jobs, or parts of them, that are unlike those of the others. Raises UsageError."""
    if level not in LEVELS:
        raise unknown("level", level, LEVELS)
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if not LEAST_JOBS <= len(records) <= _MOST_JOBS:
        raise UsageError(
            f"outliers are found among {LEAST_JOBS} to {_MOST_JOBS} jobs, and not {len(records)}"
        )
    _check_distinct(records)
    jobs = list(records)
    if level == "jobs":
        return Outliers(jobs, method, _unusual_jobs(store, jobs, method))
    groups = [store.end_groups(it, LEVELS[level]) for it in jobs]
    found = find_group_outliers(groups, method, only_common=level == "processes")
    return Outliers(jobs, method, [Explained(it) for it in found])


def _unusual_jobs(store: Store, jobs: list[JobRecord], method: str) -> list[Explained]:
    found = [it for name in METRICS for it in find_outliers(name, _values(jobs, name), method)]
    if not found:
        return []
    symptoms = [it for name in SYMPTOMS for it in find_outliers(name, _values(jobs, name), method)]
    operations, programs = ([store.end_groups(it, by) for it in jobs] for by in (OPERATION, PROGRAM))
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
