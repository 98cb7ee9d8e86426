"""Which job, and which hosts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.errors import JoblensError, OutsideError, UsageError
from joblens.usermode.hosts import Allocation, check_host, find_allocation, parse_hosts, short_name

SLURM = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "c[1-3]", "SLURM_CLUSTER_NAME": "fox"}


def test_slurm() -> None:
    whole = Allocation("slurm", "42", "fox", ("c1", "c2", "c3"), "slurm")
    assert find_allocation(SLURM) == whole
    assert find_allocation(SLURM, "c2") == whole._replace(hosts=("c2",))
    assert find_allocation(SLURM, "d1").how == "ssh"
    with pytest.raises(OutsideError, match="this is job 42, but not on which nodes"):
        find_allocation({"SLURM_JOB_ID": "42"})


def test_pbs(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    found = find_allocation({"PBS_JOBID": "7.server", "PBS_NODEFILE": str(tmp_path / "nodes")})
    assert found == Allocation("pbs", "7", "", ("n1", "n2"), "pbs")


def test_nothing_of_the_kind() -> None:
    assert find_allocation({}) == Allocation("", "", "", (short_name(),), "here")
    assert find_allocation({}, "localhost").how == "here"
    assert find_allocation({}, socket.gethostname()).how == "here"
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
