"""Three slurmd on one machine, without cgroups: each node of a job has its own part of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from joblens.wire.mac import make_token
from waiting import wait_for

from .lab import CLUSTER, MACHINE, NODES, Lab, why_no_lab
from .test_scenario import finished
from .user_mode import UserMode
from .watch import RESIDENT, Watch
from .work import burn, need_perl, wait_for_no_processes

# Seconds of CPU time: each node another.
WORK = {"c1": 0.6, "c2": 1.2, "c3": 1.8}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    need_perl()
    if why_not := why_no_lab():
        pytest.skip(why_not)
    with ExitStack() as stack:
        lab = Lab(stack, one_machine=True)
        lab.watch = Watch(lab)
        token = lab.nodes["c1"].path("/run/joblens-token")
        token.write_text(make_token(lab.path("etc/joblens.key").read_bytes(), CLUSTER, MACHINE))
        hub = lab.path("etc/hub.toml")
        hub.write_text(hub.read_text().replace("[hub]", "[hub]\nother_nodes = true"))
        lab.start_slurm()
        yield lab


def work() -> str:
    """On each node another amount, and what the kernel has counted there."""
    cases = "".join(f"{node}) {burn(cpu, hold=2)};; " for node, cpu in WORK.items())
    script = f"case $SLURMD_NODENAME in {cases}esac; echo $SLURMD_NODENAME; times"
    return f"srun sh -c {shlex.quote(script)}"


def counted(text: str) -> dict[str, float]:
    """By node, what its shell says that it and its children have used."""
    found = {}
    for node, lines in re.findall(r"(c\d)\n((?:.*m.*s.*m.*s\n){2})", text):
        spent = re.findall(r"(\d+)m([\d.]+)s", lines)
        found[node] = sum(int(minutes) * 60 + float(seconds) for minutes, seconds in spent)
    return found


def check_nodes(record: dict[str, object], text: str, rest: float) -> None:
    """`rest`: seconds that slurmstepd, srun and the batch script may use on a node."""
    spent = counted(text)
    assert set(spent) == set(NODES), text
    nodes = {it["node"]: it for it in record["nodes"]}  # type: ignore[attr-defined]
    assert set(nodes) == set(NODES)
    for name, cpu in spent.items():
        assert cpu - 0.1 <= nodes[name]["cpu_seconds"] <= cpu + rest, (name, nodes, spent)
        assert nodes[name]["samples"] > 0


def test_root(lab: Lab) -> None:
    """One agent for all three: every node has its share, and the job has it once."""
    watch = lab.watch
    watch.start_hub()
    watch.install_hooks(RESIDENT)
    watch.start_agent("c1")
    wait_for("the agent", lambda: MACHINE in {it["node"] for it in watch.ls()["nodes"]})
    job = lab.submit("userA", work(), "-N3", "--ntasks-per-node=1")
    wait_for(
        "it on all nodes",
        lambda: {it["node"] for it in watch.ls()["jobs"] if it["jobid"] == job} == set(NODES),
    )
    lab.wait_for_end(job)
    wait_for_no_processes(lab)
    watch.stop_agent("c1")
    watch.wait_for_sinks()
    record = wait_for("its record", lambda: finished(watch, job))
    check_nodes(record, lab.output("userA", job), rest=0.5)
    last = dict(watch.in_lake("job", "node, max(cpu_seconds)", f"jobid = '{job}' GROUP BY node"))
    assert float(sum(last.values())) == pytest.approx(
        sum(counted(lab.output("userA", job)).values()), abs=1.0
    )


def test_user_mode(lab: Lab) -> None:
    """Three agents of an ordinary user: each counts its node, and none what is another's."""
    with ExitStack() as stack:
        mode = UserMode(lab, stack)
        stack.callback(mode.end_jobs)
        script = f"joblens usermode start 2>said.$id\n{work()}\njoblens usermode stop >report.$id 2>>said.$id"
        job = mode.submit("userB", script, "-N3", "--ntasks-per-node=1")
        lab.wait_for_end(job)
        said = mode.file("userB", f"said.{job}").read_text()
        assert said == f"joblens: user mode of job {job}: 3 hosts up\n"
        record = mode.record("userB", job)
        # Agents, and on the first node the hub, are a part of the job.
        check_nodes(record, lab.output("userB", job), rest=3.0)
        perls = [it for it in record["processes"] if it["name"] == "perl"]
        assert sorted(it["node"] for it in perls) == list(NODES)
