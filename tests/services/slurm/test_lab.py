"""The cluster that the other tests here run on is what they take it for."""

from __future__ import annotations

import os
import pwd

import pytest

from .lab import NODES, USERS, Lab


def test_a_job_on_three_nodes(lab: Lab) -> None:
    """Each node has a name and processes of its own, and jobs are their users'."""
    job = lab.submit(
        "userA",
        "srun sh -c 'echo $(hostname) $(id -un) $(grep -lsx slurmd /proc/[0-9]*/comm | wc -l)'",
        "-N3",
    )
    row = lab.wait_for_end(job)[job]
    wanted = {
        "State": "COMPLETED",
        "ExitCode": "0:0",
        "User": "userA",
        "UID": str(USERS["userA"]),
        "NNodes": "3",
    }
    assert {**row, **wanted, "Account": "lab", "NodeList": "c[1-3]"} == row, lab.logs()
    said = sorted(line.split() for line in lab.output("userA", job).splitlines())
    assert said == [[node, "userA", "1"] for node in NODES], "of each its own slurmd, and not those of others"


def test_mpi(lab: Lab) -> None:
    """srun --mpi=pmix starts tasks that know of each other."""
    job = lab.submit("userB", "srun --mpi=pmix sh -c 'echo $PMIX_RANK of $SLURM_NTASKS'", "-N2", "-n4")
    assert lab.wait_for_end(job)[job]["State"] == "COMPLETED", (lab.output("userB", job), lab.logs())
    assert sorted(lab.output("userB", job).splitlines()) == [f"{rank} of 4" for rank in range(4)]


def test_nothing_outside(lab: Lab) -> None:
    """The machine that the tests run on knows nothing of these users, names and files."""
    assert not set(os.listdir(lab.folder))
    with pytest.raises(KeyError):
        pwd.getpwuid(USERS["userA"])
    assert lab.login.run("id", "-un", uid=USERS["userA"]).out == "userA\n"
