"""From what a batch system tells of a job to what a summary starts from, and to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joblens.schedulers.facts import JobFacts, Resources, Step
from joblens.store.catalog.index import Identity
from joblens.store.lake.columns import storable

INTERVAL = 1.0  # seconds between two looks, where samples do not tell
_KEPT = (
    "cluster user uid name folder command account partition qos reason submit eligible time_limit_seconds "
    "array_job array_task het_job het_offset restarts"
).split()


def identity(job: JobFacts) -> Identity:
    """Of this run of it: a job that was put back into the queue has several."""
    return storable(job.cluster), storable(job.id), start_of(job)


def start_of(job: JobFacts) -> float:
    """A record needs one. A job that never started is told by the moment at which that was clear."""
    if job.start is not None and (job.end is None or job.start <= job.end):
        return float(job.start)
    for moment in (job.end, job.start, job.submit):
        if moment is not None:
            return float(moment)
    return 0.0


def never_started(job: JobFacts) -> bool:
    """One that had nodes did, though a clock that was set back may say that it began after its end."""
    return job.start is None or (job.end is not None and job.start > job.end and not job.nodes)


def facts_of(job: JobFacts, interval: float = INTERVAL) -> dict[str, Any]:
    """What was known at the start, as joblens.analysis.summarise wants it."""
    found = {name: getattr(job, name) for name in _KEPT}
    return {
        **{name: storable(value) if isinstance(value, str) else value for name, value in found.items()},
        "id": storable(job.id),
        "shown_id": storable(job.shown_id),
        "source": job.scheduler,
        "node": job.nodes[0] if job.nodes else "",
        "nodes": list(job.nodes),
        "tags": {},
        "start": start_of(job),
        "state": job.state,  # of one that runs; of one that has ended its end says it
        "interval": interval,
        "cores": first(job.allocated.cores, job.asked.cores),
        "memory": first(job.allocated.memory_bytes, job.asked.memory_bytes),
        "gpus": None,
        "gpus_asked": first(job.allocated.gpus, job.asked.gpus),
        "asked_nodes": first(job.asked.nodes, job.allocated.nodes),
        "tres_asked": storable(job.asked.tres),
        "tres_allocated": storable(job.allocated.tres),
    }


def end_of(job: JobFacts, problems: list[str]) -> dict[str, Any]:
    """How it ended."""
    start = start_of(job)
    return {
        "start": start,
        "end": max(float(job.end) if job.end is not None else start, start),
        "exit_code": job.exit_code,
        "signal": job.signal,
        "state": job.state,
        "problems": problems,
        "totals": {
            name: value
            for name in ("user_seconds", "system_seconds", "cpu_seconds")
            if (value := getattr(job, name)) is not None
        },
        "steps": [_step(step) for step in job.steps],
    }


def _step(step: Step) -> dict[str, Any]:
    return {
        **step._asdict(),
        "name": storable(step.name),
        "nodes": list(step.nodes),
        "allocated": step.allocated._asdict(),
    }


def first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def to_plain(job: JobFacts) -> dict[str, Any]:
    """For JSON: what is unknown is left out, as most of it is of a job that waits."""
    plain = _known(job._asdict(), JobFacts._field_defaults)
    for name in ("asked", "allocated"):
        if name in plain:
            plain[name] = _known(plain[name]._asdict(), Resources._field_defaults)
    if "steps" in plain:
        plain["steps"] = [_plain_step(step) for step in job.steps]
    return plain


def _plain_step(step: Step) -> dict[str, Any]:
    plain = _known(step._asdict(), Step._field_defaults)
    if "allocated" in plain:
        plain["allocated"] = _known(plain["allocated"]._asdict(), Resources._field_defaults)
    return plain


def _known(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in defaults or value != defaults[name]}


def from_plain(plain: Any) -> JobFacts:
    """Raises ValueError, TypeError or KeyError for what to_plain did not write."""
    values = _checked(plain, JobFacts)
    values["steps"] = tuple(_step_from(step) for step in values.get("steps", ()))
    return JobFacts(**_inner(values))


def _step_from(plain: Any) -> Step:
    return Step(**_inner(_checked(plain, Step)))


def _inner(values: dict[str, Any]) -> dict[str, Any]:
    for name in ("asked", "allocated"):
        if name in values:
            values[name] = Resources(**_checked(values[name], Resources))
    if "nodes" in values:
        values["nodes"] = tuple(map(str, values["nodes"]))
    return values


def _checked(plain: Any, kind: Any) -> dict[str, Any]:
    """What a later joblens has on top is not known here, and left out."""
    if not isinstance(plain, dict):
        raise ValueError(f"no job: {plain!r:.60}")
    return {name: value for name, value in plain.items() if name in kind._fields}
