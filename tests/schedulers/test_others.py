"""Flux and PBS, on answers that are kept here; and which scheduler it is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from joblens.core.errors import ConfigError, OutsideError
from joblens.record.job import Resources
from joblens.schedulers import open_scheduler
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.flux import f58, parse_flux
from joblens.schedulers.parse_result import ParseResult
from joblens.schedulers.pbs import parse_pbs

from .recording import RECORDED

FLUX, PBS = RECORDED / "flux-0.88", RECORDED / "pbs-23.06"
LIVE, ENDED = FLUX / "live.json", FLUX / "ended.json"
QUEUED, ENDED_IN_PBS = PBS / "live.json", PBS / "ended.json"
MIB = 1 << 20
OTHER_PBS = """{"Jobs": {"no job": {"job_state": "R"}, "1010.head": {
    "Job_Name": 123, "Job_Owner": "userB@login.example.com", "job_state": "X", "Exit_status": 3,
    "stime": "Mon Nov 16 07:25:00 2026", "resources_used": {"walltime": "00:01:00"},
    "exec_host": "n24/0*2+n21/0*2",
    "exec_vnode": "(n24:ncpus=2:mem=4194304kb:ngpus=1)+(n21:ncpus=2:mem=4194304kb)"}}}"""


def at(minute: int, second: int) -> float:
    """In PBS times are those of here."""
    return time.mktime((2026, 11, 16, 7, minute, second, 0, 0, -1))


def answering(folder: Path, name: str, live: Path, ended: Path) -> None:
    script = folder / name
    choice = f'case "$*" in *inactive*|-x*) exec cat {ended};; esac'
    script.write_text(f'#!/bin/sh\necho "$0 $*" >> {folder}/asked\n{choice}\nexec cat {live}\n')
    script.chmod(0o755)


def flux_job(name: str) -> BatchJob:
    jobs = [*parse_flux(LIVE.read_text()).jobs, *parse_flux(ENDED.read_text()).jobs]
    (found,) = (job for job in jobs if job.name == name)
    return found


def test_flux() -> None:
    """One that runs, with the id that its processes are found under."""
    job = flux_job("runs")
    assert (job.id, job.user, job.uid, job.account, job.partition, job.folder) == (
        "fC2MuGrB", "userA", 61001, "physics", "", "/home/userA",
    )  # fmt: skip
    assert (job.state, job.submit, job.start, job.end) == (
        "RUNNING",
        1794812070.2988272,
        1794812070.3269322,
        None,
    )
    assert (job.time_limit_seconds, job.nodes) == (3600.0, ("c1", "c2", "c3"))
    assert job.asked == job.allocated == Resources(nodes=3, cores=12.0)
    assert parse_flux((FLUX / "one.json").read_text()).jobs == [job]


def test_flux_from_inside() -> None:
    """A batch job is an instance of its own, and is asked about at the one above."""
    (job,) = parse_flux((FLUX / "batch_from_inside.json").read_text()).jobs
    after = flux_job("batch")
    assert (job.state, after.state, after.end) == ("RUNNING", "COMPLETED", 1794812067.8023396)
    assert job == after.replace(state="RUNNING", end=None, exit_code=None)


def test_flux_ends() -> None:
    """Ran into its limit; cancelled while it ran and before; killed by a signal; no such program; failed."""
    names = ("late", "cancelled", "never", "killed", "missing", "failed")
    late, cancelled, never, killed, missing, failed = map(flux_job, names)
    assert (late.state, late.exit_code, late.reason) == (
        "TIMEOUT",
        142,
        "timeout: resource allocation expired",
    )
    assert (late.nodes, late.end) == (("c1", "c2"), 1794812055.1923237)
    assert (cancelled.state, cancelled.exit_code, cancelled.reason) == ("CANCELLED", 143, "cancel")
    assert (never.state, never.exit_code, never.signal, never.start) == ("CANCELLED", None, None, None)
    assert (never.end, never.nodes, never.allocated) == (1794812073.4309406, (), Resources())
    assert (killed.state, killed.exit_code, killed.signal) == ("FAILED", 137, None)
    assert missing.reason.startswith("exec: task 0 (host c1): start failed: /no/such/program")
    assert (failed.state, failed.exit_code, failed.reason) == ("FAILED", 3, "")


def test_flux_waits() -> None:
    """With the reason, if Flux reports one."""
    waits = [flux_job(name) for name in ("waits", "held", "depends")]
    assert [(job.state, job.reason, job.start) for job in waits] == [
        ("PENDING", "", None),
        ("PENDING", "held", None),
        ("PENDING", "depends:after-success=ƒC2MuGrB", None),
    ]
    assert waits[0].asked == Resources(nodes=1, cores=2)


def test_flux_gpus() -> None:
    """As sched-simple reports them, on any number of nodes."""
    assert flux_job("gpu").allocated.gpus == 1
    job = '{"id": 1, "t_run": 1, "annotations": {"sched": {"resource_summary": "%s"}}}'
    summary = "rank[0-1]/core[0-3],gpu[0-2] rank2/core0 rank3/core0,gpu7"
    assert [parse_flux(job % it).jobs[0].allocated.gpus for it in (summary, "rank[/gpu", "")] == [
        7,
        None,
        None,
    ]


def test_flux_names() -> None:
    """Whatever a job is called, it is one job."""
    found = {job.name for job in parse_flux(ENDED.read_text()).jobs}
    assert 'bad | "name"\n\'x\' ünï\t\\ {"state":"RUN"}' in found


def test_flux_signal() -> None:
    """The job's own shell was killed: then it is a signal, and not an exit code that stands for one."""
    (job,) = parse_flux('{"id": 1, "state": "INACTIVE", "returncode": -9, "t_run": 1, "t_cleanup": 2}').jobs
    assert (job.exit_code, job.signal) == (None, 9)


