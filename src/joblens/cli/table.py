"""Tables of the listings."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST = 60


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Columns named in `left` begin at the left, the others end at the right."""
    cells = [tuple(head), *[tuple(plain(cell) for cell in row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in cells
    ]


def plain(text: str) -> str:
    """Names come from outside: nothing in them may move the cursor or fill the screen."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
