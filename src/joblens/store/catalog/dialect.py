"""Where the SQL of SQLite and of PostgreSQL differs. All else is written once, with ? for values."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Dialect(NamedTuple):
    # In front of a column or condition for which SQLite shall use no index, nor follow one
    # (https://www.sqlite.org/optoverview.html#uplus). PostgreSQL has statistics.
    plus: str
    one_of: str  # whether a column has one of the values that a query selects
    matches: str  # whether a text matches a pattern
    make_pattern: Callable[[str], str]  # from one with * and ?
    # Rows with {columns} that match a {condition} are found before they are sorted and limited by {order}.
    find_then_sort: str


def make_glob(pattern: str) -> str:
    """For GLOB and fnmatch: only * and ? are special."""
    return pattern.replace("[", "[[]")


def _make_like(pattern: str) -> str:
    for special in ("\\", "%", "_"):
        pattern = pattern.replace(special, "\\" + special)
    return pattern.replace("*", "%").replace("?", "_")


SQLITE = Dialect(
    plus="+",
    one_of="{} IN ({})",
    matches="{} GLOB ?",
    make_pattern=make_glob,
    find_then_sort="SELECT {columns} FROM jobs WHERE {condition} {order}",
)
POSTGRESQL = Dialect(
    plus="",
    one_of="{} = ANY(ARRAY({}))",  # is evaluated once, and compared within an index
    matches="{} LIKE ?",
    make_pattern=_make_like,
    # OFFSET 0 keeps the planner from following the index of the order instead.
    find_then_sort="SELECT {columns} FROM ("
    "SELECT {listed} FROM jobs WHERE {condition} OFFSET 0) AS jobs {order}",
)