def test_f58() -> None:
    """As flux-core's own tests have it."""
    numbers = (0, 57, 65535, 6787342413402046, 6731191091817518, (1 << 64) - 1)
    assert [f58(number) for number in numbers] == [
        "f1",
        "fz",
        "fLUv",
        "fuzzybunny",
        "fuZZybuNNy",
        "fjpXCZedGfVQ",
    ]


def test_flux_one_alone() -> None:
    assert [job.id for job in parse_flux('{"id": 6787342413402046, "state": "RUN"}').jobs] == ["fuzzybunny"]
    assert parse_flux('{"jobs": []}').jobs == []


def pbs_jobs(path: Path) -> dict[str, BatchJob]:
    told = parse_pbs(path.read_text())
    assert told.skipped == 0
    return {job.shown_id: job for job in told.jobs}


def test_pbs() -> None:
    """One that runs on three nodes, and one that was put back and runs again."""
    jobs = pbs_jobs(QUEUED)
    job, again = jobs["12.login"], jobs["11.login"]
    assert (job.user, job.account, job.cluster, job.partition, job.name) == (
        "userA", "physics", "login", "workq", "runs",
    )  # fmt: skip
    assert (job.state, job.reason, job.submit, job.start) == ("RUNNING", "", at(25, 42), at(25, 42))
    assert (job.end, job.exit_code, job.restarts, job.time_limit_seconds) == (None, None, 0, 3600.0)
    assert (job.nodes, job.folder) == (("c1", "c2", "c3"), "/home/userA")
    assert job.command.startswith("qsub -A physics -N runs -l select=2:ncpus=2")
    assert job.asked == Resources(3, 5, 250 * MIB, None, "2:ncpus=2:mem=100mb+1:ncpus=1:mem=50mb")
    assert job.allocated.replace(tres="") == Resources(3, 5.0, 250 * MIB, None)
    assert (again.state, again.start, again.end, again.restarts) == ("RUNNING", at(25, 42), None, 1)
    assert pbs_jobs(PBS / "one.json")["12.login"] == job


def test_pbs_waits() -> None:
    """With the reason, if PBS reports one."""
    waits = [job for job in pbs_jobs(QUEUED).values() if job.state == "PENDING"]
    assert {(job.name, job.reason) for job in waits} == {
        ("big", "Not Running: Not enough free nodes available"),
        ("held", "held (u)"),
        ("later", ""),
        ("depends", "depends on afterok:12.login@login"),
        ("warr", "held (u)"),
    }
    assert all(
        (job.start, job.end, job.nodes, job.allocated) == (None, None, (), Resources()) for job in waits
    )


