"""Recorded output of newer versions of Slurm on a real cluster: equal jobs in all formats."""

from __future__ import annotations

import pytest

from joblens.record.job import Resources
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.nodelist import compress
from joblens.schedulers.parse_result import ParseResult
from joblens.schedulers.slurm.json_output import parse_sacct_json
from joblens.schedulers.slurm.sacct import columns_of, parse_sacct
from joblens.schedulers.slurm.scontrol import parse_scontrol
from joblens.schedulers.slurm.squeue import parse_squeue
from joblens.schedulers.tres import parse_tres

from .recording import HOSTILE, MARK, NEWER, by_id, recorded

MIB = 1 << 20
ODD_NAME = "x" * 300 + ' "q" ~\\ é'
every_version = pytest.mark.parametrize("version", NEWER)


def columns(version: str) -> list[str]:
    """Return the columns that this sacct has. `Restarts` was added in 24.11."""
    return columns_of("reason workdir submitline reqnodes".split() + ["restarts"] * (version >= "24.11"))


def squeue(version: str) -> ParseResult:
    return parse_squeue(recorded("squeue.txt", version), MARK)


def sacct(version: str) -> ParseResult:
    return parse_sacct(recorded("sacct.txt", version), MARK, columns(version))


@every_version
def test_squeue(version: str) -> None:
    told = squeue(version)
    jobs = by_id(told)
    assert told.skipped == 0
    assert {"4", "5_1", "5_2", "5_[3-4%2]", "6", "7", "8", "10+0", "10+1", "12", "14", "15"} <= set(jobs)
    three = jobs["4"]
    tres = "cpu=3,mem=600M,node=3,billing=3,gres/gpu=3,gres/gpu:a100=3"
    assert (three.user, three.uid, three.account, three.qos) == ("userA", 61001, "lab", "normal")
    assert (three.state, three.reason, three.end, three.folder) == (
        "RUNNING",
        "",
        None,
        "/home/userA/a folder",
    )
    assert (three.nodes, three.time_limit_seconds) == (("c1", "c2", "c3"), 300.0)
    assert (three.asked.gpus, three.allocated) == (3, Resources(3, 3.0, 600 * MIB, 3, tres))
    assert (jobs["10+1"].id, jobs["5_1"].array_job, jobs["15"].state) == ("11", "5", "SUSPENDED")


@every_version
def test_waiting(version: str) -> None:
    """Why each waits, with what it asks for; a limit that is infinite is none."""
    jobs = by_id(squeue(version))
    held, again, wide = jobs["13_[0,2,4,6,8]"], jobs["8"], jobs["12"]
    assert (held.name, held.user, held.reason) == (HOSTILE, "userC", "JobHeldUser")
    assert (held.asked.gpus, held.time_limit_seconds, held.eligible) == (2, None, None)
    assert (again.state, again.reason, again.restarts, again.start) == ("PENDING", "BeginTime", 1, None)
    assert (wide.asked.nodes, wide.time_limit_seconds, wide.nodes) == (3, 86_400.0, ())
    assert jobs["6"].time_limit_seconds == 365 * 86_400.0  # so Slurm shows a limit that is none
    assert (jobs["14"].name, jobs["14"].reason) == (ODD_NAME, "Dependency")


@every_version
def test_sacct_ends(version: str) -> None:
    told = sacct(version)
    assert told.skipped == 0
    ends = {(job.shown_id, job.state, job.exit_code, job.signal, job.reason) for job in told.jobs}
    assert {
        ("1", "OUT_OF_MEMORY", 0, 125, ""),
        ("2", "FAILED", 0, 9, ""),
        ("3", "FAILED", 3, None, ""),
        ("4", "FAILED", 1, None, ""),
        ("5_4", "COMPLETED", 0, None, ""),
        ("7", "CANCELLED", 0, None, "by 61002"),
        ("8", "REQUEUED", 0, None, ""),
        ("8", "CANCELLED", 0, None, "by 0"),
        ("9", "TIMEOUT", 0, None, ""),
        ("10+1", "COMPLETED", 0, None, ""),
        ("12", "CANCELLED", 0, None, "by 0"),
    } <= ends
    never = by_id(told)["12"]
    assert (never.start, never.nodes, never.allocated) == (None, (), Resources())
    assert all(job.start and job.end and job.end >= job.start for job in told.jobs if job is not never)


