"""Lines of the table, as text and as plain data."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence

from bench.timing import Spread, ratio, spread

_HEAD = ("what", "python", "joblens", "reference", "ratio", "goal", "met")
_WIDTHS = (42, 6, 12, 12, 10, 8, 3)


class Line(NamedTuple):
    what: str
    python: str
    unit: str  # one of _UNITS
    ours: Spread
    theirs: Spread | None = None
    ratio: Spread | None = None  # of ours to theirs
    goal: str = ""
    met: bool | None = None


class Section(NamedTuple):
    title: str
    lines: Sequence[Line]
    notes: Sequence[str] = ()


def compare(
    what: str, python: str, ours: Sequence[float], theirs: Sequence[float], most: float | None = None
) -> Line:
    """Return a line whose ratio has the goal: at most so many times the reference."""
    found = ratio(ours, theirs)
    met = None if most is None else found.middle <= most
    goal = "" if most is None else f"≤ {_ratio(most)}"
    return Line(what, python, "seconds", spread(ours), spread(theirs), found, goal, met)


def at_most(
    what: str,
    python: str,
    unit: str,
    ours: Sequence[float],
    *,
    beside: Sequence[float] = (),
    most: float | None = None,
) -> Line:
    """Return a line whose figure has the goal; the reference is for comparison."""
    figure = spread(ours)
    theirs, compared = (spread(beside), ratio(ours, beside)) if beside else (None, None)
    met = None if most is None else figure.middle <= most
    goal = "" if most is None else f"≤ {_UNITS[unit](most)}"
    return Line(what, python, unit, figure, theirs, compared, goal, met)


def render(sections: Sequence[Section]) -> str:
    text = [_row(_HEAD)]
    for section in sections:
        text += ["", section.title]
        text += [_row(_cells(line)) for line in section.lines]
        text += [f"  ({note})" for note in section.notes]
    judged = [line.met for section in sections for line in section.lines if line.met is not None]
    text += ["", f"{sum(judged)} of {len(judged)} goals met. Ratio: joblens to reference."]
    text += ["±: half the interquartile range."]
    return "\n".join(text) + "\n"


def as_data(sections: Sequence[Section]) -> list[dict[str, Any]]:
    return [
        {
            "title": section.title,
            "notes": list(section.notes),
            "lines": [
                {name: it._asdict() if isinstance(it, Spread) else it for name, it in line._asdict().items()}
                for line in section.lines
            ],
        }
        for section in sections
    ]


def _cells(line: Line) -> tuple[str, ...]:
    show = _UNITS[line.unit]
    return (
        "  " + line.what,
        line.python,
        f"{show(line.ours.middle)} {_percent(line.ours)}",
        f"{show(line.theirs.middle)} {_percent(line.theirs)}" if line.theirs else "",
        f"{_ratio(line.ratio.middle)} {_percent(line.ratio)}" if line.ratio else "",
        line.goal,
        {True: "yes", False: "NO", None: ""}[line.met],
    )


def _row(cells: Sequence[str]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS)).rstrip()


def _percent(figure: Spread) -> str:
    return f"±{figure.percent:.0f}%" if figure.high > figure.low else ""


def _ratio(value: float) -> str:
    return f"{value:.3g}" if value >= 1 else f"1/{1 / value:.3g}"


def _seconds(value: float) -> str:
    if abs(value) >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e6:.3g} µs" if abs(value) < 1e-3 else f"{value * 1e3:.3g} ms"


_UNITS: dict[str, Callable[[float], str]] = {
    "seconds": _seconds,
    "bytes": lambda value: f"{value / 1e6:.3g} MB",
    "percent": lambda value: f"{value:.2g} %",
    "ticks": lambda value: f"{value:g}",
    "each": lambda value: f"{value:.3g} B",
    "per_second": lambda value: f"{value / 1e3:.0f} k/s",
}
