"""Recorded output of Slurm 22.05 on a real cluster, in all its formats."""

from __future__ import annotations

import json
from datetime import timedelta, timezone
from typing import Any

import pytest

from joblens.core.errors import MalformedError
from joblens.record.job import Resources
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.parse_result import ParseResult
from joblens.schedulers.slurm.json_output import parse_sacct_json
from joblens.schedulers.slurm.sacct import columns_of, parse_sacct
from joblens.schedulers.slurm.scontrol import parse_scontrol
from joblens.schedulers.slurm.squeue import FIELDS, parse_squeue

from .recording import HOSTILE, MARK, by_id, recorded

MIB = 1 << 20
OSLO = timezone(timedelta(hours=1))
ASKED = columns_of(["reason", "workdir", "submitline", "reqnodes"])  # 22.05 has no Restarts


def accounted() -> ParseResult:
    return parse_sacct(recorded("sacct.txt"), MARK, ASKED)


def test_squeue() -> None:
    """A running job on three nodes, from squeue."""
    told = parse_squeue(recorded("squeue.txt"), MARK)
    assert (len(told.jobs), told.skipped) == (9, 0)
    tres = "cpu=3,mem=600M,node=3,billing=3,gres/gpu=3,gres/gpu:a100=3"
    assert by_id(told)["21"] == BatchJob(
        cluster="testcl",
        id="21",
        scheduler="slurm",
        user="userA",
        uid=47001,
        partition="main",
        qos="normal",
        name="three",
        folder="/home/userA/a folder",
        command="/home/userA/job.sh",
        state="RUNNING",
        submit=1_794_800_572.0,
        eligible=1_794_800_572.0,
        start=1_794_800_603.0,
        time_limit_seconds=300.0,
        nodes=("c1", "c2", "c3"),
        asked=Resources(gpus=3),
        allocated=Resources(3, 3.0, 600 * MIB, 3, tres),
        restarts=0,
    )


def test_squeue_waiting() -> None:
    """A pending job has no start, although Slurm estimates one, and its request is what it will get."""
    jobs = by_id(parse_squeue(recorded("squeue.txt"), MARK))
    wide = jobs["29"]
    assert (wide.state, wide.reason, wide.start, wide.end, wide.nodes) == (
        "PENDING",
        "Resources",
        None,
        None,
        (),
    )
    assert (wide.asked.nodes, wide.asked.memory_bytes, wide.allocated) == (3, 1500 * MIB, Resources())
    hostile = jobs["23"]
    assert (hostile.name, hostile.user, hostile.state) == (HOSTILE, "userA", "PENDING")
    assert (hostile.time_limit_seconds, hostile.asked.gpus) == (86_400.0, 2)


def test_squeue_ids() -> None:
    """Tasks of an array and parts of a heterogeneous job run under numbers of their own."""
    jobs = by_id(parse_squeue(recorded("squeue.txt"), MARK))
    assert {shown: jobs[shown].id for shown in ("22_1", "22_2", "22_[3-6%2]", "25+0", "25+1")} == {
        "22_1": "30",
        "22_2": "31",
        "22_[3-6%2]": "22",
        "25+0": "25",
        "25+1": "26",
    }


def test_sacct() -> None:
    """That job after its end, with steps, totals and its exit code."""
    told = accounted()
    assert (len(told.jobs), told.skipped) == (16, 0)
    job = by_id(told)["21"]
    assert (job.state, job.exit_code, job.signal, job.reason) == ("FAILED", 1, None, "")
    assert (job.start, job.end, job.time_limit_seconds) == (1_794_800_603.0, 1_794_800_629.0, 300.0)
    assert (job.user_seconds, job.system_seconds) == (0.055, 0.057)
    assert job.asked == Resources(3, 3.0, 600 * MIB, 3, "billing=3,cpu=3,gres/gpu=3,mem=600M,node=3")
    assert job.command.startswith("sbatch --parsable -o /dev/null -N3 -n3")
    assert [(step.id, step.name, step.state, step.exit_code, step.tasks) for step in job.steps] == [
        ("batch", "batch", "FAILED", 1, 1),
        ("0", "sleep", "COMPLETED", 0, 3),
        ("1", "false", "FAILED", 1, 1),
    ]
    assert [step.memory_peak_bytes for step in job.steps] == [12280 << 10, 1660 << 10, None]
    assert job.steps[1].nodes == ("c1", "c2", "c3")
    assert job.steps[1].allocated.memory_bytes == 300 * MIB


