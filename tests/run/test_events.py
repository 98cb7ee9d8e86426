from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from joblens.collectors.gpu.collector import gpus as read_gpus
from joblens.core.host import Host
from joblens.core.model import Sample
from joblens.run.gpus import JobGpus
from joblens.run.sampler import JobEvents
from small_group import GREEDY, small_group

from .running import Stand

NODES = Path(__file__).parent.parent / "nodes"
JOB = ("cluster", "r1", "node1")
SECOND = 10**9
KILL = "3,{},5,-;Memory cgroup out of memory: Killed process {} (x) total-vm:1kB, anon-rss:1kB"


class Elsewhere(Host):
    """A container with pids of its own."""

    def counts_pids_as_kernel(self) -> bool:
        return False


class Clock:
    def __init__(self) -> None:
        self.time_ns = 1000 * SECOND

    def __call__(self) -> int:
        return self.time_ns


class Machine:
    def __init__(self, folder: Path, kind: type[Host] = Host) -> None:
        (folder / "dev").mkdir()
        self.log, self.clock = folder / "dev/kmsg", Clock()
        self.log.write_text(KILL.format(1, 42) + "\n")
        self.events = JobEvents(kind(str(folder)), JOB, self.clock)

    def tell(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.writelines(line + "\n" for line in lines)


def told(samples: list[Sample]) -> list[tuple[object, ...]]:
    return [(key[3], key[4], key[6]) for sample in samples for key in sample.rows.keys]


def test_of_its_own_processes(tmp_path: Path) -> None:
    """What was before the job is not its own, nor what happened to others; a killed one has gone already."""
    machine = Machine(tmp_path)
    assert machine.events.read({42, 43}, ()) == []
    machine.clock.time_ns += SECOND
    machine.tell(KILL.format(2, 43), KILL.format(3, 44))
    (sample,) = machine.events.read({42}, ())
    key = ("cluster", "r1", "node1", "oom_cgroup", "", KILL.format(2, 43).partition(";")[2], 43)
    assert (sample.rows.schema.set, sample.rows.keys, sample.rows.values) == ("event", (key,), [1])
    assert 1000 * SECOND <= sample.time_ns <= 1001 * SECOND
    assert machine.events.read({42}, ()) == []


def test_pids_come_round(tmp_path: Path) -> None:
    """A pid that was the job's a minute ago can be another's."""
    machine = Machine(tmp_path)
    machine.events.read({42, 43}, ())
    machine.clock.time_ns += 61 * SECOND
    machine.tell(KILL.format(2, 43), KILL.format(3, 42))
    assert told(machine.events.read({42}, ())) == [("oom_cgroup", "", 42)]


def test_of_its_gpus(tmp_path: Path) -> None:
    """An error of a card that the job uses, however its address is written, though it names no process."""
    machine = Machine(tmp_path)
    machine.tell(
        "3,2,5,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        "3,3,5,-;NVRM: Xid (PCI:0000:af:00): 79, pid=9, GPU has fallen off the bus.",
        "6,4,5,-;amdgpu 0000:03:00.0: amdgpu: GPU reset begin!",
        "6,5,5,-;eth0: Link is Down",
    )
    assert told(machine.events.read((), ("00000000:3B:00.0", "0000:03:00.0", "", "odd"))) == [
        ("xid_79", "0000:3b:00", 0),
        ("amdgpu_reset", "0000:03:00.0", 0),
    ]


def test_other_pids_than_the_kernels(tmp_path: Path) -> None:
    """In a container the same number is another process."""
    machine = Machine(tmp_path, Elsewhere)
    machine.tell(KILL.format(2, 42), "3,3,5,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, x")
    assert told(machine.events.read({42}, ("0000:3b:00.0",))) == [("xid_31", "0000:3b:00", 7)]


def test_without_a_log(tmp_path: Path) -> None:
    """As for most users: nothing is known, and nothing is wrong."""
    assert JobEvents(Host(str(tmp_path)), JOB, Clock()).read({1}, ("0000:3b:00",)) == []


@pytest.mark.alone  # not in the pid namespace of a worker
def test_a_real_kill(stand: Stand) -> None:
    """A process of a job that is killed for want of memory is on the job's timeline, with its pid."""
    try:
        os.close(Host().open_log("dev/kmsg"))
    except OSError as error:
        pytest.skip(f"the kernel's log cannot be read here: {error.strerror}")
    if not Host().counts_pids_as_kernel():
        pytest.skip("pids are other ones than the kernel's here")
    # When there is a batch, the process has been seen.
    wait = (
        "import glob, os, time\n"
        "while not glob.glob(os.environ['JOBLENS_HOME'] + '/**/*.batch', recursive=True): time.sleep(0.05)\n"
        "print(os.getpid(), flush=True)\n"
    )
    with small_group() as group:
        done = stand.run([sys.executable, "-c", wait + GREEDY, str(group / "cgroup.procs")])
    if done.returncode != -9:
        pytest.skip("the group's limit is not kept here: there is swap")
    record = stand.job()
    (event,) = record["events"]
    assert (event["kind"], event["pid"]) == ("oom_cgroup", int(done.stdout.split()[0]))
    assert record["job"]["start"] <= event["time"] <= record["job"]["end"] + 1
    assert "Events\n" in done.stderr
    assert "oom_cgroup: Memory cgroup out of memory: Killed process" in done.stderr


def test_the_buses_of_its_gpus() -> None:
    """Those of the cards that it was given and no others."""
    gpus = JobGpus(Host(str(NODES / "amd-gpus")), JOB, ("0",))
    keys = {rows.schema.set: rows.keys for rows in read_gpus(Host(str(NODES / "amd-gpus")))()}["gpu"]
    gpus.read(())
    assert gpus.buses == {str(key[2]) for key in keys if key[1] == "0"}
    assert len(gpus.buses) == 1
