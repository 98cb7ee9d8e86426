from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from joblens.analysis.marks import find_events
from joblens.core.model import Rows, Sample
from joblens.record.report import Event
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.run.sampler import EVENT
from joblens.store.lake.lake import Lake
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import LakeReader, Reader, Span
from plain_records import record_from

START = 1_577_923_200
TEXT = 'it\'s "so"; 火'
SPAN = Span("r1", START, START + 100)


def event(seconds: float, kind: str, pid: int, job: str = "r1", text: str = TEXT) -> Sample:
    key = ("here", job, "c1", kind, "0000:3b:00", text, pid)
    return Sample(START * 10**9 + int(seconds * 1e9), Rows(EVENT, (key,), [1]))


def in_memory(folder: Path, samples: list[Sample]) -> Reader:
    return SamplesReader(samples, "r1", "c1")


def in_lake(folder: Path, samples: list[Sample]) -> Reader:
    lake = Lake(folder)
    lake.save("r1", "c1", {1: samples})
    return LakeReader(lake)


@pytest.mark.parametrize("made", [in_memory, in_lake])
def test_events_come_back(made: Callable[[Path, list[Sample]], Reader], tmp_path: Path) -> None:
    """Each with its time, the same one twice too; those of others and of other times are not the job's."""
    samples = [
        event(20.5, "xid_79", 0),
        event(10.25, "oom_cgroup", 42),
        event(20.75, "xid_79", 0),
        event(300, "xid_79", 1),
    ]
    found = find_events(made(tmp_path, samples), SPAN)
    assert [it.time for it in found] == pytest.approx([START + 10.25, START + 20.5, START + 20.75], abs=1e-6)
    assert [it.replace(time=0.0) for it in found] == [
        Event(0.0, "oom_cgroup", TEXT, "0000:3b:00", 42),
        Event(0.0, "xid_79", TEXT, "0000:3b:00", None),
        Event(0.0, "xid_79", TEXT, "0000:3b:00", None),
    ]


@pytest.mark.parametrize("made", [in_memory, in_lake])
def test_alike_but_for_the_process(made: Callable[[Path, list[Sample]], Reader], tmp_path: Path) -> None:
    """Told at the same moment of one that is known, and of one that is not."""
    found = find_events(made(tmp_path, [event(1, "xid_31", 7), event(1, "xid_31", 0)]), SPAN)
    assert [it.pid for it in found] == [None, 7]


@pytest.mark.parametrize("pid", ["²", "9" * 5000, "-1", "", "x"])
def test_no_process(pid: str, tmp_path: Path) -> None:
    """A batch can say anything; what is no pid is none."""
    sample = event(1, "xid_31", pid)  # type: ignore[arg-type]
    assert [it.pid for it in find_events(in_memory(tmp_path, [sample]), SPAN)] == [None]


@pytest.mark.parametrize("made", [in_memory, in_lake])
def test_none(made: Callable[[Path, list[Sample]], Reader], tmp_path: Path) -> None:
    """Most jobs have none."""
    assert find_events(made(tmp_path, []), SPAN) == []


def test_very_many(tmp_path: Path) -> None:
    """The first hundred are told: a card that fails can say so without end."""
    found = find_events(in_memory(tmp_path, [event(n / 10, "xid_31", n + 1) for n in range(500)]), SPAN)
    assert [it.pid for it in found] == list(range(1, 101))


def test_the_report_shows_some() -> None:
    """With their time, and no more than fit; where there are none, no word is said of them."""
    found = [
        {"time": START + n, "kind": "xid_31", "device": "", "text": f"text {n}\x1b[2J", "pid": None}
        for n in range(7)
    ]
    job = {"id": "r1", "cluster": "c", "user": "u", "name": "n", "start": START, "end": START + 60}
    shown = render_report(record_from({"job": job, "events": found}), Style(False)).splitlines()
    first = shown.index("Events")
    assert [line.split("  ", 1)[1] for line in shown[first + 1 : first + 6]] == [
        f"xid_31: text {n}?[2J" for n in range(5)
    ]
    assert shown[first + 6] == " and 2 more, see --json"
    assert "Events" not in render_report(record_from({"job": job}), Style(False))
