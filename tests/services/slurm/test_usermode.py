"""User mode in Slurm: ordinary users, jobs of their own, and joblens on the first node only."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from waiting import wait_for

from .another_user import try_everything
from .lab import NODES, USERS, Lab, why_no_groups, why_no_lab
from .user_mode import AGENT, HEAD, HOLDER, HUB, LEFT, UserMode
from .work import burn, need_perl, told


@pytest.fixture
def mode(lab: Lab) -> Iterator[UserMode]:
    need_perl()
    with ExitStack() as stack:
        mode = UserMode(lab, stack)
        stack.callback(mode.end_jobs)
        yield mode


def test_three_nodes(lab: Lab, mode: UserMode) -> None:
    """Some seconds on three nodes: every node, the last samples, and the job as if nobody had looked. One of
    the nodes does not see the user's home."""
    mode.hide_homes("c3")
    work = burn(1, 40, hold=1).replace("'", "'\\''")
    job = mode.submit(
        "userA",
        f"""joblens usermode start 2>said.$id
        srun --chdir=/ sh -c '{work}'
        ls -ld /tmp/joblens-testcl-$id-* >folders.$id
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
    (folder,) = mode.file("userA", f"folders.{job}").read_text().splitlines()
    assert folder.startswith("drwx------ ")
    assert folder.endswith("-c3")  # all nodes have the same /tmp here
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


class Fault(NamedTuple):
    user: str
    nodes: int
    state: str  # in which the job ends
    says: str  # its report; "": that nothing is missing


LIMIT, CANCEL = "the limit of time", "scancel"
OUTSIDE = "user mode was killed"
# What is killed or done.
FAULTS = {
    "nothing": Fault("userA", 1, "FAILED", ""),
    HOLDER: Fault("userA", 3, "FAILED", OUTSIDE),
    HUB: Fault("userB", 1, "FAILED", ""),
    AGENT: Fault("userB", 2, "FAILED", f"{HEAD}: its agent ended at "),
    CANCEL: Fault("userC", 2, "CANCELLED", ""),
    LIMIT: Fault("userC", 2, "TIMEOUT", ""),
}


def test_ended_in_many_ways(lab: Lab, mode: UserMode) -> None:
    """Six jobs of three users at once on one node, some on others too, none of which says stop: nobody is in
    another's way, and nobody gets at what is another's."""
    script = """joblens usermode start 2>said.$id
        until [ -e over.$id ]; do perl -e '1 while (times)[0] < 0.02'; sleep 0.2; done
        exit 4"""
    jobs = {
        name: mode.submit(it.user, script, f"--nodelist={','.join(NODES[: it.nodes])}", "--mem=300M")
        for name, it in FAULTS.items()
    }
    for name, job in jobs.items():
        wait_until_up(mode, FAULTS[name].user, job, FAULTS[name].nodes)
        mode.wait_for_samples(FAULTS[name].user, job)
    check_secrets(mode, jobs)
    for name in (HOLDER, HUB, AGENT):
        mode.kill(jobs[name], name)
    lab.slurm("scancel", jobs[CANCEL], user="userC")
    lab.slurm("scontrol", "update", f"JobId={jobs[LIMIT]}", "EndTime=now+2")
    wait_for("a hub again", lambda: mode.pids(HEAD, jobs[HUB], HUB))
    for name in ("nothing", HOLDER, HUB, AGENT):
        mode.file(FAULTS[name].user, f"over.{jobs[name]}").touch()
    rows = lab.wait_for_end(*jobs.values())
    mode.check_nothing_is_left()
    for name, it in FAULTS.items():
        job = jobs[name]
        assert rows[job]["State"].split()[0] == it.state, name
        assert lab.output(it.user, job) == "" or it.state != "FAILED"
        record = mode.record(it.user, job)
        assert (record["job"]["state"], record["job"]["user"]) == (it.state, it.user)
        assert [node["samples"] > 1 for node in record["nodes"]] == [True] * it.nodes, mode.log(it.user, job)
        problems = " ".join(record["data"]["problems"])
        assert it.says in problems, (name, problems)
        # A busy machine may need longer than KillWait; then Slurm kills it, and the report says so.
        assert it.says or not problems or problems.startswith(OUTSIDE), (name, problems)
        assert record["marks"] == []
        assert {path.name for path in mode.folder(it.user, job).iterdir()} == LEFT


def wait_until_up(mode: UserMode, user: str, job: str, nodes: int) -> None:
    said = mode.file(user, f"said.{job}")
    hosts = "1 host" if nodes == 1 else f"{nodes} hosts"
    wait_for("words", lambda: said.exists() and said.read_text().endswith("up\n"))
    assert said.read_text() == f"joblens: user mode of job {job}: {hosts} up\n"


def check_secrets(mode: UserMode, jobs: dict[str, str]) -> None:
    """Folders are their user's, and whoever else is on the node gets at nothing."""
    whose = {job: FAULTS[name].user for name, job in jobs.items()}
    for job, user in whose.items():
        folder = mode.folder(user, job)
        assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_uid) == (0o700, USERS[user])
        assert {stat.S_IMODE((folder / name).stat().st_mode) for name in ("key", "page-token")} == {0o600}
    for user, name in (("userB", HUB), ("userA", "nothing")):
        try_everything(mode, user, jobs[name], {job: it for job, it in whose.items() if it != user})


