"""Marks of a job, paired to intervals, its figures of merit over time, and events in the kernel's log:
processes killed, errors of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable

from joblens.core.named_tuple import NamedTuple
from joblens.record.report import Event, Fom, FomPoint, Mark
from joblens.store.reader import Reader, Series, Span
from joblens.wire.marks import MOMENT, START, STOP

_POINTS = 10**9  # so many that each is a point of its own
_MOST_MARKS, _MOST_FOMS, _MOST_EVENTS = 1000, 100, 100
_MOST_SERIES = 120
_MOST_STRAY = 3  # stops without a start
_LONGEST_TEXT = 60
_EVENT_LABELS = ("kind", "device", "text", "pid")
_ORDER = {START: 0, MOMENT: 1, STOP: 2}


class MarkEvent(NamedTuple):
    time: float
    kind: str
    text: str
    node: str


def find_marks(reader: Reader, span: Span) -> tuple[list[Mark], list[str]]:
    """In the order in which they began, and what is wrong with them in sentences."""
    events: set[MarkEvent] = set()
    refused = 0.0
    found = reader.split(span, "mark", ("node", "kind", "text"), ("time_seconds", "refused"), _POINTS)
    for (node, kind, text), series in found.items():
        refused = max([refused, *(value for value in series.last.get("refused") or [] if value is not None)])
        if kind in _ORDER:
            # Not when it was seen: who scrapes sees it often, and late.
            times = {time for time in series.last.get("time_seconds") or [] if time is not None}
            events |= {
                MarkEvent(time, kind, text, node) for time in times if span.start - 1 <= time <= span.end
            }
    stretches, stray = pair(events)
    problems = [
        f"mark {mark.text[:_LONGEST_TEXT]!r} was stopped and never started" for mark in stray[:_MOST_STRAY]
    ]
    if len(stray) > _MOST_STRAY:
        problems.append(f"{len(stray) - _MOST_STRAY} more marks were stopped and never started")
    if refused:
        problems.append(f"{refused:.0f} marks or figures of merit were refused: they were too many")
    if len(stretches) > _MOST_MARKS:
        problems.append(f"of {len(stretches)} marks the first {_MOST_MARKS} are kept")
    return stretches[:_MOST_MARKS], problems


def pair(events: Iterable[MarkEvent]) -> tuple[list[Mark], list[MarkEvent]]:
    """Each stop ends what was last started under that name on that node. Also those that end nothing."""
    found: list[Mark] = []
    stray: list[MarkEvent] = []
    open_ones: dict[tuple[str, str], list[int]] = {}
    for mark in sorted(events, key=lambda it: (it.time, _ORDER[it.kind], it.text, it.node)):
        waiting = open_ones.setdefault((mark.node, mark.text), [])
        if mark.kind == STOP and not waiting:
            stray.append(mark)
        elif mark.kind == STOP:
            number = waiting.pop()
            found[number] = found[number].replace(end=mark.time)
        else:
            if mark.kind == START:
                waiting.append(len(found))
            found.append(Mark(mark.text, mark.time, mark.time if mark.kind == MOMENT else None, mark.node))
    return found, stray


def within(marks: Iterable[Mark], start: float, end: float) -> list[Mark]:
    """Return the marks that overlap with this time."""
    return [mark for mark in marks if mark.start <= end and (mark.end is None or mark.end >= start)]


def find_foms(reader: Reader, span: Span) -> list[Fom]:
    """By name and node."""
    found = reader.split(span, "fom", ("name", "unit", "node"), ("value", "told"), _POINTS)
    every = [
        _describe(Fom(name, points[-1][1], unit, node), points, span)
        for (name, unit, node), series in found.items()
        if (points := _points(series))
    ]
    return every[:_MOST_FOMS]


def _points(series: Series) -> list[tuple[float, float]]:
    """Return each reported value once: a scraper samples the same one repeatedly."""
    found: list[tuple[float, float]] = []
    before: tuple[float | None, float | None] = (None, None)
    values = series.last.get("value") or []
    for time, value, number in zip(series.times, values, series.last.get("told") or [None] * len(values)):
        if value is not None and (value, number) != before:
            found.append((time, value))
            before = value, number
    return found


def _describe(fom: Fom, points: list[tuple[float, float]], span: Span) -> Fom:
    values = [value for _, value in points]
    width = max((span.end - span.start) / _MOST_SERIES, 1e-6)
    thinned = {min(int((it[0] - span.start) / width), _MOST_SERIES - 1): FomPoint(*it) for it in points}
    fom.count, fom.first, fom.lowest, fom.highest = len(points), values[0], min(values), max(values)
    fom.series = list(thinned.values())
    return fom


def find_events(reader: Reader, span: Span) -> list[Event]:
    """In their order; of very many the first."""
    found = [
        Event(time, kind, text, device, _pid(pid))
        for (kind, device, text, pid), series in reader.split(
            span, "event", _EVENT_LABELS, ("seen",), _POINTS
        ).items()
        for time in series.times
    ]
    return sorted(
        found, key=lambda event: (event.time, event.kind, event.device or "", event.text, event.pid or 0)
    )[:_MOST_EVENTS]


def _pid(text: str) -> int | None:
    """None where the log names no process, and where a batch has nonsense."""
    return int(text) or None if re.fullmatch("[0-9]{1,10}", text) else None
