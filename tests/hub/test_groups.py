"""Segments that a sink takes together: fewer and larger files, and still every row once."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from joblens.core import files
from joblens.core.config import JobsSettings
from joblens.hub import groups
from joblens.hub.cursors import load_cursor
from joblens.hub.gaps import Gaps
from joblens.hub.groups import Groups
from joblens.hub.retention import clean
from joblens.hub.runner import Runner
from joblens.hub.segments import Segment, list_sealed
from joblens.hub.sink import Hurry, Place, Work, check_options
from joblens.hub.sinks.lake import LakeSink
from joblens.store.home import find_home, make_home
from joblens.store.lake.lake import Lake
from waiting import wait_for

from .made import fleet_segment
from .sinking import Process


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("joblens.hub.groups.time.monotonic", lambda: now[0])
    return now


def segments(folder: Path, *numbers: int) -> list[Segment]:
    found = [Segment(number, folder / f"{number:08d}.sealed") for number in numbers]
    for segment in found:
        segment.path.write_bytes(bytes(100))
    return found


def numbers(group: groups.Group | None) -> list[int]:
    return [it.number for it in group.segments] if group else []


def test_they_wait_for_each_other(tmp_path: Path, clock: list[float]) -> None:
    """Until the first has waited for long enough, or somebody is in a hurry."""
    chosen = Groups(tmp_path / "group", "h1", 60.0)
    assert numbers(chosen.choose(segments(tmp_path, 1), False)) == [1]  # nothing was ever begun
    assert chosen.choose(segments(tmp_path, 2), False) is None
    clock[0] += 59
    assert chosen.choose(segments(tmp_path, 2, 3), False) is None
    clock[0] += 2
    assert numbers(chosen.choose(segments(tmp_path, 2, 3, 4), False)) == [2, 3, 4]
    assert chosen.choose([], True) is None
    assert chosen.choose(segments(tmp_path, 5), False) is None
    assert numbers(chosen.choose(segments(tmp_path, 5, 6), True)) == [5, 6]


def test_segments_that_are_dropped_while_they_wait(tmp_path: Path, clock: list[float]) -> None:
    """Nobody is waited for any more: a sink would look for them without a pause."""
    chosen = Groups(tmp_path / "group", "h1", 60.0)
    chosen.choose(segments(tmp_path, 1), False)
    assert chosen.choose(segments(tmp_path, 2), False) is None
    clock[0] += 100
    assert chosen.choose([], False) is None
    assert chosen.remaining() == math.inf
    assert chosen.choose(segments(tmp_path, 3), False) is None
    assert chosen.remaining() == 60.0


def test_no_more_than_fits(tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is more than a group may have is not waited for."""
    monkeypatch.setattr(groups, "_MOST_BYTES", 250)
    chosen = Groups(tmp_path / "group", "h1", 60.0)
    chosen.choose(segments(tmp_path, 1), False)
    assert numbers(chosen.choose(segments(tmp_path, 2, 3, 4), False)) == [2, 3]


