"""Whatever is wrong with joblens, Slurm's jobs and nodes are as if it were not there."""

from __future__ import annotations

import pytest

from waiting import wait_for

from .lab import NODES, Lab
from .test_scenario import finished
from .watch import PER_JOB, RESIDENT, Watch

_JOB = "srun sh -c 'echo $SLURMD_NODENAME; sleep {seconds}' | sort; exit 7"
_FOLDERS = {
    "c1": (
        "mount -t tmpfs -o size=4k,nr_inodes=2 none /run/joblens; head -c 1M /dev/zero >/run/joblens/full",
    ),
    "c2": ("mount -t tmpfs -o ro none /run/joblens",),
    "c3": ("mount -t tmpfs none /run/joblens; mkfifo /run/joblens/look; touch /run/joblens/jobs",),
}


def run_job(lab: Lab, seconds: int = 0) -> str:
    """On all nodes, with the result that it has where all is well."""
    job = lab.submit("userB", _JOB.format(seconds=seconds), "-N3")
    row = lab.wait_for_end(job)[job]
    assert (row["State"], row["ExitCode"]) == ("FAILED", "7:0"), lab.logs()
    assert lab.output("userB", job).split() == list(NODES)
    wait_for("nodes that are free", lambda: lab.node_states() == dict.fromkeys(NODES, "idle"))
    assert not lab.slurm("sinfo", "-h", "-R").out, "no node was drained, and none has a reason"
    return job


@pytest.mark.parametrize("way", [RESIDENT, PER_JOB])
def test_no_room_for_hooks(lab: Lab, watch: Watch, way: str) -> None:
    """Their folder is full, cannot be written to, or holds other things than it should."""
    watch.install_hooks(way)
    for node in NODES:
        lab.nodes[node].run("mkdir", "-p", "/run/joblens")
        lab.nodes[node].run("sh", "-c", *_FOLDERS[node], check=False)
    try:
        run_job(lab)
    finally:
        for node in NODES:
            lab.nodes[node].run("umount", "--lazy", "/run/joblens")


def test_no_python(lab: Lab, watch: Watch) -> None:
    """The agent that the prolog should start is not there any more."""
    program = lab.path("removed")
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    watch.install_hooks(PER_JOB, f"{lab.folder}/removed -m joblens agent")
    program.unlink()
    run_job(lab)


def test_agents_dead(lab: Lab, watch: Watch) -> None:
    """They were killed, and have left their files and pipes behind."""
    with watch.running(RESIDENT):
        for node in NODES:
            watch.kill_agent(node)
        run_job(lab)


def test_hub_dead(lab: Lab, watch: Watch) -> None:
    """Agents keep what they have, and when the hub is back the job has its samples."""
    with watch.running(RESIDENT):
        watch.kill_hub()
        job = run_job(lab, seconds=3)  # for agents on a busy machine to see it
        watch.start_hub()
        watch.wait_for_agents()
    watch.wait_for_sinks()
    record = wait_for("its record", lambda: finished(watch, job))
    assert (record["job"]["state"], record["job"]["exit_code"]) == ("FAILED", 7)
    assert {node for (node,) in watch.in_lake("job", "DISTINCT node", f"jobid = '{job}'")} == set(NODES)
