"""User mode in Slurm: ordinary users, jobs of their own, and joblens on the first node only."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import joblens
from waiting import wait_for

from .lab import NODES, USERS, Lab
from .machines import Machine, Result
from .work import burn, need_perl, told, wait_for_no_processes

HEAD = "c1"
AGENT = "-c\0import json, os"  # how its command line begins
LEFT = {"session.json", "facts.json", "log", "lock"}


class UserMode:
    """joblens where a user's job begins, and where users log in. The other nodes have nothing of it."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        self.lab, folder = lab, lab.folder
        places = {
            "python": sys.base_prefix,
            "src": str(Path(joblens.__file__).parents[1]),
            "packages": sysconfig.get_paths()["purelib"],
        }
        for name, where in places.items():
            lab.path(name).mkdir(0o755, exist_ok=True)
            for machine in (lab.login, lab.nodes[HEAD]):
                self._mount(machine, stack, where, f"{folder}/{name}")
        python = f"{folder}/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        paths = f"LD_LIBRARY_PATH={folder}/python/lib PYTHONPATH={folder}/src:{folder}/packages"
        lab.path("bin").mkdir(0o755, exist_ok=True)
        self.command = lab.path("bin", "joblens")
        self.command.write_text(f'#!/bin/sh\n{paths} exec {python} -m joblens "$@"\n')
        self.command.chmod(0o755)

    @staticmethod
    def _mount(machine: Machine, stack: ExitStack, where: str, at: str) -> None:
        machine.run("mount", "--bind", where, at)
        stack.callback(machine.run, "umount", "--lazy", at)

    def submit(self, user: str, script: str, *options: str) -> str:
        lines = (
            f"export JOBLENS_HOME=$HOME/store JOBLENS_CONFIG={os.devnull} PATH={self.lab.folder}/bin:$PATH",
            "id=$SLURM_JOB_ID",
        )
        return self.lab.submit(user, "\n".join((*lines, script)), *options)

    def joblens(self, user: str, *words: str, at: Machine | None = None) -> Result:
        """Where users log in, or on a node."""
        home = f"{self.lab.folder}/home/{user}"
        variables = {"HOME": home, "JOBLENS_HOME": f"{home}/store"}
        command = f"{self.lab.folder}/bin/joblens"
        machine = at or self.lab.login
        return machine.run(command, *words, uid=USERS[user], variables=variables, check=False)

    def record(self, user: str, job: str) -> Any:
        """Where its session was: there it is known at once who of it is still alive."""
        done = self.joblens(user, "job", job, "--json", at=self.lab.nodes[HEAD])
        assert done.code == 0, (done, self.log(user, job))
        return json.loads(done.out)

    def file(self, user: str, name: str) -> Path:
        return self.lab.path("home", user, name)

    def wait_for(self, user: str, name: str) -> None:
        def look() -> bool:
            return self.file(user, name).exists()

        wait_for(f"{name} of {user}", look)

    def folder(self, user: str, job: str) -> Path:
        (found,) = self.file(user, "store").glob(f"usermode/*-{job}-*")
        return found

    def log(self, user: str, job: str) -> str:
        return (self.folder(user, job) / "log").read_text()

    def pids(self, node: str, job: str, word: str) -> list[int]:
        """As seen from outside."""
        found = []
        for pid in self.lab.nodes[node].processes():
            try:
                words, env = (
                    Path(f"/proc/{pid}/cmdline").read_bytes(),
                    Path(f"/proc/{pid}/environ").read_bytes(),
                )
            except OSError:  # it has ended
                continue
            if word.encode() in words and f"SLURM_JOB_ID={job}".encode() in env.split(b"\0"):
                found.append(pid)
        return found

    def kill(self, job: str, word: str) -> None:
        (pid,) = self.pids(HEAD, job, word)
        os.kill(pid, signal.SIGKILL)

    def end_jobs(self) -> None:
        """Of a test that has failed: they would be in the way of those behind it."""
        for user in USERS:
            self.lab.slurm("scancel", f"--user={user}", check=False)
        wait_for("the end of all jobs", lambda: not self.lab.squeue())

    def check_nothing_is_left(self) -> None:
        wait_for_no_processes(self.lab)
        for node in self.lab.nodes.values():
            assert not list(node.path("/tmp").glob("joblens-testcl-*"))


