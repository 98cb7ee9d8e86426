"""Where the SQL of SQLite and of PostgreSQL differs. All else is written once, with ? for values."""

from __future__ import annotations

from collections.abc import Callable

from joblens.core.named_tuple import NamedTuple

SELECT = "SELECT {columns} FROM jobs WHERE {condition} {order}"


class Dialect(NamedTuple):
    # In front of a column or condition for which SQLite shall use no index, nor follow one
    # (https://www.sqlite.org/optoverview.html#uplus). PostgreSQL has statistics.
    plus: str
    one_of: str  # whether a column has one of the values that a query selects
    # Selects the numbers of all kinds that match a {condition} as one value, or None. A planner that has them
    # knows from its statistics how many jobs they have. Empty if there are no statistics.
    all_kinds: str
    is_kind: str  # whether a job is of one of them
    count_jobs: str  # about, and at once
    matches: str  # whether a text matches a pattern
    make_pattern: Callable[[str], str]  # from one with * and ?
    # Rows with {columns} that match a {condition} which, as the {order}, is in an index.
    in_order: str
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
    all_kinds="",
    is_kind="",
    count_jobs="SELECT max(number) FROM jobs",
    matches="{} GLOB ?",
    make_pattern=make_glob,
    in_order=SELECT,
    find_then_sort=SELECT,
)
POSTGRESQL = Dialect(
    plus="",
    one_of="{} = ANY(ARRAY({}))",  # is evaluated once, and found by an index
    all_kinds="SELECT array_agg(number)::text FROM kinds WHERE {condition}",
    is_kind="kind = ANY(?::bigint[])",
    count_jobs="SELECT greatest(reltuples, 0) FROM pg_class WHERE oid = 'jobs'::regclass",
    matches="{} LIKE ?",
    make_pattern=_make_like,
    # Only the index is read to find the rows.
    in_order="SELECT {columns} FROM (SELECT number FROM jobs WHERE {condition} {order}) AS found "
    "JOIN jobs USING (number) {order}",
    # OFFSET 0 keeps the planner from following the index of the order instead.
    find_then_sort="SELECT {columns} FROM ("
    "SELECT {listed} FROM jobs WHERE {condition} OFFSET 0) AS jobs {order}",
)