def test_sacct_ends() -> None:
    """How the others ended; one that was cancelled before it ran has an end and no start."""
    told = accounted()
    jobs = by_id(told)
    ends = {
        shown: (jobs[shown].state, jobs[shown].exit_code, jobs[shown].signal) for shown in ("28", "35", "29")
    }
    assert ends == {"28": ("FAILED", 0, 9), "35": ("TIMEOUT", 0, None), "29": ("CANCELLED", 0, None)}
    assert jobs["29"].reason == "by 0"
    never = jobs["23"]
    assert (never.start, never.end, never.nodes, never.allocated) == (None, 1_794_800_644.0, (), Resources())
    assert not never.has_ended
    assert never.name == HOSTILE
    assert [(job.state, job.start, len(job.steps)) for job in told.jobs if job.id == "27"] == [
        ("REQUEUED", 1_794_800_604.0, 1),
        ("CANCELLED", 1_794_800_733.0, 1),
    ]
    assert (jobs["25+1"].id, jobs["25+1"].user_seconds) == ("26", None)  # its steps stand with the first part


def test_sacct_by_header() -> None:
    """Other columns, local time of another zone, and a name that goes on in the next line."""
    jobs = by_id(parse_sacct(recorded("sacct_header.txt"), zone=OSLO, cluster="testcl"))
    same = by_id(accounted())
    assert list(jobs) == list(same)
    for shown, job in jobs.items():
        other = same[shown]
        assert job.steps == tuple(step.replace(tasks=None) for step in other.steps)
        for field in (
            "cluster",
            "id",
            "user",
            "name",
            "state",
            "reason",
            "exit_code",
            "signal",
            "start",
            "end",
        ):
            assert getattr(job, field) == getattr(other, field)
        assert (job.nodes, job.time_limit_seconds) == (other.nodes, other.time_limit_seconds)
        assert job.asked.memory_bytes == other.asked.memory_bytes


def test_sacct_older() -> None:
    """Before 21.08 memory is reported per core or per node. `-X` has no steps and so no CPU times."""
    text = (
        "JobID|JobIDRaw|State|ReqCPUS|ReqNodes|ReqMem|ReqGRES|UserCPU|AllocCPUS|NNodes|Start|End|JobName\n"
        "7|7|COMPLETED|8|2|4000Mc|gpu:2|00:00:00|8|2|1700000000|1700000009|a|b|c\n"
        "8_1|9|COMPLETED|8|2|8Gn||00:00:00|8|2|1700000000|1700000009|\n"
        "10|10|RUNNING|1|1|16?||00:00:00|1|1|1700000000|Unknown|x\n"
    )
    told = parse_sacct(text)
    assert [job.asked.memory_bytes for job in told.jobs] == [32_000 * MIB, 16_384 * MIB, None]
    assert [job.name for job in told.jobs] == ["a|b|c", "", "x"]
    assert [job.end for job in told.jobs] == [1_700_000_009.0, 1_700_000_009.0, None]
    assert told.jobs[0].asked.gpus == 2
    assert all(job.user_seconds is None for job in told.jobs)


def test_sacct_delimiter_in_a_name() -> None:
    """If the name is in the middle, the other columns determine where it ends."""
    text = "JobID|JobName|WorkDir|State|Start\n7|a|b|/x|COMPLETED|1700000000\n7.0|p|q|/x|FAILED|1700000000\n"
    (job,) = parse_sacct(text).jobs
    assert (job.name, job.folder, job.state, job.steps[0].name) == ("a|b", "/x", "COMPLETED", "p|q")


def test_sacct_garbage_between() -> None:
    """A complaint between the rows costs only itself; steps without their job are none."""
    rows = ["sacct: error: x", "7|COMPLETED|1", "", "noise", "8.batch|FAILED|1", "9|FAILED|1"]
    told = parse_sacct("JobID|State|End\n" + "\n".join(rows) + "\n")
    assert ([job.id for job in told.jobs], told.skipped) == (["7", "9"], 3)


