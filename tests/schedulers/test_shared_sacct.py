"""Output of sacct and scontrol on a production cluster: data that is not part of this repository."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from joblens.schedulers.nodelist import compress, expand
from joblens.schedulers.slurm.sacct import parse_sacct
from joblens.schedulers.slurm.scontrol import parse_scontrol
from joblens.schedulers.tres import parse_tres, render_tres

SHARED = Path(os.environ.get("JOBLENS_SHARED", Path(__file__).parents[3] / "shared")) / "data/sonar/slurm"
pytestmark = pytest.mark.skipif(
    not SHARED.exists(), reason="the Slurm data from NordicHPC/sonar are not on this machine"
)
# As sonar asks for them; the files have no header.
COLUMNS = (
    "JobIDRaw,JobID,User,Account,State,Start,End,AveCPU,AveDiskRead,AveDiskWrite,AveRSS,AveVMSize,ElapsedRaw,ExitCode,"
    "Layout,MaxRSS,MaxVMSize,MinCPU,ReqCPUS,ReqMem,ReqNodes,Reservation,Submit,Suspended,SystemCPU,TimelimitRaw,"
    "UserCPU,NodeList,Partition,AllocTRES,Priority,JobName"
).split(",")
ZONE = timezone(timedelta(hours=2))


def test_sacct() -> None:
    """Every row is a job or a step, with what sonar itself found in it."""
    told = parse_sacct((SHARED / "sacct_output.txt").read_text(), columns=COLUMNS, zone=ZONE)
    sonar = json.loads((SHARED / "sonar_sacct_output.txt").read_text())["data"]["attributes"]["slurm_jobs"]
    expected = {(str(it["job_id"]), it.get("job_step", "")): it for it in sonar}
    found = {(job.id, ""): (job.state, job.name, job.start, job.end) for job in told.jobs}
    for job in told.jobs:
        found |= {(job.id, step.id): (step.state, step.name, step.start, step.end) for step in job.steps}
    assert told.skipped == 0
    assert found.keys() == expected.keys()
    for key, (state, name, start, end) in found.items():
        other = expected[key]
        assert (state, name) == (other["job_state"].partition(" by ")[0], other["job_name"])
        times = [
            datetime.fromisoformat(other[it]).timestamp() if it in other else None
            for it in ("start_time", "end_time")
        ]
        assert [start, end] == times


def test_sacct_values() -> None:
    """One job by hand: 6 cores and 10000M for 400 minutes; its CPU time."""
    told = parse_sacct((SHARED / "sacct-output.txt").read_text(), columns=COLUMNS, zone=ZONE)
    job = next(job for job in told.jobs if job.id == "973821")
    assert (job.state, job.time_limit_seconds, job.nodes) == ("COMPLETED", 24_000.0, ("c1-28",))
    assert (job.user_seconds, job.system_seconds) == (39_993.0, 1373.824)
    assert (job.asked.memory_bytes, job.asked.cores, job.allocated.cores) == (10_000 << 20, 6.0, 6.0)
    assert [step.id for step in job.steps] == ["batch", "extern", "0"]
    assert job.steps[2].memory_peak_bytes == 10_121_984 << 10


@pytest.mark.parametrize("name", ["scontrol_resource1.txt", "scontrol_resource2.txt"])
def test_scontrol(name: str) -> None:
    """One with `ReqTRES`, one with `TRES`: the same is asked for."""
    told = parse_scontrol((SHARED / name).read_text())
    assert told.skipped == 0
    job = told.jobs[0]
    assert (job.id, job.user, job.state, job.reason) == ("1879824", "uc-10000", "PENDING", "Priority")
    assert (job.asked.cores, job.asked.memory_bytes, job.asked.gpus) == (8.0, 120 << 30, 1)
    assert (job.time_limit_seconds, job.start) == (86_400.0, None)


def test_node_lists() -> None:
    """Node lists of a whole cluster, parsed and rendered."""
    lists = [line.split("|")[0] for line in (SHARED / "node_output.txt").read_text().splitlines()]
    assert [compress(expand(text)) for text in lists] == lists


def test_tres() -> None:
    texts = {line.split("|")[29] for line in (SHARED / "sacct_output.txt").read_text().splitlines()} - {""}
    assert len(texts) > 5
    assert {render_tres(parse_tres(text)) for text in texts} == texts
