"""Flux and PBS, on answers that are kept here; and which scheduler it is."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from joblens.errors import ConfigError, OutsideError
from joblens.schedulers import open_scheduler
from joblens.schedulers.facts import Resources
from joblens.schedulers.flux import f58, parse_flux
from joblens.schedulers.pbs import parse_pbs

from .recording import RECORDED, by_id

FLUX, PBS = RECORDED / "flux/jobs.json", RECORDED / "pbs/qstat.json"
GIB = 1 << 30


def local(hour: int, minute: int, second: int) -> float:
    return time.mktime((2022, 10, 4, hour, minute, second, 0, 0, -1))


def answering(folder: Path, name: str, answer: Path) -> None:
    script = folder / name
    script.write_text(f'#!/bin/sh\necho "$0 $*" >> {folder}/asked\nexec cat {answer}\n')
    script.chmod(0o755)


def test_flux() -> None:
    """One that runs, with the id that its processes are found under."""
    told = parse_flux(FLUX.read_text())
    job = by_id(told)["fuzzybunny"]
    assert (job.user, job.uid, job.account, job.partition, job.name) == (
        "userA",
        47001,
        "physics",
        "batch",
        "sim",
    )
    assert (job.state, job.start, job.end, job.time_limit_seconds) == ("RUN", 1_700_000_010.5, None, 3600.0)
    assert (job.nodes, job.allocated) == (("node1", "node2"), Resources(nodes=2, cores=16.0))


def test_flux_ends() -> None:
    """Ran into its limit; cancelled before it ran; killed by a signal."""
    late, never, killed = parse_flux(FLUX.read_text()).jobs[1:]
    assert (late.state, late.exit_code, late.reason, late.end) == ("TIMEOUT", 142, "timeout", 1_700_000_301.5)
    assert late.nodes == ("asp",)
    assert (never.state, never.exit_code, never.signal, never.start) == ("CANCELED", None, None, None)
    assert never.end == 1_700_000_005.0
    assert (killed.exit_code, killed.signal) == (None, 9)


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
        answering(tmp_path, command, PBS)
        found = open_scheduler()
        names.append(found.name if found else "")
    assert names == ["pbs", "flux", "slurm"]
    assert open_scheduler("none") is None
    with pytest.raises(ConfigError, match="slurm, flux, pbs, none"):
        open_scheduler("slrum")


@pytest.mark.parametrize(
    ("name", "command", "answer", "live", "asked"),
    [
        ("flux", "flux", FLUX, 4, ["jobs -A --json --count=0 --filter=pending,running"]),
        ("pbs", "qstat", PBS, 4, ["-t -f -F json"]),
    ],
)
def test_asked_in_one_call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    command: str,
    answer: Path,
    live: int,
    asked: list[str],
) -> None:
    """A command in its place answers as recorded; what ended is chosen by its end."""
    answering(tmp_path, command, answer)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    scheduler = open_scheduler(name)
    assert scheduler
    assert len(scheduler.live()) == live
    calls = (tmp_path / "asked").read_text().splitlines()
    assert [call.partition(" ")[2] for call in calls] == asked
    ends = sorted(job.end for job in scheduler.ended(0, 1 << 33) if job.end)
    assert len(ends) == {"flux": 3, "pbs": 2}[name]
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