@pytest.fixture
def mode(lab: Lab) -> Iterator[UserMode]:
    need_perl()
    with ExitStack() as stack:
        mode = UserMode(lab, stack)
        stack.callback(mode.end_jobs)
        yield mode


def test_three_nodes(lab: Lab, mode: UserMode) -> None:
    """Some seconds on three nodes: every node, the last samples, and the job as if nobody had looked."""
    work = burn(1, 40, hold=1).replace("'", "'\\''")
    job = mode.submit(
        "userA",
        f"""joblens usermode start 2>said.$id
        srun sh -c '{work}'
        date +%s.%N >worked.$id
        joblens usermode stop >report.$id 2>>said.$id
        joblens usermode stop >again.$id 2>>said.$id
        exit 3""",
        "-N3",
    )
    row = lab.wait_for_end(job)[job]
    assert (row["State"], row["ExitCode"]) == ("FAILED", "3:0")
    lines = lab.output("userA", job).splitlines()
    assert [line.split()[0] for line in lines] == ["held"] * 3, lines
    assert mode.file("userA", f"said.{job}").read_text() == f"joblens: user mode of job {job}: 3 hosts up\n"
    report = mode.file("userA", f"report.{job}").read_text()
    assert report.splitlines()[0].endswith("RUNNING")
    assert report.splitlines()[1].startswith("So far it used ")
    assert mode.file("userA", f"again.{job}").read_text() == report
    record = mode.record("userA", job)  # made again, now that the job has ended
    assert (record["job"]["state"], record["job"]["exit_code"]) == ("FAILED", 3)
    assert [node["node"] for node in record["nodes"]] == list(NODES)
    assert record["used"]["memory_peak_bytes"] > told(lab, "userA", job).memory_bytes
    for node in record["nodes"]:
        assert node["cpu_seconds"] >= 1
        assert node["memory_peak_bytes"] > 40 << 20
    assert [it["command"][:4] for it in record["processes"] if it["name"] == "perl"] == ["perl"] * 3
    steps = {step["name"]: step["state"] for step in record["steps"]}
    assert steps["joblens"] == "COMPLETED"
    assert not [problem for problem in record["data"]["problems"] if "nothing came" in problem]
    assert job in mode.joblens("userA", "jobs").out
    assert {path.name for path in mode.folder("userA", job).iterdir()} == LEFT
    mode.check_nothing_is_left()


# What is killed, how the job then ends, and what the report says of it.
FAULTS = {
    "nothing": ("userA", "FAILED", ""),
    "usermode.holder": ("userA", "FAILED", "user mode was ended from outside"),
    "joblens\0hub": ("userB", "FAILED", ""),
    AGENT: ("userB", "FAILED", "c1: its agent ended at "),
    "the job": ("userC", "CANCELLED", ""),
}


def test_ended_in_many_ways(lab: Lab, mode: UserMode) -> None:
    """Five jobs of three users at once on one node, none of which says stop: nobody is in another's way."""
    script = """joblens usermode start 2>said.$id
        until [ -e over.$id ]; do perl -e '1 while (times)[0] < 0.2'; sleep 0.1; done
        exit 4"""
    options = (f"--nodelist={HEAD}", "--mem=300M")
    jobs = {fault: mode.submit(user, script, *options) for fault, (user, _, _) in FAULTS.items()}
    for fault, job in jobs.items():
        user = FAULTS[fault][0]
        wait_for("hosts", lambda user=user, job=job: is_up(mode, user, job))  # type: ignore[misc]
        wait_for("samples", lambda user=user, job=job: age(mode, user, job) is not None)  # type: ignore[misc]
    check_secrets(mode, jobs)
    for fault, job in jobs.items():
        if fault not in ("nothing", "the job"):
            mode.kill(job, fault)
    lab.slurm("scancel", jobs["the job"], user="userC")
    wait_for("a hub again", lambda: mode.pids(HEAD, jobs["joblens\0hub"], "joblens\0hub"))
    for fault, job in jobs.items():
        mode.file(FAULTS[fault][0], f"over.{job}").touch()
    rows = lab.wait_for_end(*jobs.values())
    mode.check_nothing_is_left()
    for fault, (user, state, says) in FAULTS.items():
        job = jobs[fault]
        assert rows[job]["State"].split()[0] == state, fault
        assert lab.output(user, job) == "" or state == "CANCELLED"
        record = mode.record(user, job)
        assert (record["job"]["state"], record["job"]["user"]) == (state, user)
        assert record["data"]["samples"] > 1, (fault, mode.log(user, job))
        problems = " ".join(record["data"]["problems"])
        assert says in problems, (fault, problems)
        assert says or not problems, (fault, problems)
        assert {path.name for path in mode.folder(user, job).iterdir()} == LEFT


