"""Output of the listings: tables, and what is common to all."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence

from joblens.reports import width as screen
from joblens.reports.style import WIDTH, columns, encodable

_LONGEST = 60
_SHORTEST = 6  # to which a column that gives way is cut before another is left out
_SHORTEST_IN_PIPE = 24  # where it is searched: who reads a pipe gets all columns, and names that grep finds
_WORTH_SHOWING = 10


def render_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Sequence[int],
    shrink: int | None = None,
    drop: Sequence[int] = (),
) -> list[str]:
    """Columns named in `left` begin at the left, the others end at the right.

    Where a line would not fit, the column `shrink` gives way; then on a screen, one by one, those in `drop`.
    """
    cells = [list(head), *[[plain(cell) for cell in row] for row in rows]]
    widths = [max(screen.display_width(row[column]) for row in cells) for column in range(len(head))]
    if shrink is not None:
        space, least = room() or WIDTH, _SHORTEST_IN_PIPE
        if room():
            cells, widths, left, shrink = _drop(cells, widths, left, shrink, drop, space)
            least = len(cells[0][shrink])
        rest = sum(widths) - widths[shrink] + 2 * (len(widths) - 1)
        widths[shrink] = min(widths[shrink], max(space - rest, least))
        for row in cells:
            row[shrink] = screen.plain(row[shrink], widths[shrink])
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
) -> tuple[list[list[str]], list[int], list[int], int]:
    kept = list(range(len(widths)))
    for column in drop:
        least = min(widths[shrink], _SHORTEST)
        if sum(widths[it] for it in kept if it != shrink) + least + 2 * (len(kept) - 1) <= room:
            break
        kept.remove(column)
    return (
        [[row[it] for it in kept] for row in cells],
        [widths[it] for it in kept],
        [at for at, it in enumerate(kept) if it in left],
        kept.index(shrink),
    )


def room() -> int | None:
    """Columns of the screen; None for a pipe, whose reader gets all that there is."""
    terminal = sys.stdout.isatty()
    return columns(terminal) if terminal or "COLUMNS" in os.environ else None


def plain(text: object) -> str:
    """Names come from outside: nothing in them may move the cursor or fill the screen."""
    return screen.plain(text, _LONGEST)


def write(text: str) -> None:
    """Data, to stdout: at once, so that a closed pipe is noticed, and in the characters that it has."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.stdout.write(encodable(text, sys.stdout))
    sys.stdout.flush()


def tell(problems: Iterable[str]) -> None:
    """A line each, to stderr."""
    for problem in problems:
        print(f"joblens: {screen.plain(problem, 1000)}", file=sys.stderr)


def progress(what: str) -> Callable[[int, int], None] | None:
    """Of long work, for people: how many of how many, on a line that goes away."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, whole: int) -> None:
        if whole >= _WORTH_SHOWING:
            sys.stderr.write(f"\rjoblens: {done} of {whole} {what}" + ("\r\x1b[K" if done == whole else ""))
            sys.stderr.flush()

    return show
