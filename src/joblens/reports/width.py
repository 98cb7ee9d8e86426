"""How wide text is on a screen, and text from outside that does no harm there."""

from __future__ import annotations

import unicodedata


def display_width(text: str) -> int:
    """In columns: an ideograph takes two, a combining mark none."""
    return sum(map(_letter_width, text))


def _letter_width(letter: str) -> int:
    if letter.isascii():
        return 1
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


def plain(text: object, width: int = 10_000) -> str:
    """In one line and no wider: nothing in it may move the cursor, begin a line or fill the screen."""
    words = " ".join(str(text)[: 4 * width].split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words)
    # Marks are put on a letter one over the other: more than a name can need would cover other lines.
    if display_width(shown) <= width and len(shown) <= 2 * width and len(str(text)) <= 4 * width:
        return shown
    cut, used = "", 0
    for letter in shown[: 2 * width]:
        used += _letter_width(letter)
        if used > width - 1:
            break
        cut += letter
    return cut + "…" if width > 0 else ""


def left(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


def right(text: str, width: int) -> str:
    return " " * (width - display_width(text)) + text