def is_up(mode: UserMode, user: str, job: str) -> bool:
    said = mode.file(user, f"said.{job}")
    return said.exists() and said.read_text() == f"joblens: user mode of job {job}: 1 host up\n"


def age(mode: UserMode, user: str, job: str) -> float | None:
    done = mode.joblens(user, "usermode", "status", job, "--json", at=mode.lab.nodes[HEAD])
    found = json.loads(done.out)
    assert found["state"] == "running", (found, mode.log(user, job))
    seconds: float | None = found["hosts"][0]["age_seconds"]
    return seconds


def check_secrets(mode: UserMode, jobs: dict[str, str]) -> None:
    """Folders are their user's, and pages ask for a token that only the user has."""
    for fault, job in jobs.items():
        user = FAULTS[fault][0]
        folder = mode.folder(user, job)
        assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_uid) == (0o700, USERS[user])
        assert {stat.S_IMODE((folder / name).stat().st_mode) for name in ("key", "page-token")} == {0o600}
    found = json.loads(mode.joblens("userA", "usermode", "status", jobs["nothing"], "--json").out)
    asked = mode.joblens("userB", "ls", "--hub", found["hub"], at=mode.lab.nodes[HEAD])
    assert "a token is needed" in asked.err


def test_a_node_that_is_not_reached(lab: Lab, mode: UserMode) -> None:
    """At the start, and another half-way: it is named, and the rest goes on."""
    job = mode.submit(
        "userA",
        """until [ -e go.$id ]; do sleep 0.1; done
        joblens usermode start 2>said.$id; touch up.$id
        until [ -e over.$id ]; do sleep 0.1; done
        joblens usermode stop >report.$id
        echo done""",
        "-N3", "--no-kill",
    )  # fmt: skip
    # With the prolog on all nodes: before its end no step of the job can be signalled.
    wait_for("the job", lambda: lab.slurm("squeue", "-h", "-j", job, "-o", "%T %r").out == "RUNNING None\n")
    lab.login.ip("link set to-c3 down")
    try:
        mode.file("userA", f"go.{job}").touch()
        mode.wait_for("userA", f"up.{job}")
        said = mode.file("userA", f"said.{job}").read_text()
        assert said.startswith(
            f"joblens: user mode of job {job}: 2 of 3 hosts up\njoblens: c3 is not up: "
        ), said
        wait_for("samples", lambda: age(mode, "userA", job) is not None)
        # The first attempt, which failed with c3, may still be ending there.
        wait_for("one agent", lambda: len(mode.pids("c2", job, AGENT)) == 1)
        (agent,) = mode.pids("c2", job, AGENT)
        os.kill(agent, signal.SIGKILL)
        wait_for("a word about c2", lambda: "c2: task" in mode.log("userA", job))
        mode.file("userA", f"over.{job}").touch()
        mode.wait_for("userA", f"report.{job}")
        wait_for("the end", lambda: lab.output("userA", job) == "done\n")
    finally:
        lab.login.ip("link set to-c3 up")
    assert lab.wait_for_end(job)[job]["State"] == "COMPLETED"
    record = mode.record("userA", job)
    problems = " ".join(record["data"]["problems"])
    assert "c3: no agent ran there: " in problems
    assert "c2: its agent ended at " in problems
    assert "c1:" not in problems
    assert [node["samples"] > 0 for node in record["nodes"]] == [True, True, False]
    wait_for("idle nodes", lambda: lab.node_states() == dict.fromkeys(NODES, "idle"))
    mode.check_nothing_is_left()
