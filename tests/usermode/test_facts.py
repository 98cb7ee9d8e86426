"""What Flux and PBS tell of a session's job, in place of which commands answer as those did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from joblens.usermode.facts import ask_scheduler, has_ended
from joblens.usermode.hosts import Allocation

RECORDED = Path(__file__).parents[1] / "schedulers/recorded"
FLUX = Allocation("flux", "f5TjKfTM", "fox", ("c1", "c2"), "flux")
PBS = Allocation("pbs", "12.login", "login", ("c1", "c2", "c3"), "pbs")


def answer(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Path:
    """What it was asked is in the file."""
    (folder / name).write_text(f'#!/bin/sh\necho "$*" >> {folder}/asked\n{text}\n')
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "asked"


def test_flux_from_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Flux of a batch job does not know it; that above does."""
    file = RECORDED / "flux-0.88/batch_from_inside.json"
    asked = answer(tmp_path, monkeypatch, "flux", f"exec cat {file}")
    monkeypatch.setenv("FLUX_ENCLOSING_ID", "ƒ5TjKfTM")
    job = ask_scheduler(FLUX)
    assert job
    assert (job.state, job.cluster, job.nodes) == ("RUNNING", "fox", ("c1", "c2"))
    assert not has_ended(FLUX)
    assert set(asked.read_text().splitlines()) == {"--parent jobs --json f5TjKfTM"}


def test_flux_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLUX_ENCLOSING_ID", raising=False)
    file = RECORDED / "flux-0.88/ended.json"
    asked = answer(tmp_path, monkeypatch, "flux", f"exec cat {file}")
    job = ask_scheduler(FLUX)
    assert job
    assert (job.name, job.state) == ("batch", "COMPLETED")
    assert has_ended(FLUX)
    assert set(asked.read_text().splitlines()) == {"jobs --json f5TjKfTM"}


def test_pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from a server that keeps no history, and so takes no -x."""
    file = RECORDED / "pbs-23.06/one.json"
    asked = answer(tmp_path, monkeypatch, "qstat", f"[ $1 = -x ] && exit 1\nexec cat {file}")
    job = ask_scheduler(PBS)
    assert job
    assert (job.name, job.state, job.cluster) == ("runs", "RUNNING", "login")
    assert asked.read_text().splitlines() == ["-x -f -F json 12.login", "-f -F json 12.login"]


@pytest.mark.parametrize("allocation", [FLUX, PBS])
def test_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allocation: Allocation) -> None:
    """Of a job that is not known there, or where the batch system is away."""
    for name in ("flux", "qstat"):
        answer(tmp_path, monkeypatch, name, "exit 1")
    assert ask_scheduler(allocation) is None
    assert not has_ended(allocation)
