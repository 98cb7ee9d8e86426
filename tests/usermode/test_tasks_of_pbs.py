"""User mode in PBS, with commands in place of `pbs_tmrsh` and `qstat` that do as those of OpenPBS 23.06."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from .sessions import Place

# A task has no input, and its output is the job's.
TMRSH = """#!/bin/sh
host=$1; shift
case $host in n9) echo "pbs_tmrsh: host \\"n9\\" is not a node in job <7.server>" >&2; exit 255;; esac
exec "$@" </dev/null >>{folder}/output 2>&1
"""
QSTAT = """#!/bin/sh
echo '{"Jobs": {"7.server": {"Job_Name": "sim", "job_state": "R", "server": "server",
  "stime": "Mon Nov 16 07:25:42 2026", "exec_host": "n1/0+n2/0"}}}'
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "bin").mkdir()
    for name, text in (("pbs_tmrsh", TMRSH.replace("{folder}", str(tmp_path))), ("qstat", QSTAT)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    env = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PBS_JOBID": "7.server",
        "PBS_NODEFILE": f"{tmp_path}/nodes",
    }  # fmt: skip
    return Place(tmp_path, env)


def test_two_hosts(place: Place) -> None:
    """Both are up, their words do not get into the job's output, and nothing of it is left."""
    said = place.script(
        "joblens usermode start --interval 0.5 || exit 9", "sleep 2", "joblens usermode status --json",
        "joblens usermode stop --json >$TMPDIR/record",
    )  # fmt: skip
    assert said.code == 0, said
    assert "user mode of job 7.server: 2 hosts up" in said.err
    status = json.loads(said.out)
    assert [(host["host"], host["state"]) for host in status["hosts"]] == [("n1", "up"), ("n2", "up")]
    record = json.loads((place.tmp / "record").read_text())
    assert (record["job"]["id"], record["job"]["cluster"], record["job"]["name"]) == (
        "7.server",
        "server",
        "sim",
    )
    assert {node["node"] for node in record["nodes"]} == {"n1", "n2"}
    assert (place.tmp.parent / "output").read_bytes() == b""
    assert not place.pids()
    assert not list(place.home.glob("usermode/*/call"))


def test_a_host_that_is_not_there(place: Place) -> None:
    """The others go on, and it is said why this one is not."""
    (place.tmp.parent / "nodes").write_text("n1\nn9\n")
    said = place.script("joblens usermode start --interval 0.5 || exit 9", "joblens usermode stop >/dev/null")
    assert said.code == 0, said
    assert "1 of 2 hosts up" in said.err
    assert 'n9 is not up: pbs_tmrsh: host "n9" is not a node in job <7.server>' in said.err