def test_enough_bytes_do_not_wait(
    tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy hub a group is taken as soon as it is large."""
    monkeypatch.setattr(groups, "_ENOUGH_BYTES", 250)
    chosen = Groups(tmp_path / "group", "h1", 60.0)
    chosen.choose(segments(tmp_path, 1), False)
    assert chosen.choose(segments(tmp_path, 2, 3), False) is None
    assert numbers(chosen.choose(segments(tmp_path, 2, 3, 4), False)) == [2, 3, 4]


def test_a_group_that_was_begun_stays_the_same(tmp_path: Path, clock: list[float]) -> None:
    """Though more segments wait when it is taken again, and one of its own is gone."""
    chosen = Groups(tmp_path / "group", "h1", 60.0)
    chosen.choose(segments(tmp_path, 1), False)
    chosen.choose(segments(tmp_path, 2, 3, 4), True)
    again = Groups(tmp_path / "group", "h1", 60.0).choose(segments(tmp_path, 3, 4, 5, 6), False)
    assert again == (2, 4, segments(tmp_path, 3, 4))
    assert Groups(tmp_path / "group", "h1", 60.0).choose(segments(tmp_path, 5), False) is None


def test_a_journal_that_begins_anew(tmp_path: Path, clock: list[float]) -> None:
    """Another hub's group, or a file that cannot be read, says nothing about this one."""
    (tmp_path / "group").write_text(json.dumps({"hub": "h0", "first": 1, "last": 9}))
    assert numbers(Groups(tmp_path / "group", "h1", 60.0).choose(segments(tmp_path, 1, 2), False)) == [1]
    (tmp_path / "group").write_text('{"hub": "h1"')
    assert numbers(Groups(tmp_path / "group", "h1", 60.0).choose(segments(tmp_path, 1, 2), False)) == [1]


def test_a_note_that_is_damaged(tmp_path: Path, clock: list[float]) -> None:
    """One digit is another: what the note says then is not believed, with its checksum and without. Its copy
    has the group that was begun, so that its rows are not stored under another name."""
    path = tmp_path / "group"
    chosen = Groups(path, "h1", 60.0)
    chosen.choose(segments(tmp_path, 7), False)
    chosen.choose(segments(tmp_path, 8, 9, 10, 11, 12), True, 7)
    sound = json.loads(path.read_text())
    waiting = segments(tmp_path, 13, 14, 15)
    path.write_text(json.dumps(sound | {"last": 14}))
    begun = Groups(path, "h1", 60.0).choose(segments(tmp_path, 8, 9, 10, 11, 12, 13), False, 7)
    assert numbers(begun) == [8, 9, 10, 11, 12], "by the copy"
    (tmp_path / "group.copy").write_text("x")
    assert Groups(path, "h1", 60.0).choose(waiting, False, 12) == (13, 13, waiting[:1])
    del sound["crc"]
    path.write_text(json.dumps(sound | {"last": 92}))
    assert Groups(path, "h1", 60.0).choose(waiting, False, 12) == (13, 13, waiting[:1])
    path.write_text(json.dumps(sound | {"last": 14}))
    assert Groups(path, "h1", 60.0).choose(waiting, True, 12) == (13, 15, waiting)
    path.write_text(json.dumps(sound))  # as the first versions wrote it
    again = Groups(path, "h1", 60.0).choose(segments(tmp_path, 8, 9, 10, 11, 12, 13), False, 7)
    assert numbers(again) == [8, 9, 10, 11, 12]


class Crash(BaseException):
    pass


def lake_rows(lake: Lake, set_name: str) -> list[tuple[Any, ...]]:
    columns = {"time": "TIMESTAMP_NS", "node": "VARCHAR", "load1": "DOUBLE"}
    return sorted(lake.query(lake.files(set_name), columns, "SELECT epoch_ns(time), node, load1 FROM {lake}"))


def test_a_crash_at_any_file_of_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken again, with more segments waiting by then: every row is there once, in one file per set."""
    place = Place("lake", tmp_path / "hub", "h1")
    for folder in (place.cursor.parent, place.folder):
        folder.mkdir(parents=True)
    home = make_home(find_home(tmp_path / "store"))
    hurry = Hurry(math.inf)

    def work() -> Work:
        return Work(place, "lake", LakeSink("h1", home), lambda _: None, 3600.0, hurry)

    fleet_segment(place.journal, 1)
    work().step()
    for number in (2, 3, 4):
        fleet_segment(place.journal, number)
    real, left = files.publish, 2

    def publish(unfinished: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Crash
        real(unfinished, path)

    monkeypatch.setattr("joblens.store.lake.lake.publish", publish)
    for count in range(2):  # there are two sets
        left = count
        with pytest.raises(Crash):
            work().step()
        fleet_segment(place.journal, 5 + count)
    monkeypatch.setattr("joblens.store.lake.lake.publish", real)
    assert load_cursor(place.cursor).segment == 1
    going_on = work()
    going_on.step()
    assert load_cursor(place.cursor).segment == 4
    going_on.step()
    assert load_cursor(place.cursor).segment == 6
    found = lake_rows(Lake(home.lake), "load")
    assert len(found) == len(set(found)) == 6 * 3 * 8
    assert [path.name for path in Lake(home.lake).files("load")] == [
        "hub~h1.1-1.parquet",
        "hub~h1.2-4.parquet",
        "hub~h1.5-6.parquet",
    ]


def test_a_group_that_was_begun_is_not_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sink fails in the middle of a group and the journal is full: later segments go, and no row is there
    twice when the group is taken again."""
    monkeypatch.setattr("joblens.hub.sinks.lake._SET_BYTES", 500)  # so that there are several files of a set
    place = Place("lake", tmp_path / "hub", "h1")
    for folder in (place.cursor.parent, place.folder):
        folder.mkdir(parents=True)
    (place.home / "id").write_text("h1")
    home = make_home(find_home(tmp_path / "store"))
    sink = LakeSink("h1", home)
    work = Work(place, "lake", sink, lambda _: None, 3600.0, Hurry(math.inf))
    fleet_segment(place.journal, 1)
    work.step()
    for number in (2, 3, 4):
        fleet_segment(place.journal, number)
    real, left = sink.lake.save_tables, 6

    def save_tables(*values: Any, **named: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError("no")
        real(*values, **named)

    monkeypatch.setattr(sink.lake, "save_tables", save_tables)
    work.step()
    assert work.failures == 1
    fleet_segment(place.journal, 5)
    size = Segment(5, place.journal / "00000005.sealed").path.stat().st_size
    gaps = Gaps(place.home / "gaps.jsonl")
    clean(place.home, ["lake"], 3 * size + 100, gaps, lambda _: None)
    assert [it.number for it in list_sealed(place.journal)] == [2, 3, 4]
    left = 1000
    work.step()
    assert load_cursor(place.cursor).segment == 4
    found = lake_rows(Lake(home.lake), "load")
    assert len(found) == len(set(found)) == 4 * 3 * 8
    fleet_segment(place.journal, 6)
    clean(place.home, ["lake"], 0, gaps, lambda _: None)
    assert not list_sealed(place.journal)
    assert gaps.count["sink"] == 2


def test_killed_again_and_again(tmp_path: Path) -> None:
    """The process of a sink with groups, with segments that come meanwhile: every row is there once."""
    home = tmp_path / "hub"
    table = {"type": "lake", "home": str(tmp_path / "store"), "compact_seconds": 0.0}
    sink = Process(home, "lake", table, tmp_path / "said", collect_seconds=0.3)
    try:
        for number in range(1, 25):
            fleet_segment(home / "journal", number)
            if number % 6 == 0:
                sink.wait_for(number - 6)
                sink.kill()
                sink.start()
        sink.wait_for(24)
    finally:
        sink.close()
    lake = Lake(make_home(find_home(tmp_path / "store")).lake)
    found = lake_rows(lake, "load")
    assert len(found) == len(set(found)) == 24 * 3 * 8
    assert len(lake.files("load")) < 24


def test_a_hub_that_ends_does_not_wait(tmp_path: Path) -> None:
    """Segments that would wait for an hour are stored while the hub drains."""
    home = tmp_path / "hub"
    for number in (1, 2, 3):
        fleet_segment(home / "journal", number)
    kind, options = check_options("lake", {"home": str(tmp_path / "store")})
    runner = Runner(home, {"lake": (kind, options)}, lambda _: None, collect_seconds=3600.0)
    runner.start()
    wait_for("the first", lambda: runner.status()[0].cursor.segment == 1)
    runner.stop(drain_seconds=60.0)
    assert load_cursor(Place("lake", home, "").cursor).segment == 3


def test_what_the_follower_asks_for_does_not_wait(tmp_path: Path) -> None:
    """Segments up to the one that is open when a flush is asked for are stored at once, later ones wait."""
    home = tmp_path / "hub"
    (home / "jobs").mkdir(parents=True)
    for number in (1, 2, 3):
        fleet_segment(home / "journal", number)
    kind, options = check_options("lake", {"home": str(tmp_path / "store")})
    runner = Runner(home, {"lake": (kind, options)}, lambda _: None, collect_seconds=3600.0)
    runner.follow("none", JobsSettings(), {})
    asked: list[int] = []

    def flush() -> int:
        asked.append(4)
        fleet_segment(home / "journal", 4)
        return 4

    runner.flush = flush
    runner.start()
    try:
        wait_for("the first", lambda: runner.status()[0].cursor.segment == 1)
        (home / "jobs" / "flush").touch()
        wait_for("the rest", lambda: runner.status()[0].cursor.segment == 4)
        fleet_segment(home / "journal", 5)
    finally:
        runner.stop()
    assert asked == [4], "once for each time it is asked for"
    assert load_cursor(Place("lake", home, "").cursor).segment == 4


def test_hurry() -> None:
    """A number is up to which segment, an empty line for good."""
    hurry = Hurry()
    hurry.read([b"7", b"3"])
    assert hurry.through == 7
    hurry.read([b""])
    hurry.read([b"9"])
    assert hurry.through == math.inf
