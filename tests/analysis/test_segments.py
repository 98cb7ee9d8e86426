"""Names of segments, their distance, and those that are missing."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.segments import Step, _date, _days, find_missing, parse_segments, parse_step
from joblens.core.errors import UsageError


def missing(names: list[str], step: str = "") -> tuple[str | None, list[str]]:
    known = parse_segments(names)
    found = find_missing(list(known.values()), parse_step(step) if step else None)
    return found.step.render() if found.step else None, found.names


@pytest.mark.parametrize(
    ("names", "step", "absent"),
    [
        (["3", "4", "6"], "1", ["5"]),
        (["003", "005", "009"], "2", ["007"]),
        (["18540101", "18590101", "18690101"], "5y", ["18640101"]),
        (["19790101", "19790201", "19790401"], "1mo", ["19790301"]),
        (["1979-11", "1980-02", "1980-01"], "1mo", ["1979-12"]),
        (["20000227", "20000228", "20000302"], "1d", ["20000229", "20000301"]),
        (["2000022818", "2000022900", "2000022912"], "6h", ["2000022906"]),
        (["00010101", "00020101", "00040101"], "1y", ["00030101"]),
        (["18540130", "18540230", "18540430"], "1mo", ["18540330"]),  # a calendar of 360 days
        (["5", "1"], "4", []),
        (["7"], None, []),
        ([], None, []),
    ],
)
def test_missing(names: list[str], step: str | None, absent: list[str]) -> None:
    """The smallest distance is the step; missing segments are written as the others are."""
    assert missing(names) == (step, absent)


def test_not_evenly_spaced() -> None:
    """The step is not guessed; given, segments are named."""
    known = list(parse_segments(["1", "3", "6"]).values())
    assert find_missing(known).problem == "segments are not evenly spaced; give the step with --every"
    assert missing(["1", "3", "6"], "1") == ("1", ["2", "4", "5"])
    assert "not all segments" in find_missing(known, Step(2, "")).problem
    assert "does not fit numbers" in find_missing(known, Step(12, "mo")).problem
    assert "too many" in find_missing(list(parse_segments(["1", "999999"]).values()), Step(1, "")).problem


def test_names_that_are_none() -> None:
    """They are left out."""
    assert list(parse_segments(["1", "x", "", "2", "-3", "1.5", "\u0663"])) == ["1", "2"]
    assert list(parse_segments(["18541301", "18540101"])) == [
        "18541301",
        "18540101",
    ]  # numbers, as one is no date
    for text in ("0", "", "5w", "y", "-1", "5 y"):
        with pytest.raises(UsageError):
            parse_step(text)


@given(st.dates(datetime.date(1, 1, 1), datetime.date(9998, 12, 31)))
def test_days(date: datetime.date) -> None:
    """As the calendar of Python counts them."""
    days = _days(date.year, date.month, date.day)
    assert days == date.toordinal() + 365
    assert _date(days) == (date.year, date.month, date.day)


@given(st.lists(st.integers(0, 300), min_size=2, max_size=40, unique=True))
def test_with_those_that_were_missing_none_is(numbers: list[int]) -> None:
    """What is named completes the series."""
    names = [f"{1850 + number}0101" for number in numbers]
    found = missing(names, "1y")[1]
    assert len(found) == max(numbers) - min(numbers) + 1 - len(numbers)
    assert missing([*names, *found], "1y") == ("1y", [])


@given(st.lists(st.text(max_size=12) | st.from_regex(r"[0-9T:-]{1,14}", fullmatch=True), max_size=10))
def test_any_names(names: list[str]) -> None:
    """No error, and no segment twice."""
    found = find_missing(list(parse_segments(names).values()))
    assert len(set(found.names)) == len(found.names)
