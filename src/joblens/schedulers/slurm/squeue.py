"""The queue as `squeue --Format` tells it, with a mark of our own behind each field.

A size that is left out prints the field whole, and whatever follows the colon is written behind it
(squeue(1), since 20.11). A mark that nobody can guess keeps fields and rows apart whatever a job is called.
"""

from __future__ import annotations

from joblens.core.errors import MalformedError
from joblens.record.job import Resources
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.nodelist import expand
from joblens.schedulers.parse_result import Told, understood, whole
from joblens.schedulers.slurm.fields import ENDED, WAITING, State, known, parse_limit, parse_state, parse_time
from joblens.schedulers.tres import parse_gres_gpus, resources

FIELDS = (
    "JobID Cluster ArrayJobID ArrayTaskID HetJobID HetJobOffset UserName UserID Account Partition QOS State"
    " Reason SubmitTime EligibleTime StartTime EndTime TimeLimit NodeList NumNodes NumCPUs tres-alloc"
    " tres-per-job tres-per-node RestartCnt WorkDir Command Name"
).split()


def squeue_format(mark: str) -> str:
    """The mark begins with no digit, blank or sign: squeue would read these itself."""
    return ",".join(f"{name}:{mark}" for name in FIELDS)


def parse_squeue(text: str, mark: str) -> Told:
    *values, rest = text.split(mark)
    if rest.strip() or len(values) % len(FIELDS):
        raise MalformedError("squeue", "an answer that ends in the middle, or has other fields")
    jobs: list[BatchJob] = []
    skipped = 0
    for start in range(0, len(values), len(FIELDS)):
        row = dict(zip(FIELDS, values[start : start + len(FIELDS)], strict=True))
        if whole(row["JobID"]) is None:
            skipped += 1
        else:
            jobs.append(_job(row))
    return Told(jobs, skipped)


def _job(row: dict[str, str]) -> BatchJob:
    state = understood(parse_state, row["State"], State("")).word
    waits = state in WAITING
    has_ended = state in ENDED or state == "COMPLETING"  # before that it is the time by which it must have
    task, offset = known(row["ArrayTaskID"]), known(row["HetJobOffset"])
    tres = understood(resources, row["tres-alloc"], Resources())  # of one that waits: what it asks for
    asked = tres if waits else Resources()
    return BatchJob(
        cluster=known(row["Cluster"]),
        id=row["JobID"].strip(),
        scheduler="slurm",
        user=known(row["UserName"]),
        uid=whole(row["UserID"]),
        account=known(row["Account"]),
        partition=known(row["Partition"]),
        qos=known(row["QOS"]),
        name=row["Name"],
        folder=row["WorkDir"],
        command=known(row["Command"]),
        state=state,
        reason=known(row["Reason"]),
        submit=understood(parse_time, row["SubmitTime"], None),
        eligible=understood(parse_time, row["EligibleTime"], None),
        start=None if waits else understood(parse_time, row["StartTime"], None),
        end=understood(parse_time, row["EndTime"], None) if has_ended else None,
        time_limit_seconds=understood(parse_limit, row["TimeLimit"], None),
        nodes=understood(expand, row["NodeList"], ()),
        asked=asked.replace(gpus=asked.gpus or _gpus_asked(row)),
        allocated=Resources() if waits else _allocated(row, tres),
        array_job=known(row["ArrayJobID"]) if task else "",
        array_task=task if whole(task) is not None or not task else f"[{task}]",
        het_job=known(row["HetJobID"]) if offset else "",
        het_offset=offset,
        restarts=whole(row["RestartCnt"]),
    )


def _allocated(row: dict[str, str], tres: Resources) -> Resources:
    cpus = whole(row["NumCPUs"])
    return tres.replace(
        nodes=tres.nodes or whole(row["NumNodes"]) or None,
        cores=tres.cores or (float(cpus) if cpus else None),
    )


def _gpus_asked(row: dict[str, str]) -> int | None:
    of_job = parse_gres_gpus(row["tres-per-job"])
    if of_job is not None:
        return of_job
    of_node, nodes = parse_gres_gpus(row["tres-per-node"]), whole(row["NumNodes"])
    return of_node * nodes if of_node is not None and nodes else None
