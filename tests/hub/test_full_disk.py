"""A hub on a full disk: it starts, tells senders to wait, its sinks go on, and it takes batches again."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.hub.auth import own_key
from joblens.hub.segments import list_sealed
from small_disk import fill, mounted
from waiting import wait_for

from .made import SECOND, Running, encode, fleet_segment, node_samples
from .sending import KEY, Hub, Sender, running_hub
from .sinking import Process
from .test_runner import csv_rows, lake_rows

COUNT, TICKS = 40, 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small") as folder:
        yield folder


def make(sequence: int) -> bytes:
    """Of some kilobytes, with rows of just now."""
    now = time.time_ns() // SECOND * SECOND
    times = [now + tick * SECOND for tick in range(TICKS)]
    samples = node_samples(f"n{sequence}", times)
    return encode(f"n{sequence}", 1, samples, filling=os.urandom(2000).hex())


def send(hub: Hub, sequence: int) -> int:
    with Sender(hub.port) as sender:
        return sender.send(make(sequence)).status


def test_starts_and_drains(disk: Path, tmp_path: Path) -> None:
    """The hub was killed, and the disk became full: it starts, nothing is taken, what is in the journal gets
    into the lake, which is elsewhere; with the room that this makes it takes batches again."""
    home = disk / "home"
    with running_hub(tmp_path, home=home) as hub:
        with Sender(hub.port) as sender:
            for sequence in range(COUNT):
                assert sender.send(make(sequence)).status == 200
        hub.kill()
    identity = (home / "id").read_text()
    fill(disk)
    with running_hub(tmp_path, home=home) as hub:
        assert send(hub, COUNT) == 503
        hub.kill()
    config = f'run_sinks = true\nsegment_seconds = 0.2\n[hub.sinks.lake]\nhome = "{tmp_path / "store"}"\n'
    with running_hub(tmp_path, config, home=home) as hub:
        wait_for("an empty journal", lambda: not list_sealed(home / "journal"))
        wait_for("a hub that takes batches", lambda: send(hub, COUNT) == 200)
        assert send(hub, 0) == 200  # it is still known
        wait_for("the last", lambda: len(lake_rows(tmp_path / "store")) == (COUNT + 1) * TICKS)
        assert (home / "id").read_text() == identity
    assert set(lake_rows(tmp_path / "store").values()) == {1}


def test_csv_drains(disk: Path, tmp_path: Path) -> None:
    """Files of users are elsewhere: what is needed to undo a segment that a crash cuts off is there too."""
    home, tree, job = disk / "home", tmp_path / "tree", Running("17", "alice", 1000)
    for number in (1, 2, 3):
        fleet_segment(home / "journal", number, 1, 4, [job])
    fill(disk)
    sink = Process(home, "csv", {"root": str(tree)}, tmp_path / "said")
    try:
        sink.wait_for(1)
        sink.kill()
        sink.start()
        sink.wait_for(3)
        assert sink.end() == 0
    finally:
        sink.close()
    assert Counter(csv_rows(tree).values()) == {1: 3 * 8}


def test_the_first_start(disk: Path, tmp_path: Path) -> None:
    """In a folder that is not there yet: what cannot be written is written when there is room."""
    ballast = fill(disk)
    home = disk / "home"
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_bytes(KEY)
    config = f'key_file = "{tmp_path / "key"}"'
    with running_hub(tmp_path, config, home=home) as hub:
        assert send(hub, 1) == 503
        ballast.unlink()
        assert send(hub, 1) == 200
        identity = (home / "id").read_text()
    with running_hub(tmp_path, config, home=home) as hub:
        assert send(hub, 2) == 200
        assert (home / "id").read_text() == identity


def test_a_key_that_cannot_be_written(disk: Path) -> None:
    """The hub goes on with it, and it is written when there is room."""
    ballast = fill(disk)
    key = own_key(disk / "home", "k" * 40)
    assert key == b"k" * 40
    assert not list((disk / "home").iterdir())
    ballast.unlink()
    assert own_key(disk / "home", "k" * 40) == key
    assert own_key(disk / "home") == key


def test_the_same_hub_before_its_first_batch(tmp_path: Path) -> None:
    """Started again before anything came, it is the same hub: what it has told of jobs is replaced."""
    found = set()
    for _ in range(3):
        with running_hub(tmp_path) as hub:
            found.add((hub.home / "id").read_text())
    assert len(found) == 1