@pytest.mark.parametrize("header", ["", "Name|State", "JobID|JobID|State"])
def test_sacct_without_header(header: str) -> None:
    with pytest.raises(MalformedError):
        parse_sacct(header + "\n7|COMPLETED\n")


@pytest.mark.parametrize("name", ["scontrol.txt", "scontrol_oneline.txt"])
def test_scontrol(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line or many: the same jobs."""
    jobs = by_id(parse_scontrol(recorded(name), "testcl"))
    three = jobs["21"]
    assert (three.user, three.uid, three.state, three.folder) == (
        "userA",
        47001,
        "RUNNING",
        "/home/userA/a folder",
    )
    assert (three.nodes, three.time_limit_seconds, three.end) == (("c1", "c2", "c3"), 300.0, None)
    assert three.asked == Resources(3, 3.0, 600 * MIB)
    assert three.allocated.gpus == 3
    assert (jobs["22_1"].id, jobs["22_[3-6%2]"].state, jobs["25+1"].id) == ("30", "PENDING", "26")
    assert (jobs["28"].state, jobs["28"].exit_code, jobs["28"].signal) == ("FAILED", 0, 9)
    assert (jobs["18"].state, jobs["18"].reason) == ("TIMEOUT", "TimeLimit")
    assert jobs["19"].name == "x" * 900 + ' "q" ~'


def test_scontrol_forged() -> None:
    """A name or comment that contains field names makes these unknown, and none of another job."""
    jobs = by_id(parse_scontrol(recorded("scontrol.txt")))
    for id in ("23", "24"):
        assert (jobs[id].user, jobs[id].uid, jobs[id].state) == ("", None, "")
    assert (jobs["20"].user, jobs["20"].state) == ("root", "")  # `Comment=UserId=root(0) JobState=FAILED`
    assert jobs["24"].nodes == ("c1", "c2")


def test_sacct_json() -> None:
    """Equal to the text output, except exit codes, which are wrong in 22.05."""
    jobs, text = by_id(parse_sacct_json(recorded("sacct.json"))), by_id(accounted())
    assert set(jobs) == {"21", "22_1", "24", "25+1", "27", "28", "35"}
    for shown, job in jobs.items():
        other = text[shown]
        for field in (
            "cluster",
            "id",
            "name",
            "state",
            "start",
            "end",
            "nodes",
            "submit",
            "eligible",
        ):
            assert getattr(job, field) == getattr(other, field)
        assert job.asked.replace(tres="") == other.asked.replace(tres="")
        assert [step.id for step in job.steps] == [step.id for step in other.steps]
        assert [step.memory_peak_bytes or 0 for step in job.steps] == pytest.approx(
            [step.memory_peak_bytes or 0 for step in other.steps], rel=0.01
        )
    assert (jobs["28"].exit_code, jobs["28"].signal) == (0, 9)
    assert jobs["24"].exit_code is None  # 0 in JSON
    assert jobs["21"].user_seconds == pytest.approx(0.055, abs=0.002)


def test_json_numbers_not_set() -> None:
    """`infinite` and `set: false` are unknown, not zero; steps have names, numbers or objects for ids."""
    unset, infinite = (
        {"set": False, "infinite": False, "number": 0},
        {"set": True, "infinite": True, "number": 0},
    )
    ids: list[Any] = ["batch", 3, 4294967292, {"job_id": 7, "step_id": "interactive"}, "7.extern"]
    steps = [{"step": {"id": id, "name": "x"}, "state": ["COMPLETED"], "time": {"end": unset}} for id in ids]
    job = {
        "job_id": 7,
        "time": {"limit": infinite, "start": unset, "end": 0},
        "state": {"current": ["TIMEOUT"]},
    }
    (found,) = parse_sacct_json(json.dumps({"jobs": [job | {"steps": steps}]})).jobs
    assert (found.time_limit_seconds, found.start, found.end, found.state) == (None, None, None, "TIMEOUT")
    assert [step.id for step in found.steps] == ["batch", "3", "extern", "interactive", "extern"]


def test_fields_are_those_that_are_asked() -> None:
    """An answer with other fields is refused as a whole: nothing can be known of where they are."""
    text = MARK.join(["1"] * (len(FIELDS) + 1)) + MARK
    with pytest.raises(MalformedError):
        parse_squeue(text, MARK)
    assert parse_squeue("", MARK) == ParseResult([])
