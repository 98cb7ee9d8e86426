"""From what a batch system reports of a job to the facts and the end that a summary starts from."""

from __future__ import annotations

from typing import Any, TypeVar

from joblens.core.secrets import mask_secret
from joblens.record.job import JobEnd, JobFacts, Totals
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.listing import Identity
from joblens.store.lake.columns import storable

INTERVAL = 1.0  # seconds between two samples, where these do not say it
_Value = TypeVar("_Value")
_KEPT = (
    "cluster user uid name folder account partition qos reason submit eligible time_limit_seconds "
    "array_job array_task het_job het_offset restarts"
).split()


def identity(job: BatchJob) -> Identity:
    """Return the identity of this run: a requeued job has several."""
    return storable(job.cluster), storable(job.id), start_of(job)


def start_of(job: BatchJob) -> float:
    """Return the start that a record needs. For a job that never started it is the end."""
    if job.start is not None and (job.end is None or job.start <= job.end):
        return float(job.start)
    for moment in (job.end, job.start, job.submit):
        if moment is not None:
            return float(moment)
    return 0.0


def never_started(job: BatchJob) -> bool:
    """One that had nodes did, though a clock that was set back may say that it began after its end."""
    return job.start is None or (job.end is not None and job.start > job.end and not job.nodes)


def facts_of(job: BatchJob, interval: float = INTERVAL) -> JobFacts:
    """Return the facts at the start."""
    return JobFacts(
        **{name: _storable(getattr(job, name)) for name in _KEPT},
        id=storable(job.id),
        command=storable(mask_secret(job.command)),
        source=job.scheduler,
        node=job.nodes[0] if job.nodes else "",
        nodes=list(job.nodes),
        tags={},
        start=start_of(job),
        state=job.state,  # of one that runs; of one that has ended its end says it
        interval=interval,
        cores=first(job.allocated.cores, job.asked.cores),
        memory=first(job.allocated.memory_bytes, job.asked.memory_bytes),
        gpus_asked=first(job.allocated.gpus, job.asked.gpus),
        asked_nodes=first(job.asked.nodes, job.allocated.nodes),
        tres_asked=storable(job.asked.tres),
        tres_allocated=storable(job.allocated.tres),
    )


def _storable(value: Any) -> Any:
    return storable(value) if isinstance(value, str) else value


def end_of(job: BatchJob, problems: list[str]) -> JobEnd:
    """How it ended."""
    start = start_of(job)
    return JobEnd(
        start=start,
        end=max(float(job.end) if job.end is not None else start, start),
        exit_code=job.exit_code,
        signal=job.signal,
        state=job.state,
        problems=problems,
        totals=Totals(job.user_seconds, job.system_seconds, job.cpu_seconds),
        steps=[step.replace(name=storable(step.name)) for step in job.steps],
    )


def first(*values: _Value | None) -> _Value | None:
    """Return the first that is known."""
    return next((value for value in values if value is not None), None)
