"""The report of a part of a job. All figures are computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.test_several_nodes import (
    END,
    FACTS,
    START,
    Look,
    Readers,
    _rounded,
    readers,
    samples_of,
    three_nodes,
)
from joblens.analysis.window_report import find_part, parse_moment, summarise_part
from joblens.core.errors import JoblensError
from joblens.record.report import JobRecord
from joblens.store.memory_reader import SamplesReader
from plain_records import record_from, stored, summarise

__all__ = ["readers"]


def part_of(readers: Readers, looks: list[Look], first: float, last: float) -> JobRecord:
    """As the lake and as the samples have it."""
    found = []
    for reader in readers(looks):
        record = stored(summarise(FACTS, END, reader))
        part = find_part(record, None, None, f"+{first}", f"+{last}")
        assert part is not None
        found.append(stored(summarise_part(record, reader, part)))
    for name in ("job", "used", "nodes", "gaps", "timeline", "data", "cut"):
        assert _rounded(found[0][name]) == _rounded(found[1][name]), name
    return found[0]


@pytest.mark.parametrize(
    ("first", "last", "c1", "c2", "c3"),
    [
        (5, 15, 20, 10, 20),  # c3 ends at 10 s
        (52, 58, 12, 6, 24),  # c2's agent has begun anew, and c3 has come back
        (12, 18, 12, 6, 0),
        (0, 60, 120, 49.3, 80),
        (7.5, 8, 1, 0.5, 2),  # shorter than from one look to the next
    ],
)
def test_what_was_used_in_a_part(
    readers: Readers, first: float, last: float, c1: float, c2: float, c3: float
) -> None:
    """Counters begin at its start: each node's, and those of all."""
    record = part_of(readers, three_nodes(), first, last)
    assert [node["cpu_seconds"] for node in record["nodes"]] == pytest.approx([c1, c2, c3], abs=0.02)
    assert record["used"]["cpu_seconds"] == pytest.approx(c1 + c2 + c3, abs=0.05)
    assert record["used"]["duration_seconds"] == pytest.approx(last - first)
    assert (record["job"]["start"], record["job"]["end"]) == (START + first, START + last)
    times = [moment for point in record["timeline"] for moment in (point["start"], point["end"])]
    assert min(times) >= START + first
    assert max(times) <= START + last
    assert record["data"]["exact"] is False


def test_a_step(readers: Readers) -> None:
    (reader, _) = readers(three_nodes())
    steps = [{"id": "0", "name": "a", "start": START + 5, "end": START + 15}, {"id": "1", "start": None}]
    record = record_from({**summarise(FACTS, END, reader).to_dict(), "steps": steps})
    part = find_part(record, None, "0", None, None)
    assert part == (START + 5, START + 15, "step 0")
    assert summarise_part(record, reader, part)["used"]["cpu_seconds"] == pytest.approx(50, abs=0.05)
    with pytest.raises(JoblensError, match="start time of step .* is unknown"):
        find_part(record, None, "1", None, None)


def mark(text: str, start: float, end: float | None) -> dict[str, Any]:
    return {"text": text, "start": START + start, "end": None if end is None else START + end, "node": "c1"}


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [("once", 1, 2), ("loop", 3, 9), ("loop#2", 6, 9), ("open", 50, 60), ("a#1", 5, 6), ("early", 0, 4)],
)
def test_between_marks(text: str, first: float, last: float) -> None:
    """One, several from the first to the last, one of several, one that was never stopped."""
    marks = [
        mark("once", 1, 2),
        mark("loop", 3, 4),
        mark("a#1", 5, 6),
        mark("loop", 6, 9),
        mark("open", 50, None),
    ]
    record = {
        "job": {"id": "1", "cluster": "", "user": "", "name": "", "start": START, "end": START + 60},
        "marks": [*marks, mark("early", -1, 4)],
        "steps": [],
    }
    part = find_part(record_from(record), text, None, None, None)
    assert part is not None
    assert part[:2] == (START + first, START + last)


@given(st.text())
def test_any_moment(text: str) -> None:
    """It is a time, or one sentence says that it is none."""
    try:
        assert isinstance(parse_moment(text, START), float)
    except JoblensError as error:
        found = str(error)
        assert "is not a time" in found


@settings(max_examples=25)
@given(st.floats(0, 59), st.floats(0, 59))
def test_parts_add_up(one: float, other: float) -> None:
    """Wherever a job is cut, what its parts have used is what it has used."""
    looks = three_nodes()
    reader = SamplesReader([sample for look in looks for sample in samples_of(look)], "4242", "c1")
    cuts = [START, *(START + moment for moment in sorted((one, other))), START + 60]
    parts = [
        summarise(FACTS, END, reader, (first, last)) for first, last in zip(cuts, cuts[1:]) if first < last
    ]
    used = [part["used"]["cpu_seconds"] or 0.0 for part in parts]
    assert sum(used) == pytest.approx(249.3, abs=0.2)
