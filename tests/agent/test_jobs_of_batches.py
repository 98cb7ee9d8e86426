"""A batch names the user of every job that it has rows of, also of jobs that are gone when it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.agent.loop import Agent
from joblens.agent.push import Pusher
from joblens.core.config import CollectorSettings, PushSettings, Settings
from joblens.core.host import Host
from kernel import JOB, PROCESS_STAT, PROCESS_STATUS, make_machine
from small_hub import SmallHub, small_hub
from waiting import wait_for

STEPD = (
    b"10 (slurmstepd) S 1 10 10 0 -1 4194560 1 2 3 4 0 0 0 0 20 0 1 0 12000 1000 2000" + b" 0" * 28 + b"\n"
)
WITHOUT_GROUPS: dict[str, bytes | None] = {
    JOB + "/cgroup.procs": None,
    "proc/4000/cgroup": b"0::/\n",
    "proc/4000/stat": b"4000 " + PROCESS_STAT.replace(b" S 1 ", b" S 10 "),
    "proc/10/stat": STEPD,
    "proc/10/status": PROCESS_STATUS.replace(b"1000", b"0"),
    "proc/10/cmdline": b"slurmstepd: [16.batch]\0",
    "proc/10/cgroup": b"0::/\n",
    "run/joblens/jobs/slurm-16.node1.json": json.dumps(
        {"source": "slurm", "id": "16", "uid": 1000, "start": 1700000100, "cluster": "lab", "node": "node1"}
    ).encode(),
}


class Node:
    """An agent on a recorded machine with a job of Slurm's, without its loop: the test says what happens."""

    def __init__(self, folder: Path, hub: SmallHub) -> None:
        self.root, self.hub = folder / "root", hub
        make_machine(self.root, WITHOUT_GROUPS)
        push = PushSettings(url=hub.url, period=1.0, spool=str(folder / "spool"))
        scans = {"processes": CollectorSettings(interval=1.0)}
        settings = Settings(interval=1.0, cluster="lab", push=push, collectors=scans)
        self.agent = Agent(Host(str(self.root)), settings, print)
        self.agent.pusher = Pusher(self.agent.host, self.agent.settings, self.agent.sampler, print)

    def tick(self) -> None:
        self.agent.sample()
        self.agent.grid.tick += 1

    def scan(self) -> None:
        """As a hook of Slurm's triggers it."""
        self.agent.sample_jobs()

    def end_processes(self) -> None:
        for pid in ("10", "4000"):
            (self.root / "proc" / pid / "stat").unlink()
            (self.root / "proc" / pid).rename(self.root / f"ended-{pid}")

    def remove_file(self) -> None:
        (self.root / "run/joblens/jobs/slurm-16.node1.json").unlink()

    def close(self) -> None:
        self.agent.close()

    def unnamed(self) -> list[tuple[int, str, str]]:
        """Return batch, set and job of rows whose job is not in the header with its user."""
        pusher = self.agent.pusher
        assert pusher is not None
        wait_for("an empty spool", lambda: not pusher.spool.batches)
        found = []
        for post in self.hub.stored:
            users = {(job[1], job[2]): job[3:5] for job in post.header["jobs"]}
            for _, rows in post.samples:
                labels = rows.schema.labels
                for key in rows.keys if "jobid" in labels else ():
                    job, node = str(key[labels.index("jobid")]), key[labels.index("node")]
                    if job and users.get((job, node)) != ["alice", 1000]:
                        found.append((post.header["sequence"], rows.schema.set, job))
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with small_hub() as hub:
        node = Node(tmp_path, hub)
        yield node
        node.close()


def rows_of(node: Node, job: str) -> int:
    return sum(
        any(key[1] == job for key in rows.keys)
        for post in node.hub.stored
        for _, rows in post.samples
        if rows.schema.set == "job"
    )


def test_a_job_file_that_outlives_the_processes_by_a_tick(node: Node) -> None:
    """The row of the last scan is held back until the file is gone too, and then the job is not known."""
    node.tick()
    node.scan()
    node.end_processes()
    node.tick()
    node.remove_file()
    node.tick()
    assert node.unnamed() == []
    assert rows_of(node, "16") == 3


def test_processes_that_cannot_be_read_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs keep their rows, without usage, and their user."""
    node.tick()
    (processes,) = [it for it in node.agent.sampler.running if it.name == "processes"]
    with monkeypatch.context() as patched:
        patched.setattr(processes, "read", failing)
        node.tick()
    node.tick()
    assert node.unnamed() == []
    assert rows_of(node, "16") == 3


def failing() -> None:
    raise OSError("cannot be read")
