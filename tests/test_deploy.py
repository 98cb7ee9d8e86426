from __future__ import annotations

import os
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from joblens.cli.slurm import advice
from joblens.config import AttributionSettings

UNIT = Path(__file__).parents[1] / "deploy/systemd/joblens-agent.service"


def test_job_files_outlive_a_restart() -> None:
    """systemd makes the folder of job files, and does not remove it when the agent is started anew."""
    unit = ConfigParser(interpolation=None)
    unit.read_string(UNIT.read_text())
    folders = [f"/run/{name}" for name in unit["Service"]["RuntimeDirectory"].split()]
    assert AttributionSettings().job_files in folders
    assert unit["Service"]["RuntimeDirectoryPreserve"] == "yes"


def test_spool_can_be_written() -> None:
    """All of the machine is read-only for the service, but for the folder that systemd makes for it."""
    unit = ConfigParser(interpolation=None)
    unit.read_string(UNIT.read_text())
    assert unit["Service"]["ProtectSystem"] == "strict"
    assert unit["Service"]["StateDirectory"] == "joblens"  # it is told to the agent as STATE_DIRECTORY
    assert unit["Service"]["StateDirectoryMode"] == "0700"


def test_state_folders_differ() -> None:
    """Hub and agent of one machine have folders of their own: the agent's is for nobody else to read."""
    units = [ConfigParser(interpolation=None) for _ in range(2)]
    for unit, name in zip(units, ("agent", "hub")):
        unit.read_string(UNIT.with_name(f"joblens-{name}.service").read_text())
    folders = [unit["Service"]["StateDirectory"] for unit in units]
    assert len(set(folders)) == 2
    assert units[1]["Service"]["Environment"] == f"JOBLENS_HOME=/var/lib/{folders[1]}"


def test_slurm_conf_is_what_install_prints() -> None:
    """The example and the command say the same."""
    example = (UNIT.parents[1] / "slurm/slurm.conf").read_text().splitlines()
    for line in advice("/etc/slurm/joblens.d", per_job=False):
        assert line.startswith("#") or line in example
    guide = (UNIT.parents[2] / "docs/deploy.md").read_text()
    assert all(f"\n{line}\n" in guide for line in example if line and not line.startswith("#"))


def test_make_run(tmp_path: Path) -> None:
    """The script behind it: what is sampled, the report of a job, where to look, and all of it ends."""
    programs = {"joblens": f'exec {sys.executable} -m joblens "$@"', "python": "exec sleep 0.3"}
    for name, line in programs.items():
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o700)
    environment = {**os.environ, "JOBLENS": str(tmp_path / "joblens"), "JOBLENS_HOME": str(tmp_path / "home")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(UNIT.parents[1] / "try"), *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    try:
        found = run("--listen", "127.0.0.1:0", "--hub-listen", "127.0.0.1:0")
    finally:
        stopped = run("stop")
    assert found.returncode == 0, found.stderr
    lines = [line.split() for line in found.stdout.splitlines() if line]
    assert any(words[0] == "memory" and words[-1] == "live" for words in lines)
    assert {"agent", "hub", "store", "again", "live", "stop"} <= {words[0] for words in lines}
    assert "sample" in found.stderr
    assert "COMPLETED" in found.stderr
    assert (stopped.returncode, stopped.stderr) == (0, "agent and hub have ended\n")
    assert run("stop").stderr == "joblens up does not run here\n"
