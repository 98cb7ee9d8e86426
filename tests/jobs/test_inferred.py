"""Jobs without a batch system: from samples in a real lake to one record each, whatever happens meanwhile."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from joblens.core.config import JobsSettings
from joblens.jobs.finish import finish
from joblens.jobs.inferred import passes
from joblens.jobs.live_lists import save_live
from joblens.jobs.sightings import Process, Sightings, Usage, is_own
from joblens.jobs.state import State
from joblens.store.records import load_records

from .machine import BEGIN, Machine, Program

KEY = ("lab", "s100", "n1")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_job_runs_ends_and_has_a_record(machine: Machine) -> None:
    """With the program that leads it, its user, and as end its last sample."""
    started = machine.start(100, 1.0, "/opt/bin/solver --steps 9")
    machine.sample(20)
    machine.follower.step()
    (running,) = machine.inferred.live()
    assert (running.id, running.name, running.state) == ("s100", "solver", "RUNNING")
    assert (running.start, running.end, running.nodes) == (started.start, None, ("n1",))
    assert machine.records() == []
    machine.end(100)
    machine.sample(5)
    machine.follower.step()
    (record,) = machine.records()
    assert (record["id"], record["name"], record["source"]) == ("s100", "solver", "inferred")
    assert (record["start"], record["end"], record["state"]) == (started.start, BEGIN + 20, "ENDED")
    assert record["cpu_seconds"] == pytest.approx(19.75)
    assert machine.listed() == []
    assert machine.said == []


def test_what_is_short_or_idle_is_counted(machine: Machine) -> None:
    """A command of two seconds, and a shell at a prompt."""
    machine.start(100, 1.0, "ls -lR")
    machine.start(200, 0.001, "-bash")
    machine.sample(2)
    machine.end(100)
    machine.sample(100)
    machine.follower.step()
    assert machine.listed() == []
    assert machine.inferred.left_out == 1
    machine.end(200)
    machine.sample(5)
    machine.follower.step()
    machine.follower.step()
    assert machine.records() == []
    assert machine.inferred.left_out == 2


def test_thresholds() -> None:
    """Too short by both measures, or idle; who has used much is neither."""
    options = JobsSettings()
    assert passes(options, 12.0, 10.0)
    assert passes(options, 60.0, 0.6)
    assert not passes(options, 59.0, 9.9)
    assert not passes(options, 60.0, 0.5)
    assert not passes(options, 86_400.0, 300.0)
    assert passes(options, 30 * 86_400.0, 600.0)
    assert not passes(options, 100.0, None)


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/python3 -m joblens run -- a.out",
        "/usr/bin/python3 /home/u/venv/bin/joblens run --name x -- a.out",
        "/home/u/bin/joblens up",
        "python3 -m joblens.hub.sink lake",
        "jl-watch r1nfsatpjbrvv",
    ],
)
def test_joblens_is_no_job(command: str) -> None:
    assert is_own(command)


@pytest.mark.parametrize(
    "command",
    ["", "a.out", "python3 -m joblens_tools run", "vi /home/u/joblens run", "joblens-run", "joblens"],
)
def test_others_are(command: str) -> None:
    assert not is_own(command)


def test_joblens_run_has_its_own_record(machine: Machine) -> None:
    """Its session gets none for what the command has used, and one for what else it does."""
    machine.start(100, 0.001, "/bin/sh batch.sh")
    machine.start(101, 0.01, "/venv/bin/joblens run -- a.out", session=100, parent=100)
    machine.start(102, 1.0, "a.out", session=100, parent=101)
    machine.start(200, 0.001, "/bin/sh batch.sh")
    machine.start(201, 0.01, "/venv/bin/joblens run -- a.out", session=200, parent=200)
    machine.start(202, 1.0, "a.out", session=200, parent=201)
    machine.start(203, 1.0, "b.out", session=200, parent=200)
    machine.sample(40)
    for pid in list(machine.programs):
        machine.end(pid)
    machine.sample(5)
    machine.follower.step()
    assert [it["id"] for it in machine.records()] == ["s200"]


def test_an_id_that_another_boot_uses_again(machine: Machine) -> None:
    """Two jobs, with the same number, and the same time after the boot."""
    machine.boot = machine.now
    first = machine.start(100, 1.0)
    machine.sample(30)
    machine.reboot()
    second = machine.start(100, 1.0)
    machine.sample(30)
    machine.follower.step()
    machine.end(100)
    machine.sample(5)
    machine.follower.step()
    assert [(it["start"], it["end"]) for it in machine.records()] == [
        (first.start, BEGIN + 30),
        (second.start, BEGIN + 120),
    ]


def test_a_number_that_comes_again_in_the_same_boot() -> None:
    """A leader that began after all others of that number had gone leads another job."""
    sightings = Sightings()
    sightings.boots.add("lab", "n1", 1000.0, 1000.0, 9000.0)
    first = Process(KEY, 100, 0, 1, 1000, "a", "a", 1001.0, 1100.0)
    again = Process(KEY, 100, 20_000, 1, 1000, "b", "b", 1201.0, 1300.0)
    child = Process(KEY, 101, 20_500, 100, 1000, "c", "c", 1206.0, 1310.0)
    assert [run.start for run in sightings.add([again, child, first])] == [1000.0, 1200.0]
    assert [(run.leader.name, run.last) for run in sightings.all()] == [("a", 1100.0), ("b", 1310.0)]
    sightings.count(Usage(KEY, 1040.0, 1100.0, 7.0))
    sightings.count(Usage(KEY, 1240.0, 1300.0, 9.0))
    assert [run.cpu for run in sightings.all()] == [7.0, 9.0]


def test_a_zombie_does_not_run(machine: Machine) -> None:
    """A parent that does not wait for its job leaves a process behind, that has ended."""
    machine.start(100, 1.0)
    machine.sample(20)
    machine.programs[100] = machine.programs[100]._replace(state="Z")
    machine.sample(20)
    machine.follower.step()
    (record,) = machine.records()
    assert record["end"] == BEGIN + 20
    (path,) = machine.home.records.rglob("*.json")
    (whole,) = load_records(path, [])
    assert [it["left_behind"] for it in whole["processes"]] == [False]


def test_two_runs_of_a_number_in_one_minute(machine: Machine) -> None:
    """Read at once, each has the CPU time of its own samples, and so its record."""
    first = machine.start(100, 1.0)
    machine.sample(16)
    machine.end(100)
    machine.sample(6)
    second = machine.start(100, 1.0)
    machine.sample(14)
    machine.end(100)
    machine.sample(5)
    machine.follower.step()
    found = [(it["start"], it["end"]) for it in machine.records()]
    assert found == [(first.start, BEGIN + 16), (second.start, BEGIN + 36)]


def test_a_leader_that_ends_first(machine: Machine) -> None:
    """The job goes on under the name that it had."""
    started = machine.start(100, 0.1, "launcher x")
    machine.start(101, 1.0, "worker", session=100, parent=100)
    machine.sample(20)
    machine.end(100)
    machine.sample(20)
    machine.end(101)
    machine.sample(5)
    machine.follower.step()
    (record,) = machine.records()
    assert (record["name"], record["start"], record["end"]) == ("launcher", started.start, BEGIN + 40)


def test_a_node_that_is_silent(machine: Machine) -> None:
    """Its job gets a record that says so, which is replaced when the node is back and the job with it."""
    started = machine.start(100, 1.0)
    machine.sample(20)
    machine.follower.step()
    machine.now += 601
    machine.follower.step()
    (record,) = machine.records()
    assert record["end"] == BEGIN + 20
    report = machine.follower.catalog.report(("lab", "s100", started.start))
    assert report["job"]["reason"] == "node n1 has sent nothing since; it may have gone on"
    machine.sample(10)
    machine.follower.step()
    assert machine.listed() == ["s100"]
    machine.end(100)
    machine.sample(5)
    machine.follower.step()
    (record,) = machine.records()
    assert record["end"] == BEGIN + 20 + 601 + 10
    assert machine.follower.catalog.report(("lab", "s100", started.start))["job"]["reason"] == ""


def test_samples_that_come_after_the_record(machine: Machine) -> None:
    """Of a node that was cut off while its job ended: the record has the later end, after a restart too."""
    started = machine.start(100, 1.0)
    machine.sample(20)
    machine.follower.step()
    machine.now += 601
    machine.follower.step()
    assert [record["end"] for record in machine.records()] == [BEGIN + 20]
    machine.now -= 601
    machine.sample(10)
    machine.end(100)
    machine.sample(10)
    machine.now += 600
    machine.restart()
    machine.follower.step()
    (record,) = machine.records()
    assert (record["start"], record["end"]) == (started.start, BEGIN + 30)


def test_a_boot_time_that_is_rounded_otherwise(machine: Machine) -> None:
    """Read again after a restart, a job keeps the start that its record has."""
    machine.start(100, 1.0)
    machine.sample(20, jitter=1)
    machine.end(100)
    machine.sample(5)
    machine.follower.step()
    (record,) = machine.records()
    for path in machine.home.lake.rglob("set=kernel/date=*/*.parquet"):
        path.unlink()
    machine.boot += 1
    machine.sample(5)
    machine.restart()
    machine.follower.step()
    assert machine.records() == [record]


class Killed(BaseException):
    pass


class Fate:
    """What happens on a machine, by chance: which jobs begin and end, and when the follower is killed."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine, self.chance = machine, random.Random(seed)
        self.running: dict[int, Program] = {}
        self.used: set[int] = set()  # numbers, since the boot
        self.expected: dict[tuple[str, float], int] = {}

    def happens(self, chance: float) -> bool:
        return self.chance.random() < chance

    def begin(self) -> None:
        for pid in self.chance.sample(range(100, 140), self.chance.randrange(3)):
            if pid not in self.used:
                self.used.add(pid)
                self.running[pid] = self.machine.start(pid, 1.0)

    def end(self, pid: int) -> None:
        it = self.running.pop(pid)
        if self.machine.now - it.start >= JobsSettings().least_cpu_seconds:
            self.expected[f"s{pid}", it.start] = self.machine.now
        self.machine.end(pid)

    def end_some(self, chance: float) -> None:
        for pid in list(self.running):
            if self.happens(chance):
                self.end(pid)

    def reboot(self) -> None:
        self.end_some(1.0)
        self.used.clear()
        self.machine.reboot()

    def killed_around(self, function: Any) -> Any:
        def call(*values: Any) -> Any:
            if self.happens(0.2):
                raise Killed
            found = function(*values)
            if self.happens(0.2):
                raise Killed
            return found

        return call

    def turn(self) -> None:
        """Until the follower lives through one."""
        while True:
            try:
                self.machine.follower.step()
                return
            except Killed:
                while True:
                    try:
                        self.machine.restart()
                        break
                    except Killed:
                        continue


def test_killed_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every job that is not too short has one record, with its start and its last sample as its end."""
    fate = Fate(Machine(tmp_path), seed=2)
    monkeypatch.setattr("joblens.jobs.follow.finish", fate.killed_around(finish))
    monkeypatch.setattr(State, "save", fate.killed_around(State.save))
    monkeypatch.setattr("joblens.jobs.follow.save_live", fate.killed_around(save_live))
    for number in range(10):
        fate.begin()
        fate.machine.sample(fate.chance.randrange(3, 30))
        fate.end_some(0.4)
        if number == 5:
            fate.reboot()
        if fate.happens(0.4):
            fate.turn()
    fate.end_some(1.0)
    fate.machine.sample(5)
    fate.turn()
    fate.turn()
    found = [(it["id"], it["start"], it["end"]) for it in fate.machine.records()]
    assert sorted(found) == sorted((*key, end) for key, end in fate.expected.items())
    assert len(found) > 1
