"""A job of many days: what joblens holds does not grow."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from joblens.core.model import GAUGE, Column, Rows, Sample, Schema
from joblens.run import sampler
from joblens.run.clock import Clock, start_clock
from joblens.run.sampler import Batches
from joblens.wire.batch import decode
from joblens.wire.header import Head
from waiting import PATIENCE, wait_for

from .running import Stand, load, sampler_of

FACTS: Head = {"cluster": "c", "id": "r1", "node": "n", "boot": "b"}
ROWS = Rows(Schema("s", ("k",), (Column("v", GAUGE, ""),)), (("a",),), [1])


def status(pid: int | str) -> dict[str, int]:
    lines = [line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


LOOKS = """
import os, sys
from joblens.core.host import Host
from joblens.run.sampler import Batches
from joblens.run.facts import collect
from joblens.run.sampler import Sampler

facts = collect(Host(), ["true"], "", {}, 1.0)
watch, batches = Sampler(Host(), facts, os.getppid()), Batches(sys.argv[1], {"id": facts.id})
for count in (2000, 2000):
    for _ in range(count):
        batches.add(watch.sample())
    batches.flush()
    print(*[line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS:")])
print(*watch.problems, *batches.problems())
"""


def test_thousands_of_looks(tmp_path: Path) -> None:
    """Once all tables are filled, two thousand looks more take no further memory."""
    words = [sys.executable, "-c", LOOKS, str(tmp_path)]
    said = subprocess.run(words, check=True, capture_output=True, text=True, timeout=10 * PATIENCE)
    before, after, problems = said.stdout.splitlines()
    assert int(after) - int(before) < 2048  # KiB
    assert problems == ""


def test_looks_of_a_running_job(stand: Stand) -> None:
    """The process that looks on stays as it is over hundreds of looks, and the supervisor sleeps."""
    process = stand.start(load("stand_still", 0), "--quiet", "--interval", "0.01")
    watcher = wait_for("the watcher", lambda: sampler_of(process.pid))

    def after(looks: int) -> tuple[int, int]:
        wait_for("looks", lambda: status(watcher)["voluntary_ctxt_switches:"] > looks)
        return status(watcher)["VmRSS:"], status(process.pid)["VmRSS:"]

    early, late = after(100), after(400)
    awake = status(process.pid)["voluntary_ctxt_switches:"]
    assert late[0] - early[0] < 2048
    assert late[1] == early[1]
    assert status(process.pid)["voluntary_ctxt_switches:"] == awake
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert stand.job()["data"]["problems"] == []


def test_thousands_of_orphans(stand: Stand) -> None:
    """Of each child that the supervisor waits for it keeps sums only."""
    assert stand.run(load("many_orphans", 600), "--quiet").returncode == 0
    told = stand.told()
    assert told["after"] - told["before"] < 512  # KiB


def test_a_batch_is_written_when_it_is_large_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By values or by seconds, whichever comes first; numbers go on from one to the next."""
    batches = Batches(str(tmp_path), FACTS)
    monkeypatch.setattr(sampler, "_BATCH_VALUES", 3)
    for moment in range(7):
        batches.add([Sample(moment, ROWS)])
    assert sorted(os.listdir(tmp_path)) == ["00000001.batch", "00000002.batch"]
    batches.since = time.monotonic() - 31
    batches.add([Sample(8, ROWS)])
    headers = [decode(path.read_bytes()) for path in sorted(tmp_path.iterdir())]
    assert [header["sequence"] for header, _ in headers] == [1, 2, 3]
    assert [sample.time_ns for _, samples in headers for sample in samples] == [0, 1, 2, 3, 4, 5, 6, 8]


def test_what_the_disk_does_not_take_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory, up to a limit; the oldest goes first, and that is told."""
    folder = tmp_path / "later"
    batches = Batches(str(folder), FACTS)

    def fill(count: int) -> None:
        for moment in range(count):
            batches.add([Sample(moment, ROWS)])
            batches.flush()

    fill(3)
    folder.mkdir()
    fill(1)
    assert len(os.listdir(folder)) == 4
    assert batches.problems() == []
    size = (folder / "00000001.batch").stat().st_size
    monkeypatch.setattr(sampler, "_MOST_UNWRITTEN", 5 * size)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    fill(9)
    folder.mkdir()
    fill(1)
    assert len(os.listdir(folder)) == 5
    assert batches.problems()[0].startswith("5 of 14 batches of samples were lost: ")


def test_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's own time goes on evenly, and a jump of the machine's clock is noticed in both directions."""
    clock = start_clock()
    assert clock.jump() is None
    for jump in (3600, -3600):
        set_earlier = Clock(clock.wall - jump * 10**9, clock.boot)
        assert set_earlier.jump() == pytest.approx(jump, abs=5)
    before = clock.now_ns()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 0 <= clock.now_ns() - before < 60 * 10**9
