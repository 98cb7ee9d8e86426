"""Hub and sinks at rest: who has nothing to do does not look for it all the time."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

import pytest

from joblens.core.process import Child
from joblens.hub.groups import Groups
from joblens.hub.retention import Changes
from joblens.hub.runner import Runner, Worker
from joblens.hub.segments import list_sealed
from joblens.hub.sink import SEALED, Hurry, Place, SinkTask, Work, check_options
from joblens.hub.sinks.lake import LakeSink
from joblens.store.home import find_home, make_home
from waiting import PATIENCE, wait_for

from .made import fleet_segment


def test_a_line_of_the_hub_wakes_a_sink() -> None:
    """One that says that a segment is sealed hurries none, and one that hurries wakes as well."""
    hurry = Hurry()
    ended = threading.Event()

    def wait() -> None:
        hurry.wait(PATIENCE)
        ended.set()

    for line, through in ((SEALED, 0.0), (b"7", 7.0), (SEALED, 7.0), (b"", math.inf)):
        ended.clear()
        thread = threading.Thread(target=wait)
        thread.start()
        hurry.read([line])
        assert ended.wait(PATIENCE / 2)
        thread.join()
        assert hurry.through == through


def test_a_sink_sleeps_until_its_group_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And looks often when it has been asked for a segment that is not there yet."""
    now = [1000.0]
    monkeypatch.setattr("joblens.hub.groups.time.monotonic", lambda: now[0])
    hurry = Hurry()
    sink = LakeSink("h1", make_home(find_home(tmp_path / "store")))
    place = Place("lake", tmp_path / "hub", "h1")
    place.folder.mkdir(parents=True)
    place.cursor.parent.mkdir()
    work = Work(place, "lake", sink, print, collect_seconds=60.0, hurry=hurry, poll_seconds=10.0)
    assert work.step() == 10.0
    fleet_segment(place.journal, 1)
    assert work.step() == 0.0  # the first group of all
    fleet_segment(place.journal, 2)
    assert work.step() == 10.0
    now[0] += 55.0
    assert work.step() == 5.0
    hurry.read([b"3"])
    assert work.step() == 0.0
    assert work.cursor.segment == 2
    assert work.step() < 1.0
    fleet_segment(place.journal, 3)
    assert work.step() == 0.0
    assert work.step() == 10.0


def test_how_long_segments_still_wait(tmp_path: Path) -> None:
    """Not at all where none does."""
    assert Groups(tmp_path / "group", "h1", 60.0).remaining() == math.inf


def test_the_hub_tells_its_sinks_of_new_segments(tmp_path: Path) -> None:
    """A line for each time that it finds some."""
    kind, options = check_options("lake", {"home": str(tmp_path / "store")})
    runner = Runner(tmp_path / "hub", {"lake": (kind, options)}, lambda _: None)
    sealed = [0]
    runner.sealed = lambda: sealed[0]
    lines: list[str] = []
    (worker,) = runner._workers
    worker.child = Child(["cat"], lines.append, given=b"")
    runner._wake()
    sealed[0] = 2
    runner._wake()
    runner._wake()
    worker.child.close_input()
    worker.child.close()
    assert lines == [SEALED.decode()]


def test_a_sink_that_does_not_read(tmp_path: Path) -> None:
    """The hub does not wait for it, however many segments there are."""
    worker = Worker("sink x", "none", SinkTask("x", "", "", "lake", {}))
    worker.child = Child(["sleep", "1000"], given=b"")
    try:
        for _ in range(70_000 // len(SEALED)):
            worker.wake()
    finally:
        worker.child.end(0.0)


def test_sinks_of_a_hub_take_what_comes_later(tmp_path: Path) -> None:
    """Though they have slept since they had nothing to do."""
    home = tmp_path / "hub"
    kind, options = check_options("csv", {"root": str(tmp_path / "tree")})
    runner = Runner(home, {"csv": (kind, options)}, lambda _: None)
    runner.sealed = lambda: len(list_sealed(home / "journal"))
    runner.start()
    try:
        wait_for("the sink", lambda: runner.status()[0].state == "working")
        fleet_segment(home / "journal", 1)
        wait_for("the first", lambda: runner.status()[0].cursor.segment == 1)
        fleet_segment(home / "journal", 2)
        wait_for("the second", lambda: runner.status()[0].cursor.segment == 2)
    finally:
        runner.stop()


def test_the_journal_is_cleaned_when_something_has_changed(tmp_path: Path) -> None:
    """A cursor or a segment; and now and then anyway."""
    journal, cursors = tmp_path / "journal", tmp_path / "cursors"
    changes = Changes(journal, cursors)
    assert changes.is_due(0.0)  # nothing is there yet
    assert [changes.is_due(second) for second in (1.0, 2.0, 3.0, 4.0, 5.0)] == [True, *[False] * 4]
    assert changes.is_due(6.5)
    assert not changes.is_due(7.0)
    for folder in (journal, cursors):
        folder.mkdir()
        (folder / "00000001").touch()
        begin = 10.0 if folder == journal else 20.0
        assert [changes.is_due(begin + second) for second in (0.0, 1.0, 2.0)] == [True, True, False]


def test_a_hurry_that_the_pipe_has_no_room_for() -> None:
    """The hub does not wait for a sink that does not read: it sends the last request once there is room."""
    worker, last = Worker("sink x", "none", SinkTask("x", "", "", "lake", {})), 30_000
    worker.child = child = Child(["sleep", "1000"], given=b"")
    try:
        for segment in range(1, last + 1):
            worker.hurry(segment)
        assert read_in_its_place(child.process.pid)[-1] < last
        worker.look(0.0, print)
        assert read_in_its_place(child.process.pid) == [last]
        worker.look(0.0, print)
        assert read_in_its_place(child.process.pid) == []
    finally:
        child.end(0.0)


def read_in_its_place(pid: int) -> list[int]:
    """What a process would read from its input now."""
    file = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    data = b""
    try:
        while True:
            data += os.read(file, 1 << 16)
    except BlockingIOError:
        return [int(line) for line in data.split()]
    finally:
        os.close(file)
