"""What reference jobs usually use, and how another job compares with them, with a ranked root cause."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from joblens.analysis.outliers import (
    GROUP_METRICS,
    LEAST_SHARE,
    METHODS,
    METRICS,
    OF_NORMAL,
    SYMPTOMS,
    least_difference,
)
from joblens.analysis.small_samples import prediction, usual_range
from joblens.record.model import Figures, ReferenceModel, Usual
from joblens.record.report import Deviation, Job, JobRecord, Judgement
from joblens.store.end_groups import GroupUse, name_operation

METHOD = "modified-z"
LEAST_REFERENCE = 3  # jobs of a model
MOST_CAUSES = 20
SHORT_SECONDS = 1.0  # shorter jobs are start and end only
_FALSE = 0.01  # aim for the share of like jobs that are judged unusual
_KINDS = ("operation", "program")

Groups = Sequence[GroupUse]


def measure_totals(records: Sequence[JobRecord]) -> Figures:
    """Return figures of whole jobs; of a metric that one of them lacks, none."""
    found: Figures = {}
    for metric in (*METRICS, *SYMPTOMS):
        values = [getattr(it.used, metric) for it in records]
        if all(value is not None for value in values):
            found[metric] = _usual(values)
    return found


def measure_groups(jobs: Sequence[Groups]) -> dict[str, Figures]:
    """Return figures of operations or programs, 0 where one lacks it. Jobs without records do not count."""
    tables = [{group.key: group for group in groups} for groups in jobs if groups]
    keys = dict.fromkeys(key for table in tables for key in table)
    return {
        key[0]: {
            metric: _usual([float(getattr(table.get(key, GroupUse(key)), metric)) for table in tables])
            for metric in GROUP_METRICS
        }
        for key in keys
    }


def _usual(values: Sequence[float]) -> Usual:
    centre = statistics.median(values)
    spread = statistics.median(abs(value - centre) for value in values) / OF_NORMAL
    return Usual(centre, spread, min(values), max(values))


def applies(model: ReferenceModel, job: Job) -> bool:
    """Whether a new job is judged by the model: of the same name and tags, and of its owner or by staff."""
    if not model.enabled or (model.job_name is None and not model.tags):
        return False
    if not model.everyone and job.user != model.owner:
        return False
    if model.job_name is not None and not fnmatchcase(job.name, model.job_name):
        return False
    tags = job.tags or {}
    return all(tags.get(name) == value for name, value in model.tags.items())


def is_too_short(record: JobRecord, model: ReferenceModel) -> bool:
    """Whether the job says as little as the reference jobs do: all of them ended as they had begun."""
    own, usual = record.used.duration_seconds, model.totals.get("duration_seconds")
    return own is not None and usual is not None and max(own, usual.centre) < SHORT_SECONDS


def judge(
    record: JobRecord,
    operations: Groups,
    programs: Groups,
    model: ReferenceModel,
    time: float,
    *,
    is_stored: bool = False,
) -> Judgement:
    """A job is unusual if one of its main metrics is; the others only explain.

    `is_stored`: the owner of the job will see it, so it names nothing that only jobs of other users had.
    """
    count = max(len(model.jobs), LEAST_REFERENCE)
    deviations = [*_of_job(record, model.totals, count)]
    unusual = any(it.metric in METRICS for it in deviations)
    causes = []
    if unusual:
        operations = operations if _names_operations(model) else ()
        parts = zip(_KINDS, (operations, programs), (model.operations, model.programs), strict=True)
        names_gone = not is_stored or all(it.user == record.job.user for it in model.jobs)
        causes = _rank((part for part in parts if part[1] and part[2]), names_gone)
    kept = [it for it in deviations if unusual and (it.metric in METRICS or it.value > it.usual)]
    return Judgement(model.name, time, len(model.jobs), unusual, kept, causes[:MOST_CAUSES])


def _names_operations(model: ReferenceModel) -> bool:
    """Not if they have numbers of single jobs in their names, as in models of earlier versions."""
    return all(name_operation(it) == it for it in model.operations)


def _of_job(record: JobRecord, totals: Mapping[str, Usual], count: int) -> Iterator[Deviation]:
    for metric in (*METRICS, *SYMPTOMS):
        value, usual = getattr(record.used, metric), totals.get(metric)
        if (
            value is not None
            and usual is not None
            and _is_unlike(metric, value, usual, count if metric in METRICS else 0)
        ):
            yield Deviation(metric, value, usual.centre, _score(value, usual))


def _rank(parts: Iterator[tuple[str, Groups, Mapping[str, Figures]]], names_gone: bool) -> list[Deviation]:
    """Return what is unlike the reference, the largest difference first, relative to the usual job."""
    found: list[tuple[float, Deviation]] = []
    for kind, groups, usual in parts:
        table = {group.key[0]: group for group in groups}
        for metric in _metrics(usual):
            whole = _whole(metric, usual)
            for key in dict.fromkeys((*table, *(usual if names_gone else ()))):
                value = float(getattr(table.get(key, GroupUse((key,))), metric))
                reference = usual.get(key, {}).get(metric, Usual(0.0, 0.0, 0.0, 0.0))
                away = abs(value - reference.centre)
                if away >= LEAST_SHARE * whole and _is_unlike(metric, value, reference):
                    made = Deviation(metric, value, reference.centre, _score(value, reference), kind, key)
                    found.append((away / whole if whole else away, made))
    return [it for _, it in sorted(found, key=lambda pair: -pair[0])]


def _metrics(usual: Mapping[str, Figures]) -> list[str]:
    """Return those that the model knows: what it does not know is not new in a job."""
    return [metric for metric in GROUP_METRICS if all(metric in figures for figures in usual.values())]


def _whole(metric: str, usual: Mapping[str, Figures]) -> float:
    """Return what all groups together have; of memory, the largest: they need not run at the same time."""
    values = [figures[metric].centre for figures in usual.values()]
    return max(values, default=0.0) if metric == "memory_peak_bytes" else sum(values)


def _is_unlike(metric: str, value: float, usual: Usual, jobs: int = 0) -> bool:
    """By the spread of the reference, and outside of all that it has. If the number of jobs is given, also
    outside of a prediction interval: what only explains need not be."""
    if usual.low <= value <= usual.high:
        return False
    away = abs(value - usual.centre)
    if away < least_difference(metric, usual.centre) or away <= METHODS[METHOD][1] * usual.spread:
        return False
    return not jobs or away > _interval(usual, jobs)


def _interval(usual: Usual, jobs: int) -> float:
    """By the median deviation or the range of few jobs, whichever says more: one is often small by chance."""
    spread = max(usual.spread, (usual.high - usual.low) / usual_range(jobs))
    return prediction(jobs, _FALSE / len(METRICS)) * spread


def _score(value: float, usual: Usual) -> float | None:
    """None stands for infinite."""
    found = (value - usual.centre) / usual.spread if usual.spread else math.inf
    return found if math.isfinite(found) else None