def test_nodes_that_are_not_reached(lab: Lab, mode: UserMode) -> None:
    """One at the start, another from half-way on: they are named, the rest goes on, nobody waits for them."""
    mode.hide_homes("c2")  # what it keeps is nowhere else, as on a node that has died
    job = mode.submit(
        "userA",
        """until [ -e go.$id ]; do sleep 0.1; done
        joblens usermode start 2>said.$id; touch up.$id
        until [ -e over.$id ]; do sleep 0.1; done
        joblens usermode stop >report.$id 2>>said.$id
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
        mode.wait_for_samples("userA", job)
        lab.login.ip("link set to-c2 down")
        wait_for("silence", lambda: age(mode, "userA", job, "c2") > 13)
        mode.file("userA", f"over.{job}").touch()
        wait_for("the end", lambda: lab.output("userA", job) == "done\n")
    finally:
        for node in ("c2", "c3"):
            lab.login.ip(f"link set to-{node} up")
    assert lab.wait_for_end(job)[job]["State"] == "COMPLETED"
    record = mode.record("userA", job)
    problems = " ".join(record["data"]["problems"])
    assert "c3: no agent ran there: " in problems
    assert "c2: no samples after " in problems, problems
    assert "c1:" not in problems
    assert [node["samples"] > 0 for node in record["nodes"]] == [True, True, False]
    wait_for("idle nodes", lambda: lab.node_states() == dict.fromkeys(NODES, "idle"))
    mode.check_nothing_is_left()


def age(mode: UserMode, user: str, job: str, host: str) -> float:
    (found,) = [it["age_seconds"] for it in mode.status(user, job)["hosts"] if it["host"] == host]
    assert found is not None
    return float(found)


def test_a_full_disk(lab: Lab, mode: UserMode) -> None:
    """Of the session, half-way: the job ends as it would have; the report says what is missing, and is whole
    when there is room again."""
    small = mode.make_small_disk("userB", "3m")
    job = mode.submit(
        "userB",
        f"""export JOBLENS_HOME={lab.folder}/small/store
        joblens usermode start --interval 0.5 2>said.$id
        sleep 9
        cat /dev/zero >{lab.folder}/small/much 2>/dev/null
        sleep 3
        joblens usermode stop --json >report.$id 2>>said.$id
        echo done; exit 5""",
        f"--nodelist={HEAD}", "--mem=300M",
    )  # fmt: skip
    row = lab.wait_for_end(job)[job]
    assert (row["State"], row["ExitCode"], lab.output("userB", job)) == ("FAILED", "5:0", "done\n")
    report = mode.file("userB", f"report.{job}").read_text()
    problems = " ".join(json.loads(report)["data"]["problems"])
    assert "No space left on device" in problems, problems
    mode.check_nothing_is_left()
    (small / "much").unlink()
    record = mode.record("userB", job, JOBLENS_HOME=f"{lab.folder}/small/store")
    assert record["data"]["samples"] > 1
    assert (record["job"]["state"], record["job"]["exit_code"]) == ("FAILED", 5)
    assert {path.name for path in small.glob("store/usermode/*/*")} == LEFT


@pytest.mark.xdist_group("cgroups")
def test_little_memory() -> None:
    """Where Slurm limits memory by cgroups: the job ends as it would have, though ours may be killed."""
    need_perl()
    why_not = why_no_lab() or why_no_groups()
    if why_not:
        pytest.skip(why_not)
    with ExitStack() as stack:
        lab = Lab(stack, cgroups=True)
        lab.start_slurm()
        mode = UserMode(lab, stack)
        script = """joblens usermode start --interval 0.5 2>said.$id
            sleep 9
            perl -e 'vec($held, {} << 20, 8) = 1; sleep 3; print qq(held\\n)' || exit 9
            joblens usermode stop >report.$id 2>>said.$id
            exit 0"""
        sizes = {"64M": 16, "300M": 280}
        jobs = {
            size: mode.submit("userA", script.format(held), f"--mem={size}") for size, held in sizes.items()
        }
        rows = lab.wait_for_end(*jobs.values())
        mode.check_nothing_is_left()
        for job in jobs.values():
            assert rows[job]["State"] == "COMPLETED"
            assert lab.output("userA", job) == "held\n"
            assert mode.record("userA", job)["data"]["samples"] > 0


def test_a_holder_that_hangs(lab: Lab, mode: UserMode) -> None:
    """It does not even see the end of the job, which comes as if it was not there."""
    job = mode.submit(
        "userC",
        """joblens usermode start 2>said.$id
        until [ -e over.$id ]; do sleep 0.1; done""",
        "-N2", "--mem=300M",
    )  # fmt: skip
    wait_until_up(mode, "userC", job, 2)
    mode.wait_for_samples("userC", job)
    (holder,) = mode.pids(HEAD, job, HOLDER)
    os.kill(holder, signal.SIGSTOP)
    mode.file("userC", f"over.{job}").touch()
    assert lab.wait_for_end(job)[job]["State"] == "COMPLETED"
    wait_for("idle nodes", lambda: lab.node_states() == dict.fromkeys(NODES, "idle"))
    mode.check_nothing_is_left()
    assert [node["samples"] > 0 for node in mode.record("userC", job)["nodes"]] == [True, True]
