"""Output of the listings: tables, warnings, progress."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence

from joblens.reports import width as screen
from joblens.reports.style import WIDTH, columns, encodable

_LONGEST = 60
_SHORTEST = 6  # width to which a column is shrunk before another is dropped
_SHORTEST_IN_PIPE = 24  # in a pipe no column is dropped, and names stay long enough for grep
_WORTH_SHOWING = 10


def add_output(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--csv", action="store_true", help="as CSV")


def render_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Sequence[int],
    shrink: int | None = None,
    drop: Sequence[int] = (),
    least: int = _SHORTEST,
    keep_end: bool = False,
) -> list[str]:
    """Align the columns in `left` left, the others right.

    If a line does not fit, the column `shrink` is shortened, with `keep_end` at its begin. On a terminal,
    columns in `drop` are then dropped one by one, until it is `least` wide.
    """
    cells = [list(head), *[[plain(cell) for cell in row] for row in rows]]
    widths = [max(screen.display_width(row[column]) for row in cells) for column in range(len(head))]
    if shrink is not None:
        space, shortest = room() or WIDTH, _SHORTEST_IN_PIPE
        if room():
            cells, widths, left, shrink = _drop(cells, widths, left, shrink, drop, space, least)
            shortest = len(cells[0][shrink])
        rest = sum(widths) - widths[shrink] + 2 * (len(widths) - 1)
        widths[shrink] = min(widths[shrink], max(space - rest, shortest))
        cut = shorten if keep_end else screen.plain
        for row in cells:
            row[shrink] = cut(row[shrink], widths[shrink])
    return [
        "  ".join(
            (screen.left if column in left else screen.right)(cell, width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in cells
    ]


def _drop(
    cells: list[list[str]],
    widths: list[int],
    left: Sequence[int],
    shrink: int,
    drop: Sequence[int],
    room: int,
    least: int,
) -> tuple[list[list[str]], list[int], list[int], int]:
    kept = list(range(len(widths)))
    for column in drop:
        needed = min(widths[shrink], least)
        if sum(widths[it] for it in kept if it != shrink) + needed + 2 * (len(kept) - 1) <= room:
            break
        kept.remove(column)
    return (
        [[row[it] for it in kept] for row in cells],
        [widths[it] for it in kept],
        [at for at, it in enumerate(kept) if it in left],
        kept.index(shrink),
    )


def shorten(name: str, most: int) -> str:
    """Cut at its begin: names of similar jobs differ at the end."""
    if screen.display_width(name) <= most:
        return name
    while name and screen.display_width(name) >= most:
        name = name[1:]
    return "…" + name


def room() -> int | None:
    """Return the width of the terminal, None for a pipe, which gets everything."""
    terminal = sys.stdout.isatty()
    return columns(terminal) if terminal or "COLUMNS" in os.environ else None


def plain(text: object) -> str:
    """Make a name of unknown origin safe for a terminal: printable and short."""
    return screen.plain(text, _LONGEST)


def write(text: str) -> None:
    """Write data to stdout, in its encoding, and flush it, so that a closed pipe is noticed."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.stdout.write(encodable(text, sys.stdout))
    sys.stdout.flush()


def warn(problems: Iterable[str]) -> None:
    """Print each problem as a line on stderr."""
    for problem in problems:
        print(f"joblens: {screen.plain(problem, 1000)}", file=sys.stderr)


def progress(what: str) -> Callable[[int, int], None] | None:
    """Return a function that shows progress on a terminal, on a line that is erased at the end."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, whole: int) -> None:
        if whole >= _WORTH_SHOWING:
            sys.stderr.write(f"\rjoblens: {done} of {whole} {what}" + ("\r\x1b[K" if done == whole else ""))
            sys.stderr.flush()

    return show
