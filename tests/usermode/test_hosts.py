"""Which job, and which hosts."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import JoblensError, OutsideError, UsageError
from joblens.usermode.hosts import Allocation, check_host, find_allocation, parse_hosts, short_name
from joblens.usermode.launch import plan

RECORDED = Path(__file__).parents[1] / "schedulers/recorded"
SLURM = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "c[1-3]", "SLURM_CLUSTER_NAME": "fox"}


def test_slurm() -> None:
    whole = Allocation("slurm", "42", "fox", ("c1", "c2", "c3"), "slurm")
    assert find_allocation(SLURM) == whole
    assert find_allocation(SLURM, "c2") == whole._replace(hosts=("c2",))
    assert find_allocation(SLURM, "d1").how == "ssh"
    with pytest.raises(OutsideError, match="SLURM_JOB_ID is 42, but SLURM_JOB_NODELIST is not set"):
        find_allocation({"SLURM_JOB_ID": "42"})


def recorded(name: str) -> dict[str, str]:
    text = (RECORDED / name).read_text()
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.fixture
def flux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command that answers as `flux` does, on which node of three several brokers run."""
    script = tmp_path / "flux"
    script.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n'
        'case "$1" in getattr) echo "c[1-2],c2,c3";; jobs) echo "c[2-3]";; esac\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "asked"


def test_flux_batch(flux: Path) -> None:
    """The script of `flux batch` has an instance of its own; an agent on one rank of each of its hosts."""
    env = recorded("flux-0.88/batch.env")
    found = find_allocation(env)
    assert found == Allocation("flux", "f5TjKfTM", "", ("c1", "c2", "c3"), "flux")
    assert flux.read_text() == "getattr hostlist\n"
    (launch,) = plan("flux", found.job, found.hosts, env, "10.0.0.1:1")
    assert launch.words[1:5] == ("exec", "--label-io", "--dir=/", "--rank=0,1,3")
    assert launch.labels == ("0", "1", "3")
    (launch,) = plan("flux", found.job, find_allocation(env, "c3").hosts, env)
    assert "--rank=3" in launch.words
    assert launch.hosts == ("c3",)


@pytest.mark.parametrize("name", ["run", "run_in_batch"])
def test_flux_run(flux: Path, name: str) -> None:
    """Within `flux run`, also in a batch job: the hosts of that job, whose ranks are those of its own."""
    env = recorded(f"flux-0.88/{name}.env")
    found = find_allocation(env)
    job = "f" + env["FLUX_JOB_ID"][1:]
    assert found == Allocation("flux", job, "", ("c2", "c3"), "flux")
    assert flux.read_text() == f"jobs --no-header --format={{nodelist}} {job}\n"
    (launch,) = plan("flux", found.job, found.hosts, env)
    assert launch.words[4:6] == ("--rank=0,1", f"--jobid={job}")


def test_flux_elsewhere() -> None:
    """An instance that is no job; what is no id of a job."""
    assert find_allocation({"FLUX_URI": "local:///x"}).how == "here"
    assert find_allocation({"FLUX_URI": "local:///x", "FLUX_JOB_ID": "../x"}).how == "here"


def test_pbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job under its whole name, as PBS names its cgroup. PBS starts our tasks, unless ssh is wanted."""
    nodes = RECORDED / "pbs-23.06/nodefile"
    env = {**recorded("pbs-23.06/job.env"), "PBS_NODEFILE": str(nodes)}
    found = find_allocation(env)
    assert found == Allocation("pbs", "0.login", "login", ("c1", "c2"), "pbs")
    (tmp_path / "bin").mkdir()
    for name in ("pbs_tmrsh", "ssh"):
        (tmp_path / "bin" / name).touch(0o755)
    (tmp_path / "pbs.conf").write_text(f"PBS_SERVER=login\nPBS_EXEC={tmp_path}\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    env["PBS_CONF_FILE"] = str(tmp_path / "pbs.conf")
    (launch,) = plan("pbs", found.job, found.hosts, env, "10.0.0.1:99", "/home/userA/session")
    assert launch.words[4:] == (
        "/home/userA/session/call", "10.0.0.1", f"{tmp_path}/bin/pbs_tmrsh", "10.0.0.1:99", "c1", "c2",
    )  # fmt: skip
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    by_ssh = plan("pbs", found.job, found.hosts, {**env, "JOBLENS_SSH": "ssh -p 22"})
    assert [launch.words[0] for launch in by_ssh] == [f"{tmp_path}/bin/ssh"] * 2


def test_nothing_of_the_kind() -> None:
    assert find_allocation({}) == Allocation("", "", "", (short_name(),), "here")
    assert find_allocation({}, "localhost").how == "here"
    assert find_allocation({}, socket.gethostname()).how == "here"
    here, there = plan("ssh", "r1", (socket.gethostname(), "other"), {"JOBLENS_SSH": "sh -x"})
    assert here.words[0] == "/bin/sh"  # by ssh only where there is no other way
    assert there.words[1:2] == ("-x",)
    assert find_allocation({}, "a,b").how == "ssh"


@pytest.mark.parametrize("text", ["", " ", "-oX=x", "a;b", "a/../b", "$(x)", "c[1-", "c[1-9999999]"])
def test_no_hosts(text: str) -> None:
    """They become words of commands: nothing but names of hosts gets through."""
    with pytest.raises(UsageError):
        parse_hosts(text)


@given(st.text(max_size=30))
def test_whatever_is_said(text: str) -> None:
    try:
        found = parse_hosts(text)
    except JoblensError:
        return
    assert all(check_host(host) == host and host[0].isalnum() for host in found)
