"""The segments of an experiment in order, and those that are missing.

A segment is named by a number (`5`), or by the date at which its model time begins: a month (`185401`), a day
(`18540101`) or an hour (`1854010106`), also with separators (`1854-01-01`). Dates are those of the model,
whose calendar may have no leap years, or months of 30 days.
"""

from __future__ import annotations

import math
import re
from calendar import isleap
from collections import Counter
from collections.abc import Iterable, Sequence

from joblens.core.errors import UsageError
from joblens.core.named_tuple import NamedTuple

_DATE = re.compile(r"(\d{4})-?(\d\d)(?:-?(\d\d)(?:[T ]?(\d\d)(?::?00){0,2})?)?", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_STEP = re.compile(r"(\d{1,6})(y|mo|d|h)?", re.ASCII)
_MONTHS = {"y": 12, "mo": 1}
_HOURS = {"d": 24, "h": 1}
_MOST_MISSING = 10_000
_DAYS_OF_MONTH = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


class Segment(NamedTuple):
    """A place in the series: a number, or a date."""

    place: tuple[int, ...]  # (number,), or year, month, day and hour
    form: str  # the name of the segment, whose digits are replaced in names of others

    @property
    def is_date(self) -> bool:
        return len(self.place) > 1


class Step(NamedTuple):
    """The distance of two segments."""

    amount: int
    unit: str  # "" of numbers, `mo` or `h`

    def render(self) -> str:
        """Return it in the largest unit: `5y`."""
        for name, unit in (("y", 12), ("d", 24)):
            same = {"y": "mo", "d": "h"}[name]
            if self.unit == same and self.amount % unit == 0:
                return f"{self.amount // unit}{name}"
        return f"{self.amount}{self.unit}"


class Missing(NamedTuple):
    step: Step | None  # none if it is not known: too few segments, or not evenly spaced
    names: list[str]
    problem: str = ""


def parse_segments(names: Iterable[str]) -> dict[str, Segment]:
    """Return those that can be read: all as dates if all can be, else as numbers."""
    known = list(dict.fromkeys(names))
    dates = {name: found for name in known if (found := _parse_date(name)) is not None}
    if dates and len(dates) >= len(known) - sum(_NUMBER.fullmatch(it) is None for it in known):
        return dates
    return {name: Segment((int(name),), name) for name in known if _NUMBER.fullmatch(name)}


def _parse_date(name: str) -> Segment | None:
    """None also for a date that no calendar has."""
    match = _DATE.fullmatch(name)
    if match is None:
        return None
    year, month, day, hour = (int(it) if it else first for it, first in zip(match.groups(), (0, 1, 1, 0)))
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour <= 24):
        return None
    return Segment((year, month, day, hour), name)


def parse_step(text: str) -> Step:
    """`5`, `5y`, `3mo`, `10d` or `6h`. Raises UsageError."""
    match = _STEP.fullmatch(text)
    if match is None or not int(match[1]):
        raise UsageError(f"{text!r:.40} is not a step; write 1, 5y, 3mo, 10d or 6h")
    amount, unit = int(match[1]), match[2] or ""
    if unit in _MONTHS:
        return Step(amount * _MONTHS[unit], "mo")
    return Step(amount * _HOURS[unit], "h") if unit in _HOURS else Step(amount, "")


def find_missing(segments: Sequence[Segment], step: Step | None = None) -> Missing:
    """Return the segments that are missing between the first and the last.

    Without a step it is the smallest distance, if all others are multiples of it.
    """
    places = sorted({it.place: it for it in segments}.values(), key=lambda it: it.place)
    if len(places) < 2:
        return Missing(step, [])
    unit = step.unit if step else _unit(places)
    if (unit != "") != places[0].is_date:
        what = "dates" if places[0].is_date else "numbers"
        return Missing(step, [], f"the step {step.render() if step else ''} does not fit {what}")
    positions = [_position(it, unit) for it in places]
    if step is None:
        step = _find_step(positions, unit)
        if step is None:
            return Missing(None, [], "segments are not evenly spaced; give the step with --every")
    if any((at - positions[0]) % step.amount for at in positions):
        return Missing(step, [], f"not all segments are a multiple of {step.render()} after the first")
    wanted = range(positions[0], positions[-1] + 1, step.amount)
    if len(wanted) > _MOST_MISSING:
        return Missing(step, [], f"{len(wanted):,} segments are expected, and that is too many to name")
    there = set(positions)
    return Missing(step, [_name(at, unit, places[0]) for at in wanted if at not in there])


def _unit(places: Sequence[Segment]) -> str:
    """Months, if all begin at the same time of a month, else hours."""
    if not places[0].is_date:
        return ""
    return "mo" if len({it.place[2:] for it in places}) == 1 else "h"


def _find_step(positions: Sequence[int], unit: str) -> Step | None:
    distances = Counter(later - earlier for earlier, later in zip(positions, positions[1:]))
    smallest = min(distances)
    return Step(smallest, unit) if math.gcd(*distances) == smallest else None


def _position(it: Segment, unit: str) -> int:
    if unit == "":
        return it.place[0]
    year, month, day, hour = it.place
    if unit == "mo":
        return year * 12 + month - 1
    return _days(year, month, day) * 24 + hour


def _name(position: int, unit: str, like: Segment) -> str:
    """Written as that one is."""
    if unit == "":
        return str(position).zfill(len(like.form) if like.form.startswith("0") else 0)
    if unit == "mo":
        place = (position // 12, position % 12 + 1, *like.place[2:])
    else:
        place = (*_date(position // 24), position % 24)
    return _write(place, like.form)


def _write(place: tuple[int, ...], form: str) -> str:
    """Put the digits of the date in place of those of the form; minutes and seconds stay 0."""
    digits = iter("".join(f"{it:0{size}d}" for it, size in zip(place, (4, 2, 2, 2))) + "0000")
    return "".join(next(digits) if it.isdigit() else it for it in form)


def _length(year: int, month: int) -> int:
    return 29 if month == 2 and isleap(year) else _DAYS_OF_MONTH[month - 1]


def _days(year: int, month: int, day: int) -> int:
    """Days since the year 0, by the Gregorian calendar."""
    before = year * 365 + (year + 3) // 4 - (year + 99) // 100 + (year + 399) // 400
    return before + sum(_length(year, it) for it in range(1, month)) + day - 1


def _date(days: int) -> tuple[int, int, int]:
    year = days * 400 // 146_097
    while _days(year + 1, 1, 1) <= days:
        year += 1
    while _days(year, 1, 1) > days:
        year -= 1
    rest, month = days - _days(year, 1, 1), 1
    while rest >= _length(year, month):
        rest, month = rest - _length(year, month), month + 1
    return year, month, rest + 1
