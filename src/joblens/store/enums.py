"""Text columns as ENUMs while the rows of a merge are sorted: numbers are compared and moved, not text.

In the file a column stays an ENUM, which is smaller too, unless readers choose row groups by it: of an ENUM
the statistics of a row group do not say which of its values are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from joblens.store.lake.columns import identifier
from joblens.store.lake.lake import Lake, as_table, group_rows, width

_LEAST_ROWS = 100_000  # of fewer the text is sorted in less time than it takes to find out what there is
_MOST_TEXTS = 10_000  # different ones of a column: each row group has a list of them
_CHOSEN_BY = frozenset(("cluster", "jobid", "step", "node"))


class Enums(NamedTuple):
    """SQL selections of the columns, before and after rows are sorted."""

    before: str = "*"
    after: str = "*"


def make_enums(lake: Lake, files: list[Path], schema: Mapping[str, str], values: int) -> Enums:
    """For rows of these files, which have so many values. Raises duckdb.Error."""
    texts = [name for name, kind in schema.items() if kind == "VARCHAR"]
    rows = values // width(schema)
    if not texts or rows < _LEAST_ROWS:
        return Enums()
    table = as_table(files)
    counted = ", ".join(f"approx_count_distinct({identifier(name)})" for name in texts)
    (counts,) = lake.connection.execute(f"SELECT {counted} FROM {table}").fetchall()
    before, after = [], []
    for number, (name, count) in enumerate(zip(texts, counts)):
        if not 0 < count <= _MOST_TEXTS:
            continue
        column, kind = identifier(name), f"merged{number}"
        different = f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY 1"
        lake.connection.execute(f"DROP TYPE IF EXISTS {kind}")
        lake.connection.execute(f"CREATE TYPE {kind} AS ENUM ({different})")
        before.append(f"{column}::{kind} AS {column}")
        if name in _CHOSEN_BY and count > 1 and rows > group_rows(schema):
            after.append(f"{column}::VARCHAR AS {column}")
    return Enums(_replace(before), _replace(after))


def _replace(columns: list[str]) -> str:
    return f"* REPLACE ({', '.join(columns)})" if columns else "*"
