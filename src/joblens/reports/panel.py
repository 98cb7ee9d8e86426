"""A table on a screen of any size: columns give way where it is narrow, and bars grow where it is wide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from joblens.reports.width import display_width, left, plain, right

GAP = 2
_SHORTEST_BAR, _LONGEST_BAR = 4, 20
_WIDEST_NAME = 24
_NEVER_LEFT_OUT = 9
_WORTH_MORE_THAN_BARS = 8  # columns that are kept so long go only when the bars have gone
_CODES = {"bold": "1", "dim": "2", "head": "7", "red": "31", "yellow": "33", "green": "32", "cyan": "36"}


class Column(NamedTuple):
    title: str
    width: int  # without its bar
    bar: bool = False
    left: bool = False
    keep: int = _NEVER_LEFT_OUT  # the lowest give way first
    if_any: bool = False  # left out where all of it is empty


class Cell(NamedTuple):
    text: str
    part: float | None = None  # of what there is, for the bar
    color: str = ""


class Look(NamedTuple):
    """Capabilities of the terminal."""

    colors: bool = False
    blocks: bool = True  # letters beyond ASCII

    def style(self, text: str, name: str) -> str:
        return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if self.colors and name and text else text

    def bar(self, part: float | None, width: int) -> str:
        """Empty where there is nothing that it could be a part of."""
        if part is None:
            return " " * width
        full = min(max(round(part * width), 1 if part >= 0.005 else 0), width)
        letters = "█░" if self.blocks else "#."
        color = "red" if part >= 0.95 else "yellow" if part >= 0.8 else "cyan"
        return self.style(letters[0] * full + letters[1] * (width - full), color)


class _Layout(NamedTuple):
    shown: list[int]
    first: int  # width of the first column
    bar: int  # 0: there are none

    def width(self, columns: Sequence[Column], at: int) -> int:
        return self.first if at == 0 else columns[at].width


def clip(text: str, width: int) -> str:
    return text if display_width(text) <= width else plain(text, width)


def render_panel(
    columns: Sequence[Column], rows: list[list[Cell]], size: tuple[int, int], scroll: int, look: Look
) -> list[str]:
    """No more lines than the height, of which the first is the head."""
    width, height = size
    if height < 2:
        return []
    layout = _fit(columns, rows, width)
    lines = [look.style(left(clip(_head(columns, layout), width), width), "head")]
    if not rows:
        return [*lines, look.style(clip("none", width), "dim")]
    room = height - 1
    begin = min(scroll, max(len(rows) - room, 0))
    # The line that says how many more there are takes the place of one, but not of the only one.
    cut = len(rows) - begin > room > 1
    end = begin + (room - 1 if cut else room)
    lines += [_render_row(columns, row, layout, look) for row in rows[begin:end]]
    if cut:
        lines.append(look.style(clip(f"{'… ' * look.blocks}{len(rows) - end} more", width), "dim"))
    return lines


def _fit(columns: Sequence[Column], rows: list[list[Cell]], width: int) -> _Layout:
    shown = _filled(columns, rows)
    bars = sum(columns[at].bar for at in shown)
    while True:
        used = sum(columns[at].width for at in shown) + GAP * (len(shown) - 1) + bars * (_SHORTEST_BAR + 1)
        if used <= width or len(shown) == 1:
            break
        last = min(shown[1:], key=lambda at: (columns[at].keep, -at))
        if bars and columns[last].keep >= _WORTH_MORE_THAN_BARS:
            bars = 0
        else:
            shown.remove(last)
    spare = max(width - used, 0)
    longest = max([columns[0].width, *(min(display_width(plain(row[0].text)), _WIDEST_NAME) for row in rows)])
    first = min(columns[0].width + spare, longest)
    spare -= first - columns[0].width
    longer = min(spare // bars, _LONGEST_BAR - _SHORTEST_BAR) if bars else 0
    return _Layout(shown, min(first, width), _SHORTEST_BAR + longer if bars else 0)


def _filled(columns: Sequence[Column], rows: list[list[Cell]]) -> list[int]:
    return [at for at, column in enumerate(columns) if not column.if_any or any(row[at].text for row in rows)]


def _head(columns: Sequence[Column], layout: _Layout) -> str:
    titles = []
    for at in layout.shown:
        column = columns[at]
        width = layout.width(columns, at) + (layout.bar + 1 if column.bar and layout.bar else 0)
        titles.append((left if column.left else right)(column.title, width))
    return (" " * GAP).join(titles)


def _render_row(columns: Sequence[Column], row: list[Cell], layout: _Layout, look: Look) -> str:
    cells = []
    for at in layout.shown:
        column, cell, width = columns[at], row[at], layout.width(columns, at)
        text = plain(cell.text, width)
        space = " " * (width - display_width(text))
        styled = look.style(text, cell.color)
        meter = look.bar(cell.part, layout.bar) + " " if column.bar and layout.bar else ""
        cells.append(styled + space if column.left else meter + space + styled)
    return (" " * GAP).join(cells)


def render_plain(columns: Sequence[Column], rows: list[list[Cell]], room: int | None = None) -> list[str]:
    """Without bars, as wide as it has to be for a pipe; on a screen the least important columns give way."""
    shown = _filled(columns, rows)
    cells = {
        at: [columns[at].title.lower(), *(plain(row[at].text, 40) for row in rows)]
        for at in range(len(columns))
    }
    widths = {at: max(map(display_width, texts)) for at, texts in cells.items()}
    while room is not None and sum(widths[at] + GAP for at in shown) - GAP > room:
        least = min(shown, key=lambda at: (columns[at].keep, -at))
        if columns[least].keep >= _NEVER_LEFT_OUT:
            break
        shown = [at for at in shown if at != least]
    align: dict[int, Callable[[str, int], str]] = {at: left if columns[at].left else right for at in shown}
    return [
        (" " * GAP).join(align[at](cells[at][line], widths[at]) for at in shown).rstrip()
        for line in range(len(rows) + 1)
    ]
