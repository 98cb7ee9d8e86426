"""Output of the listings: tables, and what is common to all."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Sequence

from joblens.reports import width as screen
from joblens.reports.style import columns, encodable

_LONGEST = 60
_WORTH_SHOWING = 10


def render_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int], shrink: int | None = None
) -> list[str]:
    """Columns named in `left` begin at the left, the others end at the right.

    The column `shrink` gives way where a line would not fit the screen.
    """
    cells = [list(head), *[[plain(cell) for cell in row] for row in rows]]
    widths = [max(screen.display_width(row[column]) for row in cells) for column in range(len(head))]
    if shrink is not None:
        rest = sum(widths) - widths[shrink] + 2 * (len(head) - 1)
        widths[shrink] = min(widths[shrink], max(columns(sys.stdout.isatty()) - rest, len(head[shrink])))
        for row in cells:
            row[shrink] = screen.plain(row[shrink], widths[shrink])
    return [
        "  ".join(
            (screen.left if column in left else screen.right)(cell, width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in cells
    ]


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
