"""Sentences in lines of a width."""

from __future__ import annotations

from collections.abc import Iterator

from joblens.reports.style import WIDTH
from joblens.reports.width import display_width, plain

_LONGEST = 300  # of a sentence
_UNITS = frozenset("B KiB MiB GiB TiB PiB B/s KiB/s MiB/s GiB/s µs ms s min h d J kJ kWh W cores".split())
_BEHIND = ",.;:)"


def wrap(head: str, text: str, width: int = WIDTH) -> list[str]:
    """Lines of at most so many columns."""
    lines, line = [], head
    for word in _words(plain(text, _LONGEST)):
        for piece in _pieces(word, width - display_width(head)):
            blank = "" if not line.strip() or line == head else " "
            if display_width(line + blank + piece) > width:
                lines.append(line)
                line, blank = " " * display_width(head), ""
            line += blank + piece
    return [*lines, line]


def _words(text: str) -> Iterator[str]:
    """A number and its unit are one."""
    number = ""
    for word in text.split(" "):
        if number and word.rstrip(_BEHIND) in _UNITS:
            number += " " + word
            continue
        if number:
            yield number
        number = word if word[-1:].isdigit() else ""
        if not number:
            yield word
    if number:
        yield number


def _pieces(word: str, width: int) -> list[str]:
    """A word that is wider than a line, in parts."""
    found = [""]
    for letter in word:
        if display_width(found[-1] + letter) > width:
            found.append("")
        found[-1] += letter
    return found
