"""Capture of an MPI job with several steps on three nodes of real Slurm, in one archive."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import joblens
from joblens.capture.library import build_library, find_library
from programs import need
from waiting import wait_for

from .lab import NODES, Lab
from .user_mode import UserMode
from .watch import RESIDENT
from .work import compile_ranks

RANKS = 6
_SECONDS = 0.3
# In the second step rank 1 ends with a code, and the child of rank 2 by a signal.
_CODES = 'case $SLURM_PROCID in 1) exit 7;; 2) sh -c "kill -9 \\$\\$" ;; esac; exit 0'


@pytest.fixture
def mode(lab: Lab) -> Iterator[UserMode]:
    """The library is seen on all nodes; each has a folder of its own for records."""
    need("cc")
    assert find_library() or build_library() == ""
    source = str(Path(joblens.__file__).parents[1])
    with ExitStack() as stack:
        mode = UserMode(lab, stack)
        compile_ranks(lab)
        stack.callback(mode.end_jobs)
        lab.path("local").mkdir(exist_ok=True)
        for name, node in lab.nodes.items():
            mode._mount(node, f"{lab.folder}/local", "-t", "tmpfs", "-o", "mode=1777", "none")
            if name != "c1":
                mode._mount(node, f"{lab.folder}/src", "--bind", source)
        yield mode


def test_all_ranks_of_all_steps_on_all_nodes(lab: Lab, mode: UserMode) -> None:
    """One archive has each of them once; codes, signals and times are those of the kernel and of sacct."""
    job = mode.submit(
        "userA",
        f"""export JOBLENS_CAPTURE_DIR={lab.folder}/local
        eval "$(joblens start --tag exp:7)"
        srun --mpi=pmix {lab.folder}/bin/ranks {_SECONDS} 1
        srun sh -c '{_CODES}'
        eval "$(joblens stop)"
        joblens stage --to $HOME >staged.$id 2>said.$id
        exit 5""",
        "-N3",
        "--ntasks-per-node=2",
    )
    row = lab.wait_for_end(job)[job]
    assert (row["State"], row["ExitCode"]) == ("FAILED", "5:0"), lab.output("userA", job)
    assert f"{RANKS} ranks have" in lab.output("userA", job)
    assert mode.file("userA", f"said.{job}").read_text() == ""
    archive = mode.file("userA", f"{job}.joblens")
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    for node in lab.nodes.values():
        assert list(node.path(f"{lab.folder}/local").iterdir()) == []
    home = f"{lab.folder}/home/userA"
    for expected in ("1 archive stored: ", "0 archives stored: "):
        done = mode.joblens("userA", "submit", f"{home}/{job}.joblens")
        assert done.code == 0, done
        assert done.out.startswith(expected)
    record = json.loads(mode.joblens("userA", "job", job, "--json").out)
    assert (record["job"]["state"], record["job"]["exit_code"]) == ("FAILED", 5)
    assert (record["job"]["tags"], record["job"]["cluster"]) == ({"exp": "7"}, "testcl")
    assert [record["job"]["start"], record["job"]["end"]] == [float(row["Start"]), float(row["End"])]
    done = mode.joblens("userA", "job", job, "--processes", "--limit", "0", "--json")
    processes = json.loads(done.out)
    steps = {step["id"].rpartition(".")[2]: step for step in record["steps"]}
    _check_ranks(processes, steps["0"])
    _check_codes(processes, steps["1"])


@pytest.fixture
def archives(lab: Lab, mode: UserMode) -> Iterator[Path]:
    """Hooks that capture every job, and the folder for what they collect.

    They accept only what root alone can change, which a checkout may not be: joblens is copied."""
    own = lab.path("own")
    shutil.copytree(Path(joblens.__file__).parent, own / "joblens")
    for folder, _, names in os.walk(own):
        os.chmod(folder, 0o755)  # noqa: S103 (as installed)
        for name in names:
            os.chmod(os.path.join(folder, name), 0o644)
    for machine in (lab.login, *lab.nodes.values()):
        mode._mount(machine, f"{lab.folder}/src", "--bind", f"{lab.folder}/own")
    for name, node in lab.nodes.items():
        for place, where in (("python", sys.base_prefix), ("packages", sysconfig.get_paths()["purelib"])):
            if name != "c1":
                mode._mount(node, f"{lab.folder}/{place}", "--bind", where)
    words = ["--folder", f"{lab.folder}/hooks", "--config", f"{lab.folder}/etc/joblens.toml"]
    words += ["--records", f"{lab.folder}/local/capture", "--to", f"{lab.folder}/archives"]
    path = {"PATH": f"{lab.folder}/bin:{lab.login.variables['PATH']}"}
    lab.login.run("joblens", "slurm", "install", "--capture", "--write", *words, variables=path)
    yield lab.path("archives")
    lab.watch.install_hooks(RESIDENT)
    shutil.rmtree(own)


def test_every_job_of_the_cluster(lab: Lab, mode: UserMode, archives: Path) -> None:
    """A job that knows nothing of joblens: all ranks of all steps are stored, and its output is its own."""
    script = f"srun --mpi=pmix {lab.folder}/bin/ranks {_SECONDS} 1\nsrun sh -c '{_CODES}'\nexit 5"
    job = lab.submit("userA", script, "-N3", "--ntasks-per-node=2")
    row = lab.wait_for_end(job)[job]
    output = lab.output("userA", job)
    assert (row["State"], row["ExitCode"]) == ("FAILED", "5:0"), output
    assert f"{RANKS} ranks have" in output
    assert "ld.so" not in output
    names = {f"{job}.{name}.joblens" for name in NODES}
    wait_for("an archive of each node", lambda: archives.exists() and names <= set(os.listdir(archives)))
    kept = {".lock", ".log"}
    for node in lab.nodes.values():
        folder = node.path(f"{lab.folder}/local/capture")
        wait_for("no records that are left", lambda: set(os.listdir(folder / "ended")) == kept)  # noqa: B023
        assert os.listdir(folder) == ["ended"]
        assert (folder / "ended/.log").read_text() == ""
    store = {"JOBLENS_HOME": f"{lab.folder}/captured-store", "JOBLENS_CONFIG": os.devnull}

    def joblens(*words: str) -> str:
        return lab.login.run(f"{lab.folder}/bin/joblens", *words, variables=store).out

    assert joblens("submit", "--remove", f"{lab.folder}/archives").startswith("3 archives stored: ")
    assert "3 archives already stored" in joblens("submit", "--remove", f"{lab.folder}/archives")
    assert os.listdir(archives) == []
    record = json.loads(joblens("job", job, "--json"))
    assert (record["job"]["state"], record["job"]["exit_code"], record["job"]["user"]) == (
        "FAILED", 5, "userA",
    )  # fmt: skip
    processes = json.loads(joblens("job", job, "--processes", "--limit", "0", "--json"))
    steps = {step["id"].rpartition(".")[2]: step for step in record["steps"]}
    _check_ranks(processes, steps["0"])
    _check_codes(processes, steps["1"])
    assert {"srun"} <= {it["name"] for it in processes if it["node"] == "c1"}  # of the batch script


def _check_ranks(processes: list[dict[str, Any]], step: dict[str, Any]) -> None:
    ranks = [it for it in processes if it["name"] == "ranks"]
    assert sorted(int(it["rank"]) for it in ranks) == list(range(RANKS))
    assert sorted(it["node"] for it in ranks) == sorted(NODES * 2)
    assert {(it["step"], it["exit_code"], it["signal"], it["exact"]) for it in ranks} == {("0", 0, None, 1)}
    assert (step["exit_code"], step["state"]) == (0, "COMPLETED")
    for it in ranks:
        assert step["start"] <= it["began_seconds"] <= it["ended_seconds"] <= step["end"] + 1
        assert it["user_seconds"] + it["system_seconds"] >= _SECONDS
        assert it["threads"] > 0
    captured = sum(it["user_seconds"] + it["system_seconds"] for it in ranks)
    accounted = step["user_seconds"] + step["system_seconds"]
    assert captured == pytest.approx(accounted, rel=0.1)  # of Slurm's task itself there is a little more


def _check_codes(processes: list[dict[str, Any]], step: dict[str, Any]) -> None:
    found = {it["rank"]: it for it in processes if it["step"] == "1" and "case" in it["command"]}
    assert {rank: it["exit_code"] for rank, it in found.items()} == {
        str(rank): 7 if rank == 1 else 0 for rank in range(RANKS)
    }
    assert step["exit_code"] == 7
    assert [it for it in processes if not it["exact"]] == []
    (killed,) = [it for it in processes if it["signal"] is not None]
    assert (killed["signal"], killed["rank"], killed["step"], killed["parent"]) == (
        9, "2", "1", found["2"]["pid"],
    )  # fmt: skip