def test_pbs_ends() -> None:
    """In Slurm's words: from the exit code, from what PBS itself had against the job, or from qdel."""
    jobs = {job.name: job for job in pbs_jobs(ENDED_IN_PBS).values() if job.end is not None}
    told = {name: (job.state, job.exit_code, job.signal, job.reason) for name, job in jobs.items()}
    assert told == {
        "hello": ("COMPLETED", 0, None, ""),
        "three": ("COMPLETED", 0, None, ""),
        "burn": ("COMPLETED", 0, None, ""),
        "failed": ("FAILED", 3, None, ""),
        "killed": ("FAILED", 137, None, ""),
        "missing": ("FAILED", 127, None, ""),
        "123": ("FAILED", 3, None, ""),
        "arr": ("FAILED", 3, None, ""),
        "late": ("TIMEOUT", None, None, "exceeded resource walltime"),
        "deleted": ("CANCELLED", 0, 15, "terminated by userA@login"),
        "never": ("CANCELLED", None, None, ""),
    }
    assert (jobs["three"].start, jobs["three"].end) == (at(25, 25), at(25, 32))
    assert (jobs["never"].start, jobs["never"].end) == (None, at(25, 42))


def test_pbs_arrays() -> None:
    """Each task is a job; all of them together are none."""
    live, ended = pbs_jobs(QUEUED), pbs_jobs(ENDED_IN_PBS)
    assert {id for id in live if "_" in id} == {"17_1", "17_3", "18_1", "18_2"}
    tasks = [ended[f"7_{number}"] for number in (1, 2, 3)]
    assert [(job.id, job.exit_code, job.nodes) for job in tasks] == [
        ("7[1].login", 1, ("c3",)), ("7[2].login", 2, ("c1",)), ("7[3].login", 3, ("c2",)),
    ]  # fmt: skip
    assert not any("[]" in job.id for job in (*live.values(), *ended.values()))


def test_pbs_of_other_versions() -> None:
    """Names in the form of numbers, GPUs, a missing end, and entries that are not jobs."""
    told = parse_pbs(OTHER_PBS)
    assert told.skipped == 1
    (job,) = told.jobs
    assert (job.name, job.state, job.exit_code, job.end) == ("123", "FAILED", 3, at(26, 0))
    assert job.allocated.replace(tres="") == Resources(2, 4.0, 8 << 30, 1)


def test_pbs_without_jobs() -> None:
    assert parse_pbs("") == parse_pbs((PBS / "nothing.json").read_text()) == ParseResult([])


def test_found_by_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name: the first that is there. None at all is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert open_scheduler() is None
    names = []
    for command in ("qstat", "flux", "squeue"):
        answering(tmp_path, command, QUEUED, QUEUED)
        found = open_scheduler()
        names.append(found.name if found else "")
    assert names == ["pbs", "flux", "slurm"]
    assert open_scheduler("none") is None
    with pytest.raises(ConfigError, match="slurm, flux, pbs, none"):
        open_scheduler("slrum")


@pytest.mark.parametrize(
    ("name", "command", "live", "ended", "asked"),
    [
        ("flux", "flux", LIVE, ENDED, "jobs -A --json --count=0 --filter=pending,running"),
        ("pbs", "qstat", QUEUED, ENDED_IN_PBS, "-t -f -F json"),
    ],
)
def test_asked_in_one_call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    command: str,
    live: Path,
    ended: Path,
    asked: str,
) -> None:
    """A command in its place answers as recorded; what ended is chosen by its end."""
    answering(tmp_path, command, live, ended)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scheduler = open_scheduler(name)
    assert scheduler
    assert len(scheduler.live()) == {"flux": 5, "pbs": 10}[name]
    calls = (tmp_path / "asked").read_text().splitlines()
    assert [call.partition(" ")[2] for call in calls] == [asked]
    ends = sorted(job.end for job in scheduler.ended(0, 1 << 33) if job.end)
    assert len(ends) == {"flux": 13, "pbs": 13}[name]
    assert [job.end for job in scheduler.ended(ends[0], ends[0])] == ends[:1]


@pytest.mark.parametrize("name", ["slurm", "flux", "pbs"])
def test_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Asked for by name and not there: a sentence, not a stack."""
    monkeypatch.setenv("PATH", str(tmp_path))
    scheduler = open_scheduler(name)
    assert scheduler
    with pytest.raises(OutsideError, match="cannot be run: No such file"):
        scheduler.live()
    with pytest.raises(OutsideError):
        scheduler.ended(0, 1)
