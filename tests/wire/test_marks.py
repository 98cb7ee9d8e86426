"""What a job tells of itself: what is taken, how it is kept, and what is made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.made import encode, write_segment
from joblens.analysis.marks import MarkEvent, find_foms, find_marks, pair
from joblens.core.errors import MalformedError
from joblens.core.model import Rows, Sample
from joblens.hub.sinks.lake import LakeSink
from joblens.record.report import JobRecord
from joblens.reports.marks import render_foms, render_marks
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.reports.width import display_width
from joblens.store.home import find_home, make_home
from joblens.store.lake.columns import check
from joblens.store.lake.lake import Lake
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import LakeReader, Reader, Span
from joblens.wire.marks import (
    FOM,
    LARGEST,
    LONGEST_NAME,
    LONGEST_TEXT,
    LONGEST_UNIT,
    MARK,
    Book,
    Fom,
    Mark,
    parse_fom,
    parse_message,
    scale,
)
from plain_records import record_from

START = 1_700_000_000
SPAN = Span("r1", START, START + 100)
JOB = ("here", "r1", "c1")
HOSTILE = "a\nb\x1b[2J\udcff\x00 " + "火" * 10_000


# Numbers


@pytest.mark.parametrize(
    ("value", "number", "exponent"),
    [(812.0, 812, 0), (0.25, 250, -3), (-8.1, -8100, -3), (1e35, 10**17, 18), (1e-18, 1, -18), (0.0, 0, 0)],
)
def test_numbers_by_hand(value: float, number: int, exponent: int) -> None:
    assert scale("x", value) == (number, exponent)


@given(st.floats())
def test_any_number(value: float) -> None:
    """It comes back to 15 digits, as a whole number of 64 bits, or is refused."""
    try:
        number, exponent = scale("x", value)
    except MalformedError:
        assert not math.isfinite(value) or abs(value) < 1e-18 or abs(value) >= 0.99e36
        return
    assert abs(number) < 1 << 62
    column = FOM[exponent].columns[0]
    assert float(column.in_base_units(number)) == pytest.approx(value, rel=1e-14, abs=0.6e-18)
    check([Sample(0, Rows(FOM[exponent], (("c", "j", "n", "x", ""),), [number, 1]))])


# What comes from outside


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gflops=812", Fom("gflops", 812.0)),
        ("bandwidth=8.1GB/s", Fom("bandwidth", 8.1, "GB/s")),
        ("time to solution = -1e-3 s", Fom("time to solution", -0.001, "s")),
        ("x=.5e", Fom("x", 0.5, "e")),
    ],
)
def test_figures_as_they_are_typed(text: str, found: Fom) -> None:
    assert parse_fom(text) == found


@pytest.mark.parametrize("text", ["x", "x=", "x=nan", "x=inf", "=1", "x=1e400", "x=0x", "x==1"])
def test_no_figures(text: str) -> None:
    if text == "x=0x":
        assert parse_fom(text) == Fom("x", 0.0, "x")
        return
    with pytest.raises(MalformedError):
        parse_fom(text)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
names = st.sampled_from(["text", "kind", "job", "node", "name", "value", "unit", "foms", "x"])
messages = st.binary() | st.dictionaries(names, anything | st.just("start")).map(
    lambda it: json.dumps(it).encode()
)


@given(st.sampled_from(["/mark", "/fom"]), messages)
def test_any_message(path: str, data: bytes) -> None:
    """It is one that can be stored and shown, or none."""
    try:
        told = parse_message(path, data)
    except MalformedError:
        return
    book = Book()
    assert book.take(JOB, told.entries, START * 10**9) == ""
    samples = book.samples(START * 10**9)
    check(samples)
    for sample in samples:
        assert all(str(part).isprintable() for part in sample.rows.keys[0])
    for entry in told.entries:
        texts = (entry.text,) if isinstance(entry, Mark) else (entry.name, entry.unit)
        assert all(len(text) <= LONGEST_TEXT for text in texts)


def test_hostile_texts() -> None:
    """Nothing in them begins a line or moves the cursor, and none is long."""
    data = json.dumps({"text": HOSTILE[:2000]}).encode()
    (mark,) = parse_message("/mark", data).entries
    assert isinstance(mark, Mark)
    assert mark.text.startswith("a b?[2J?? 火")
    assert len(mark.text) == LONGEST_TEXT
    fom = {"name": HOSTILE[:500], "value": 1, "unit": HOSTILE[:500]}
    (found,) = parse_message("/fom", json.dumps(fom).encode()).entries
    assert isinstance(found, Fom)
    assert (len(found.name), len(found.unit)) == (LONGEST_NAME, LONGEST_UNIT)
    with pytest.raises(MalformedError, match="bytes"):
        parse_message("/mark", b'{"text": "' + b"x" * LARGEST + b'"}')
    (mark,) = parse_message("/mark", b'{"text": "\xff\xfe"}').entries
    assert mark == Mark("moment", "��")
    with pytest.raises(MalformedError, match="JSON"):
        parse_message("/mark", b"[" * 10_000)


# What is kept


def test_what_is_told_becomes_rows() -> None:
    book = Book()
    now = START * 10**9
    assert book.take(JOB, [Mark("start", "x"), Fom("loss", 0.25), Fom("loss", 0.125)], now) == ""
    mark, first, second = book.samples(now)
    assert mark == Sample(now, Rows(MARK, ((*JOB, "start", "x"),), [START * 10**6, 0]))
    assert first == Sample(now, Rows(FOM[-3], ((*JOB, "loss", ""),), [250, 1]))
    assert second.time_ns == now + 10**6  # the same one twice at one moment would be added up
    assert second.rows.values == [125, 2]
    assert book.samples(now) == []
    shown = {rows.schema.set: rows for rows in book.latest()}
    assert shown["fom"].values == [0.125, 2]
    book.forget({}, now)
    assert book.latest() == []


def test_too_many() -> None:
    """So many at once, so many in a second, and so many of one job: more are counted, and that is told."""
    book, now = Book(), START * 10**9
    answers = [book.take(JOB, [Mark("moment", f"m{n}")], now) for n in range(1100)]
    assert answers.count("") == 1000
    assert "in a second" in answers[-1]
    book.samples(now)
    assert book.samples(now) == []  # it was told
    assert book.take(JOB, [Mark("moment", "later")], now + 10**9) == ""
    taken = 1001 + sum(not book.take(JOB, [Mark("moment", "x")], now + n * 10**9) for n in range(2, 20_000))
    assert taken == 10_000
    assert "of one job" in book.take(JOB, [Mark("moment", "x")], now + 30_000 * 10**9)
    last = book.samples(now + 30_000 * 10**9)[-1]
    assert last.rows.keys == ((*JOB, "refused", ""),)
    assert last.rows.values[1] == 100 + (19_998 - 8999) + 1
    assert book.take(("here", "r2", "c1"), [Mark("moment", "x")], now) == ""  # another job has its own


def test_a_clock_that_is_set_back() -> None:
    """By an hour: marks are taken at the same rate, and have the time that the clock shows then."""
    book, now = Book(), START * 10**9
    assert book.take(JOB, [Mark("moment", "x")] * 1000, now) == ""
    before = book.samples(now)
    assert len({sample.time_ns for sample in before}) == 1000
    now -= 3600 * 10**9
    for second in range(3):
        book.take(JOB, [Mark("moment", "y")], now + second * 10**9)
    book.samples(now)
    now += 10 * 10**9
    assert book.take(JOB, [Mark("moment", "x")] * 100, now) == ""
    assert [sample.time_ns for sample in book.samples(now)][:100] == [now + n * 10**6 for n in range(100)]


def test_too_many_of_one_user() -> None:
    """However many jobs a user has, and however many names: what is kept is bounded, and others are taken."""
    book, now = Book(), START * 10**9
    jobs = [("here", f"r{number}", "c1") for number in range(300)]
    for second in range(30):
        for number, job in enumerate(jobs):
            foms: list[Mark | Fom] = [Fom(f"n{second}-{number}-{it}", it) for it in range(32)]
            book.take(job, foms, now + second * 10**9, uid=1000)
        assert book.take(("here", "other", "c1"), [Fom("x", second)], now + second * 10**9, uid=1001) == ""
        book.forget(dict.fromkeys([*jobs, ("here", "other", "c1")], 0), now)
        taken = [it for it in book.samples(now + second * 10**9) if it.rows.keys[0][3] != "refused"]
        assert len(taken) <= (1000 if second == 0 else 100 + 32) + 1
    names = sum(len(rows.keys) for rows in book.latest())
    assert names <= 2001
    assert book.refused > 250_000
    assert "of one user" in book.take(jobs[0], [Fom("x", 1)] * 32, now + 29 * 10**9, uid=1000)


def test_too_many_of_all() -> None:
    """Many users at once: who tells little is taken from, and memory is bounded though nobody fetches it."""
    book, now = Book(), START * 10**9
    for turn in range(100):
        for uid in range(100):
            foms: list[Mark | Fom] = [Fom(f"{turn}-{it}", it) for it in range(32)]
            book.take(("here", f"r{uid}", "c1"), foms, now, uid=uid)
    assert 3000 <= len(book._samples) <= 100 * 500 + 3000
    assert len(book._samples) <= 20_000 + 32
    book.samples(now)
    assert sum(len(page.latest) for page in book._pages.values()) <= 8000
    assert book.take(("here", "quiet", "c1"), [Mark("moment", "x")], now, uid=5000) == ""
    assert len(book.samples(now)) == 1
    book.forget({}, now + 10**12)
    assert not book._pages
    assert not book._users


def test_what_was_refused_is_told_now_and_then() -> None:
    """And when the job ends: not at every tick."""
    book, now = Book(), START * 10**9
    full: list[Mark | Fom] = [Mark("moment", "x")] * 1001
    told = []
    for second in range(25):
        book.take(JOB, full, now + second * 10**9)
        told += book.samples(now + second * 10**9)
    assert [sample.rows.values[1] for sample in told] == [1001, 11 * 1001, 21 * 1001]
    book.forget({}, now + 25 * 10**9)
    (last,) = book.samples(now + 25 * 10**9)
    assert last.rows.values[1] == 25 * 1001


def test_a_name_is_described_once() -> None:
    """A figure that is told again and again has the same keys, by identity: so a batch describes it once."""
    book, now = Book(), START * 10**9
    book.take(JOB, [Fom("loss", 1.0), Fom("loss", 2.0)], now)
    first, second = book.samples(now)
    assert first.rows.keys is second.rows.keys


# Put together

told = st.builds(
    MarkEvent,
    st.integers(0, 20).map(float),
    st.sampled_from(["start", "stop", "moment"]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["c1", "c2"]),
)


@given(st.sets(told))
def test_pairs(marks: set[MarkEvent]) -> None:
    """Each start is one stretch; each stop ends one or is told; none ends before it began, nor elsewhere."""
    found, stray = pair(marks)
    kinds = [mark.kind for mark in marks]
    moments = kinds.count("moment")
    closed = [it for it in found if it.end is not None]
    assert len(found) == kinds.count("start") + moments
    assert len(closed) - moments + len(stray) == kinds.count("stop")
    assert all(it.end is None or it.end >= it.start for it in found)
    assert [it.start for it in found] == sorted(it.start for it in found)
    starts = {(mark.time, mark.text, mark.node) for mark in marks if mark.kind != "stop"}
    assert {(it.start, it.text, it.node) for it in found} == starts
    ends = {(mark.time, mark.text, mark.node) for mark in marks if mark.kind != "start"}
    assert {(it.end, it.text, it.node) for it in closed} <= ends


def test_nested_and_unfinished() -> None:
    marks = [MarkEvent(1, "start", "a", ""), MarkEvent(2, "start", "a", ""), MarkEvent(3, "stop", "a", "")]
    found, stray = pair([*marks, MarkEvent(4, "stop", "b", ""), MarkEvent(2, "moment", "m", "")])
    assert [(it.text, it.start, it.end) for it in found] == [("a", 1, None), ("a", 2, 3), ("m", 2, 2)]
    assert stray == [MarkEvent(4, "stop", "b", "")]


def samples() -> list[Sample]:
    book, found = Book(), []
    entries: list[tuple[float, Mark | Fom]] = [
        (10.25, Mark("start", "solve 'it'; 火")),
        (12.0, Fom("gflops", 812.0)),
        (12.5, Fom("gflops", 812.0)),
        (13.0, Fom("gflops", -1.25e-7)),
        (13.0, Fom("gflops", 3e20, "F")),
        (20.5, Mark("stop", "solve 'it'; 火")),
        (21.0, Mark("stop", "never")),
        (22.0, Mark("moment", "here")),
        (300.0, Mark("moment", "after the end")),
    ]
    for second, entry in entries:
        now = round((START + second) * 1e9)
        book.take(JOB, [entry], now)
        found += book.samples(now)
    return found


def in_memory(folder: Path, some: list[Sample]) -> Reader:
    return SamplesReader(some, "r1", "c1")


def in_lake(folder: Path, some: list[Sample]) -> Reader:
    lake = Lake(folder)
    lake.save("r1", "c1", {1: some})
    return LakeReader(lake)


def through_hub(folder: Path, some: list[Sample]) -> Reader:
    sink = LakeSink("h1", make_home(find_home(folder / "home")))
    taken = sink.take(write_segment(folder / "segments", 1, [encode("c1", 1, some, cluster="here")]))
    assert (taken.dropped, taken.problems) == (0, ())
    return LakeReader(sink.lake)


@pytest.mark.parametrize("made", [in_memory, in_lake, through_hub])
def test_from_any_store(made: Callable[[Path, list[Sample]], Reader], tmp_path: Path) -> None:
    """Marks and figures come back with their times, from numbers of all sizes in one set."""
    reader = made(tmp_path, samples())
    marks, problems = find_marks(reader, SPAN)
    assert [(it.text, it.node) for it in marks] == [("solve 'it'; 火", "c1"), ("here", "c1")]
    times = [moment for it in marks for moment in (it.start, it.end)]
    assert times == pytest.approx([START + second for second in (10.25, 20.5, 22, 22)])
    assert problems == ["mark 'never' was stopped and never started"]
    plain, named = find_foms(reader, SPAN)
    assert (plain["name"], plain["unit"], plain["count"]) == ("gflops", "", 3)
    values = [plain[name] for name in ("first", "last", "lowest", "highest")]
    assert values == pytest.approx([812, -1.25e-7, -1.25e-7, 812])
    assert [point["value"] for point in plain["series"]] == pytest.approx([812.0, -1.25e-7], rel=1e-12)
    assert (named["unit"], named["last"]) == ("F", pytest.approx(3e20))


def test_who_scrapes_sees_the_same_again_and_again() -> None:
    """A mark has its own time, and a figure counts once each time that it is told."""
    found = samples()[:2]
    again = [Sample(sample.time_ns + n * 10**9, sample.rows) for n in range(5) for sample in found]
    reader = SamplesReader(again, "r1", "c1")
    marks, _ = find_marks(reader, SPAN)
    assert [it.start for it in marks] == pytest.approx([START + 10.25])
    assert [it.end for it in marks] == [None]
    assert [fom["count"] for fom in find_foms(reader, SPAN)] == [1]


def test_refused_is_told() -> None:
    rows = Rows(MARK, ((*JOB, "refused", ""),), [START * 10**6, 7])
    marks, problems = find_marks(SamplesReader([Sample(START * 10**9, rows)], "r1", "c1"), SPAN)
    assert (marks, problems) == ([], ["7 marks or figures of merit were refused: they were too many"])


# As it is shown


def record(marks: list[dict[str, Any]], foms: list[dict[str, Any]]) -> JobRecord:
    job = {"id": "r1", "cluster": "c", "user": "u", "name": "x", "start": START, "end": START + 56.0}
    return record_from({"job": job, "marks": marks, "foms": foms})


def mark(text: str, start: float, end: float | None) -> dict[str, Any]:
    return {"text": text, "start": START + start, "end": None if end is None else START + end, "node": "c1"}


def test_marks_below_the_axis() -> None:
    """A column is a second here: each letter stands where its mark was set."""
    marks = [mark("all", 0, None), mark("in", 10, 19.5), mark("in", 30, 31.5), mark("here", 25, 25)]
    lines = render_marks(record(marks, []), Style(False))
    assert lines == [
        " marks   [a" + "─" * 53 + ">",
        " " * 9 + " " * 10 + "[b───────]" + " " * 5 + "c" + " " * 4 + "b]",
        "         a all 56 s (not stopped)   b in 2× 11 s   c here " + lines[2][-8:],
    ]


def fom(name: str, last: float, count: int = 1, **more: Any) -> dict[str, Any]:
    found = {"name": name, "unit": "", "node": "c1", "count": count, "first": last, "last": last}
    return {**found, "lowest": last, "highest": last, "series": [], **more}


def test_figures_as_a_table() -> None:
    series = [{"time": START, "value": 1.0}, {"time": START + 30, "value": 3.0}]
    foms = [fom("loss", 3.0, 2, lowest=1.0, series=series), fom("speed", 1.5e9, unit="F/s")]
    lines = render_foms(record([], foms), Style(False))
    assert lines == [
        "Figures of merit                 last                  range",
        " loss                               3                 1 to 3  ▁▁▁▁▁▁▁▁▁█████████",
        " speed F/s                    1.5e+09",
    ]


@given(
    st.lists(st.tuples(st.text(max_size=300), st.floats(-5, 70), st.none() | st.floats(0, 70)), max_size=30)
)
def test_any_marks_fit_the_screen(marks: list[tuple[str, float, float | None]]) -> None:
    found = record([mark(text, start, end) for text, start, end in marks], [fom("火" * 60, -1.23456e-123, 5)])
    for line in render_report(found, Style(False)).splitlines():
        assert display_width(line) <= 80
        assert line.isprintable()
