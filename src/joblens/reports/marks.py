"""Marks below the lines of time, each a letter with its extent; and figures of merit as a table."""

from __future__ import annotations

from joblens.core.units import render_seconds
from joblens.record.report import Fom, JobRecord, Mark
from joblens.reports.style import Style
from joblens.reports.timeline import PEAK, TITLE, clock, sparks
from joblens.reports.width import display_width, left, plain, right

_MOST_ROWS = 4
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MOST_NAMES = 12
_MOST_FOMS = 10
_LONGEST_TEXT = 40
_HEAD = "Figures of merit"
_NAME, _LAST, _RANGE = 24, 12, 23  # columns; the rest is for the course
_SHORTEST_COURSE = 8


def render_marks(record: JobRecord, style: Style) -> list[str]:
    marks = record.marks
    if not marks:
        return []
    start, end = record.job.start, record.job.last
    named: dict[str, list[Mark]] = {}
    for mark in marks:
        named.setdefault(mark.text, []).append(mark)
    letters = dict(zip(named, _LETTERS[:_MOST_NAMES]))
    rows, hidden = _rows(named, letters, start, end, style.width - TITLE - PEAK)
    title = "marks"
    lines = []
    for row in rows:
        lines.append(f" {title:<{TITLE - 1}}{style(row.rstrip(), 'cyan')}")
        title = ""
    words = [
        _legend(letters[text], text, some, start, end) for text, some in named.items() if text in letters
    ]
    lines += _flow(words, " " * TITLE, style.width)
    more = len(named) - len(letters)
    if more or hidden:
        rest = f"and {more} more" if more else f"{hidden} of them have no room here"
        lines.append(" " * TITLE + style(f"{rest}, see --json", "dim"))
    return lines


def _rows(
    named: dict[str, list[Mark]], letters: dict[str, str], start: float, end: float, columns: int
) -> tuple[list[str], int]:
    """Marks of one name share a row; overlapping ones go to the next. Also return how many are hidden."""
    rows: list[dict[int, str]] = []
    hidden = 0
    if end - start <= 0:
        return [], 0
    for text, letter in letters.items():
        cells: dict[int, str] = {}
        for mark in named[text]:
            cells.update(_cells(mark, letter, start, end, columns))
        row = next((row for row in rows if not row.keys() & cells.keys()), None)
        if row is not None:
            row.update(cells)
        elif len(rows) < _MOST_ROWS:
            rows.append(cells)
        else:
            hidden += 1
    return ["".join(row.get(column, " ") for column in range(columns)) for row in rows], hidden


def _cells(mark: Mark, letter: str, start: float, end: float, columns: int) -> dict[int, str]:
    """`[a──]`, or `[a──>` if it was never stopped; as much of that as there is room for."""
    last_moment = end if mark.end is None else mark.end
    first, last = (
        min(max(int((moment - start) / (end - start) * columns), 0), columns - 1)
        for moment in (mark.start, last_moment)
    )
    last = max(first, last)
    shown = ["─"] * (last - first + 1)
    if len(shown) > 1:
        shown[-1] = ">" if mark.end is None else "]"
    if len(shown) > 2:
        shown[:2] = ["[", letter]
    else:
        shown[0] = letter
    return dict(enumerate(shown, first))


def _legend(letter: str, text: str, marks: list[Mark], start: float, end: float) -> str:
    words = [f"{letter} {plain(text, _LONGEST_TEXT)}"]
    if len(marks) > 1:
        words.append(f"{len(marks)}×")
    seconds = sum(
        max(min(end if it.end is None else it.end, end) - max(it.start, start), 0.0) for it in marks
    )
    if all(it.end == it.start for it in marks):
        words += [clock(marks[0].start, end - start)] if len(marks) == 1 else []
    else:
        words.append(render_seconds(seconds))
    if any(it.end is None for it in marks):
        words.append("(not stopped)")
    return " ".join(words)


def _flow(words: list[str], head: str, width: int) -> list[str]:
    """Three blanks apart, as many in a line as there is room for."""
    lines, line = [], head
    for word in words:
        if line != head and display_width(line) + 3 + display_width(word) > width:
            lines.append(line)
            line = head
        line += ("" if line == head else "   ") + plain(word, width - len(head))
    return [*lines, line]


def render_foms(record: JobRecord, style: Style) -> list[str]:
    foms, start = record.foms, record.job.start
    if not foms:
        return []
    several = len({fom.node for fom in foms}) > 1
    end = record.job.last
    room = min(_NAME, style.width - _LAST - _RANGE - 1)
    course = style.width - _NAME - _LAST - _RANGE - 3
    shown = [
        f" {_fom(fom, several, room)}  {style(_course(fom, start, end, course), 'cyan')}".rstrip()
        for fom in foms[:_MOST_FOMS]
    ]
    more = [f" and {len(foms) - _MOST_FOMS} more, see --json"] if len(foms) > _MOST_FOMS else []
    columns = right("last", room + _LAST + 1 - len(_HEAD)) + right("range", _RANGE)
    return [style(_HEAD, "bold") + columns, *shown, *more]


def _fom(fom: Fom, several: bool, room: int) -> str:
    words = [fom.name, fom.unit or "", f"@{fom.node}" if several else ""]
    name = plain(" ".join(filter(None, words)), room)
    between = f"{fom.lowest:.4g} to {fom.highest:.4g}" if (fom.count or 0) > 1 else ""
    return f"{left(name, room)}{fom.last:>{_LAST}.5g}{plain(between, _RANGE - 1):>{_RANGE}}"


def _course(fom: Fom, start: float, end: float, columns: int) -> str:
    """From its lowest to its highest; a value holds until the next one."""
    low, high = fom.lowest or 0.0, fom.highest or 0.0
    if (fom.count or 0) < 2 or end <= start or not high > low or columns < _SHORTEST_COURSE:
        return ""
    values: list[float | None] = [None] * columns
    for point in fom.series:
        place = int((point.time - start) / (end - start) * columns)
        values[min(max(place, 0), columns - 1)] = (point.value - low) / (high - low)
    for n in range(1, columns):
        values[n] = values[n - 1] if values[n] is None else values[n]
    return sparks(values, 1.0)
