"""Facts about a session's job: from the batch system while it knows the job, else from the start of the
session.

Much is imported late: the supervisor uses little of it, and its memory counts as the job's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from joblens.core.errors import JoblensError
from joblens.schedulers.command import run_command
from joblens.usermode.hosts import Allocation, flux_job

if TYPE_CHECKING:
    from joblens.schedulers.facts import BatchJob

_SECONDS = 10.0
_ENOUGH = 256 << 20  # bytes that storing and reporting take, mostly for their libraries
_ID = re.compile(r"[A-Za-z0-9ƒ][\w.+\[\]-]{0,254}")  # becomes an argument of commands; Flux writes ƒ
_TIMES = {"SLURM_TIME_FORMAT": "%s"}


def first_facts(allocation: Allocation, start: float, env: Mapping[str, str]) -> BatchJob:
    """Return the facts in the job's environment."""
    from joblens.core.host import Host
    from joblens.record.job import Resources
    from joblens.run.facts import cores, memory
    from joblens.schedulers.facts import BatchJob

    uid, host = os.getuid(), Host()
    job = BatchJob(
        allocation.cluster,
        allocation.job,
        allocation.scheduler or "usermode",
        user=host.user(uid),
        uid=uid,
        name=env.get("SLURM_JOB_NAME", "") or env.get("PBS_JOBNAME", "") or "user mode",
        account=env.get("SLURM_JOB_ACCOUNT", ""),
        partition=env.get("SLURM_JOB_PARTITION", "") or env.get("PBS_QUEUE", ""),
        folder=env.get("SLURM_SUBMIT_DIR", "") or env.get("PBS_O_WORKDIR", "") or env.get("PWD", ""),
        state="RUNNING",
        start=start,
        nodes=allocation.hosts,
    )
    if allocation.how != "here":
        return job
    return job.replace(allocated=Resources(nodes=1, cores=cores(host), memory_bytes=memory(host)))


def little_memory() -> int:
    """Return the memory limit here if it allows only sampling, but no report; else 0."""
    from joblens.core.host import Host
    from joblens.run.facts import memory

    found = memory(Host())
    return found if found is not None and found < _ENOUGH else 0


def ask_scheduler(allocation: Allocation, seconds: float = _SECONDS) -> BatchJob | None:
    """Return None without an answer. After a job's end, accounting has more than the queue."""
    if allocation.scheduler == "flux":
        return _flux(allocation, seconds)
    if allocation.scheduler == "pbs":
        return _pbs(allocation, seconds)
    if allocation.scheduler != "slurm":
        return None
    from joblens.schedulers.slurm.client import Slurm
    from joblens.schedulers.slurm.states import ENDED

    found = _scontrol(allocation, seconds)
    if found is not None and found.state not in ENDED:
        return found
    try:
        accounted = Slurm(seconds).job(allocation.job)
    except JoblensError:
        accounted = None
    return accounted or found


def ask_about(job: BatchJob) -> BatchJob | None:
    """Return what the batch system reports of a job now, None without an answer."""
    if not _ID.fullmatch(job.id):
        return None
    return ask_scheduler(Allocation(job.scheduler, job.id, job.cluster, job.nodes, ""))


def _flux(allocation: Allocation, seconds: float) -> BatchJob | None:
    """The Flux instance of a batch job does not know the job; the enclosing instance does."""
    from joblens.schedulers.flux import Flux

    within = flux_job(os.environ, "FLUX_ENCLOSING_ID") == allocation.job
    for above in (within, False) if within else (False,):
        with suppress(JoblensError):
            found = Flux(seconds).job(allocation.job, above)
            if found is not None:
                return found.replace(cluster=allocation.cluster)
    return None


def _pbs(allocation: Allocation, seconds: float) -> BatchJob | None:
    from joblens.schedulers.pbs import Pbs

    with suppress(JoblensError):
        found = Pbs(seconds).job(allocation.job)
        return found and found.replace(cluster=allocation.cluster)
    return None


def _scontrol(allocation: Allocation, seconds: float) -> BatchJob | None:
    try:
        text = run_command(["scontrol", "-o", "show", "job", allocation.job], _TIMES, seconds)
    except JoblensError:
        return None
    from joblens.schedulers.slurm.scontrol import parse_scontrol

    jobs = parse_scontrol(text, allocation.cluster).jobs
    return next((job for job in jobs if job.id == allocation.job), None)


def has_ended(allocation: Allocation) -> bool:
    """Whether the job has ended or is completing, according to the batch system."""
    if allocation.scheduler != "slurm":
        job = ask_scheduler(allocation)
        return job is not None and job.end is not None
    command = ["squeue", "--noheader", f"--jobs={allocation.job}", "--format=%T"]
    try:
        return run_command(command, {}, _SECONDS).strip() not in ("RUNNING", "SUSPENDED")
    except JoblensError as error:
        return "Invalid job id" in str(error)


def cancel_steps(allocation: Allocation, steps: Sequence[str]) -> None:
    """Send SIGTERM, so that they can clean up: scancel alone would soon send SIGKILL."""
    named = [f"{allocation.job}.{step}" for step in steps if step]
    if allocation.scheduler == "slurm" and named:
        with suppress(JoblensError):
            run_command(["scancel", "--signal=TERM", *named], {}, _SECONDS)
