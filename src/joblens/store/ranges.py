"""Ranges of jobs and nodes, so that each has no more values than can be sorted at once."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from joblens.store.columns import identifier
from joblens.store.lake import Lake, as_table, literal, width

_COLUMNS = ("cluster", "jobid", "step", "node")  # in the order in which rows are sorted
_JOB, _NODE = "jobid", "node"
Key = tuple[str, ...]


class Range(NamedTuple):
    """Rows whose key lies between two others, both included; all rows if there are no columns."""

    columns: tuple[str, ...] = ()
    least: Key = ()
    most: Key = ()
    jobs: tuple[str, str] | None = None
    nodes: tuple[str, str] | None = None

    def of(self, table: str) -> str:
        if not self.columns:
            return table
        # First what statistics of row groups can tell, so that others are not read.
        conditions = []
        for column, least, most in zip(self.columns, self.least, self.most):
            conditions.append(f"{identifier(column)} BETWEEN {literal(least)} AND {literal(most)}")
            if least != most:
                break
        conditions += [_compare(self.columns, self.least, ">"), _compare(self.columns, self.most, "<")]
        return f"(SELECT * FROM {table} WHERE {' AND '.join(conditions)})"


def find_ranges(lake: Lake, files: list[Path], largest: int) -> list[Range]:
    """In order, together all rows. Raises duckdb.Error.

    None if rows do not say of which job and node they are, or if those of one alone are too many.
    """
    schema = lake.schema(files)
    columns = tuple(name for name in _COLUMNS if name in schema)
    if not {_JOB, _NODE} <= set(columns) or any(schema[name] != "VARCHAR" for name in columns):
        return []
    names = ", ".join(map(identifier, columns))
    query = f"SELECT {names}, count(*) FROM {as_table(files)} GROUP BY ALL ORDER BY ALL"
    counts = [(key, int(rows) * width(schema)) for *key, rows in lake.connection.execute(query).fetchall()]
    if any(None in key or values > largest for key, values in counts):
        return []
    groups: list[list[Key]] = []
    total = 0
    for key, values in counts:
        if not groups or total + values > largest:
            groups.append([])
            total = 0
        groups[-1].append(tuple(key))
        total += values
    return [_make(columns, keys) for keys in groups]


def _make(columns: tuple[str, ...], keys: list[Key]) -> Range:
    jobs, nodes = ([key[columns.index(name)] for key in keys] for name in (_JOB, _NODE))
    return Range(columns, keys[0], keys[-1], (min(jobs), max(jobs)), (min(nodes), max(nodes)))


def _compare(columns: tuple[str, ...], key: Key, sign: str) -> str:
    """Column by column: of those before it the key's own value, or the key itself."""
    condition = "true"
    for column, text in reversed(list(zip(columns, map(literal, key)))):
        name = identifier(column)
        condition = f"({name} {sign} {text} OR ({name} = {text} AND {condition}))"
    return condition
