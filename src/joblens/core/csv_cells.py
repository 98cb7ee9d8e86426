"""Cells of CSV (RFC 4180) that are safe to show in a terminal and to open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

# A spreadsheet evaluates cells that begin with these, full-width signs included. With `;` as the separator,
# as in many locales, a cell can also begin after one. Tabs and line ends are escaped before.
_STARTS = frozenset("=+-@\N{FULLWIDTH EQUALS SIGN}\N{FULLWIDTH PLUS SIGN}\N{FULLWIDTH HYPHEN-MINUS}"
                    "\N{FULLWIDTH COMMERCIAL AT}")  # fmt: skip
_FORMULA = re.compile(f"(^|;)(?=[{re.escape(''.join(sorted(_STARTS)))}])")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)


def safe_cell(text: str) -> str:
    """Escape unprintable characters as in C, and put `'` before what a spreadsheet would evaluate."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if (text[:1] in _STARTS or ";" in text) and not _NUMBER.fullmatch(text):
        text = _FORMULA.sub(r"\1'", text)
    return text


def quoted_cell(text: str) -> str:
    safe = safe_cell(text)
    return '"' + safe.replace('"', '""') + '"' if '"' in safe or "," in safe else safe


def render_csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Render rows for people: unknown values are empty cells."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (head, *rows):
        writer.writerow([_cell(value) for value in row])
    return text.getvalue()


def _cell(value: object) -> object:
    return value if value is None or isinstance(value, (int, float)) else safe_cell(str(value))
