"""Capabilities of the output: columns, characters, colours."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TextIO

from joblens.core.named_tuple import NamedTuple

WIDTH = 80  # of a pipe or a file
_NARROWEST, _WIDEST = 50, 200
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
# One column each, as what they replace, so that the layout stays.
_ASCII = str.maketrans("▁▂▃▄▅▆▇█░└├│─…–→×₂µ±·✓✗≥", "_.,:-=+#.`||-~->x2u~.+x>")


class Style(NamedTuple):
    colours: bool = False
    width: int = WIDTH

    @classmethod
    def of(cls, stream: TextIO | None) -> Style:
        """Colours on a terminal that has them, unless NO_COLOR says otherwise (no-color.org)."""
        terminal = stream is not None and stream.isatty()
        colours = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(colours, columns(terminal))

    def __call__(self, text: str, *names: str) -> str:
        if not self.colours or not text:
            return text
        return f"\x1b[{';'.join(_CODES[name] for name in names)}m{text}\x1b[0m"

    def bar(self, part: float | None, colour: str, room: int) -> str:
        """A bar and its percentage in at most so many columns; only the percentage where that is little."""
        if part is None:
            return ""
        length = room - 5
        percent = f"{min(part, 99):>4.0%}"
        if length < 4:
            return percent
        filled = min(round(part * length), length)
        return f"{self('█' * filled, colour)}{self('░' * (length - filled), 'dim')} {percent}"


def columns(terminal: bool) -> int:
    """COLUMNS, or a terminal's own width; a pipe has 80."""
    found = WIDTH
    with suppress(ValueError, OSError):
        given = os.environ.get("COLUMNS")
        found = int(given) if given else os.get_terminal_size().columns if terminal else WIDTH
    return min(max(found or WIDTH, _NARROWEST), _WIDEST)


def encodable(text: str, stream: TextIO | None) -> str:
    """Replace characters by ASCII ones if the output is not UTF-8."""
    return text if knows_blocks(stream) else text.translate(_ASCII)


def _locale() -> str:
    """Return the user's choice: where LANG is C, Python sets LC_CTYPE to one of these (PEP 538)."""
    every, kind, language = (os.environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    return every or (language if kind in ("C.UTF-8", "C.utf8", "UTF-8") else kind) or language


def knows_blocks(stream: TextIO | None) -> bool:
    """Python writes UTF-8 also in the C locale (PEP 540); who asks for that locale asks for ASCII."""
    if _locale() in ("C", "POSIX") and not os.environ.get("PYTHONIOENCODING"):
        return False
    try:
        "█".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