@every_version
def test_sacct_steps(version: str) -> None:
    job = by_id(sacct(version))["4"]
    assert [(step.id, step.name, step.state, step.exit_code, step.tasks) for step in job.steps] == [
        ("batch", "batch", "FAILED", 1, 1),
        ("extern", "extern", "COMPLETED", 0, 3),
        ("0", "sleep", "COMPLETED", 0, 3),
        ("1", "false", "FAILED", 1, 1),
    ]
    assert job.steps[2].nodes == ("c1", "c2", "c3")
    assert job.asked == Resources(3, 3.0, 600 * MIB, 3, "billing=3,cpu=3,gres/gpu=3,mem=600M,node=3")


@every_version
def test_both_ways(version: str) -> None:
    """Lists of nodes are written again as Slurm wrote them; of resources JSON has the amounts of the text."""
    text, told = recorded("sacct.txt", version), parse_sacct_json(recorded("sacct.json", version))
    assert "c[1-3]" in {compress(job.nodes) for job in told.jobs}
    amounts = {job.id: parse_tres(job.allocated.tres) for job in sacct(version).jobs}
    for job in told.jobs:
        assert parse_tres(job.allocated.tres) == amounts[job.id]
        assert f"{MARK}{compress(job.nodes) or 'None assigned'}{MARK}" in text


@every_version
def test_scontrol(version: str) -> None:
    """Equal to squeue, except for fields that a job's name repeats, and additionally what was requested."""
    jobs = by_id(parse_scontrol(recorded("scontrol_oneline.txt", version), "testcl"))
    told = by_id(squeue(version))
    for shown in set(told) - {"13_[0,2,4,6,8]"}:
        assert jobs[shown].replace(asked=Resources()) == told[shown].replace(asked=Resources())
    assert jobs["4"].asked == Resources(3, 3.0, 600 * MIB, 3, "cpu=3,mem=600M,node=3,billing=3,gres/gpu=3")
    assert (jobs["3"].user, jobs["3"].uid, jobs["3"].state) == ("", None, "")
    assert (jobs["1"].state, jobs["1"].signal, jobs["1"].reason) == ("OUT_OF_MEMORY", 125, "OutOfMemory")
    assert jobs["14"].name == ODD_NAME


@every_version
def test_sacct_json(version: str) -> None:
    """Equal to the text output, with microseconds and the name of the user who cancelled it."""
    told = parse_sacct_json(recorded("sacct.json", version))
    text = {(job.id, job.submit): job for job in sacct(version).jobs}
    assert [job.shown_id for job in sorted(told.jobs, key=lambda job: (int(job.id), job.submit))] == [
        *("1", "3", "4", "8", "8", "10+1", "12", "5_1"),
    ]
    for job in told.jobs:
        check_alike(job, text[job.id, job.submit])
    again = [job for job in told.jobs if job.id == "8"]
    assert {(job.state, job.reason) for job in again} == {("REQUEUED", ""), ("CANCELLED", "by root")}


def check_alike(job: BatchJob, text: BatchJob) -> None:
    other = {"uid", "reason", "asked", "allocated", "user_seconds", "system_seconds", "restarts", "steps"}
    for field in set(BatchJob.__struct_fields__) - other:
        assert getattr(job, field) == getattr(text, field), (job.id, field)
    for it, other_one in ((job.asked, text.asked), (job.allocated, text.allocated)):
        assert it.replace(tres="") == other_one.replace(tres="")
    assert job.restarts in {None, text.restarts}
    assert job.user_seconds == pytest.approx(text.user_seconds, abs=0.001)
    assert len(job.steps) == len(text.steps)
    for step, known in zip(job.steps, text.steps, strict=True):
        for field in ("id", "name", "state", "exit_code", "signal", "start", "end", "nodes", "tasks"):
            assert getattr(step, field) == getattr(known, field), (job.id, step.id, field)
        assert step.memory_peak_bytes == pytest.approx(known.memory_peak_bytes, rel=0.01)
