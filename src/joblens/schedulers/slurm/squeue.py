"""The queue from `squeue --Format`, with a random mark after each field.

Without a size the field is printed completely, followed by the text after the colon (squeue(1), since
20.11). An unpredictable mark separates fields and rows whatever a job's name contains.
"""

from __future__ import annotations

from joblens.core.errors import MalformedError
from joblens.record.job import Resources
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.nodelist import expand
from joblens.schedulers.parse_result import ParseResult, parse_or, whole
from joblens.schedulers.slurm.fields import State, known, parse_limit, parse_state, parse_time
from joblens.schedulers.slurm.states import ENDED, WAITING
from joblens.schedulers.tres import parse_gres_gpus, resources

FIELDS = (
    "JobID Cluster ArrayJobID ArrayTaskID HetJobID HetJobOffset UserName UserID Account Partition QOS State"
    " Reason SubmitTime EligibleTime StartTime EndTime TimeLimit NodeList NumNodes NumCPUs tres-alloc"
    " tres-per-job tres-per-node RestartCnt WorkDir Command Name"
).split()


def squeue_format(mark: str) -> str:
    """The mark must not begin with a digit, blank or sign, which squeue would interpret."""
    return ",".join(f"{name}:{mark}" for name in FIELDS)


def parse_squeue(text: str, mark: str) -> ParseResult:
    *values, rest = text.split(mark)
    if rest.strip() or len(values) % len(FIELDS):
        raise MalformedError("squeue", "truncated output, or unexpected fields")
    jobs: list[BatchJob] = []
    skipped = 0
    for start in range(0, len(values), len(FIELDS)):
        row = dict(zip(FIELDS, values[start : start + len(FIELDS)], strict=True))
        if whole(row["JobID"]) is None:
            skipped += 1
        else:
            jobs.append(_job(row))
    return ParseResult(jobs, skipped)


def _job(row: dict[str, str]) -> BatchJob:
    state = parse_or(parse_state, row["State"], State("")).word
    waits = state in WAITING
    has_ended = state in ENDED or state == "COMPLETING"  # before, EndTime is start plus time limit
    task, offset = known(row["ArrayTaskID"]), known(row["HetJobOffset"])
    tres = parse_or(resources, row["tres-alloc"], Resources())  # for a pending job: what it requests
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
        submit=parse_or(parse_time, row["SubmitTime"], None),
        eligible=parse_or(parse_time, row["EligibleTime"], None),
        start=None if waits else parse_or(parse_time, row["StartTime"], None),
        end=parse_or(parse_time, row["EndTime"], None) if has_ended else None,
        time_limit_seconds=parse_or(parse_limit, row["TimeLimit"], None),
        nodes=parse_or(expand, row["NodeList"], ()),
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
