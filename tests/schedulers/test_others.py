"""Flux and PBS, on answers that are kept here; and which scheduler it is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from joblens.errors import ConfigError, OutsideError
from joblens.schedulers import open_scheduler
from joblens.schedulers.facts import JobFacts, Resources
from joblens.schedulers.flux import f58, parse_flux
from joblens.schedulers.pbs import parse_pbs

from .recording import RECORDED

FLUX, PBS = RECORDED / "flux-0.88", RECORDED / "pbs/qstat.json"
LIVE, ENDED = FLUX / "live.json", FLUX / "ended.json"
GIB = 1 << 30


def local(hour: int, minute: int, second: int) -> float:
    return time.mktime((2022, 10, 4, hour, minute, second, 0, 0, -1))


def answering(folder: Path, name: str, live: Path, ended: Path) -> None:
    script = folder / name
    choice = f'case "$*" in *inactive*|-x*) exec cat {ended};; esac'
    script.write_text(f'#!/bin/sh\necho "$0 $*" >> {folder}/asked\n{choice}\nexec cat {live}\n')
    script.chmod(0o755)


def flux_job(name: str) -> JobFacts:
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
    assert job == after._replace(state="RUNNING", end=None, exit_code=None)


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
    """With why, where Flux tells that."""
    waits = [flux_job(name) for name in ("waits", "held", "depends")]
    assert [(job.state, job.reason, job.start) for job in waits] == [
        ("PENDING", "", None),
        ("PENDING", "held", None),
        ("PENDING", "depends:after-success=ƒC2MuGrB", None),
    ]
    assert waits[0].asked == Resources(nodes=1, cores=2)


def test_flux_gpus() -> None:
    """As sched-simple tells them, on how many nodes whatever."""
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


def test_pbs() -> None:
    """One that runs on two nodes, one task of an array, and a name that looks like a number."""
    told = parse_pbs(PBS.read_text())
    assert told.skipped == 1
    job, array, task, killed = told.jobs
    assert (job.id, job.name, job.user, job.account, job.cluster) == (
        "1008.head",
        "123",
        "userA",
        "physics",
        "head",
    )
    assert (job.state, job.start, job.end, job.restarts) == ("RUNNING", local(21, 23, 33), None, 1)
    assert (job.nodes, job.time_limit_seconds, job.folder) == (
        ("n24", "n21"),
        360_000.0,
        "/home/userA/a folder",
    )
    assert job.asked == Resources(2, 4, 8 * GIB, 1, "2:ncpus=2:mem=4gb")
    assert job.allocated[:4] == (2, 4.0, 8 * GIB, 1)
    assert (array.state, array.array_job, array.array_task, array.start) == ("BEGUN", "1009", "[2-9]", None)
    assert (task.state, task.shown_id, task.exit_code, task.end) == ("EXPIRED", "1009_1", 3, local(21, 25, 0))
    assert (killed.exit_code, killed.signal, killed.end) == (0, 15, local(21, 24, 7))


def test_pbs_without_jobs() -> None:
    assert parse_pbs("") == parse_pbs('{"timestamp": 1, "pbs_version": "20"}')


def test_found_by_what_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name: the first that is there. None at all is none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert open_scheduler() is None
    names = []
    for command in ("qstat", "flux", "squeue"):
        answering(tmp_path, command, PBS, PBS)
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
        ("pbs", "qstat", PBS, PBS, "-t -f -F json"),
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
    assert len(scheduler.live()) == {"flux": 5, "pbs": 4}[name]
    calls = (tmp_path / "asked").read_text().splitlines()
    assert [call.partition(" ")[2] for call in calls] == [asked]
    ends = sorted(job.end for job in scheduler.ended(0, 1 << 33) if job.end)
    assert len(ends) == {"flux": 13, "pbs": 2}[name]
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
