"""Ranges of jobs and nodes, and of time within one node, that can each be sorted at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from joblens.store.lake.columns import TIME, identifier
from joblens.store.lake.lake import Lake, as_table, literal, width

_COLUMNS = ("cluster", "jobid", "step", "node")  # in the order in which rows are sorted
_JOB, _NODE = "jobid", "node"
Key = tuple[str, ...]
Name = TypeVar("Name")
_SECOND = 10**9  # in nanoseconds


class Range(NamedTuple):
    """Rows with keys between two bounds, both included; all rows if there are no columns."""

    columns: tuple[str, ...] = ()  # as SQL
    least: Key = ()
    most: Key = ()
    jobs: tuple[str, str] | None = None
    nodes: tuple[str, str] | None = None
    seconds: tuple[int, int] | None = None  # since 1970, both included; rows without a time are in none
    left_out: tuple[str, str] | None = None  # rows that match one of this table, and the condition as SQL

    def of(self, table: str) -> str:
        if not self.columns:
            if self.left_out is None:
                return table
            other, condition = self.left_out
            return f"(SELECT * FROM {table} ANTI JOIN {other} ON {condition})"
        # First conditions that row group statistics can answer, so that other row groups are not read.
        conditions = []
        for column, least, most in zip(self.columns, self.least, self.most):
            conditions.append(f"{column} BETWEEN {literal(least)} AND {literal(most)}")
            if least != most:
                break
        conditions += [_compare(self.columns, self.least, ">"), _compare(self.columns, self.most, "<")]
        if self.seconds:
            first, end = self.seconds[0] * _SECOND, (self.seconds[1] + 1) * _SECOND
            conditions.insert(
                0, f"{TIME} >= make_timestamp_ns({first}) AND {TIME} < make_timestamp_ns({end})"
            )
        return f"(SELECT * FROM {table} WHERE {' AND '.join(conditions)})"


def is_divisible(schema: Mapping[str, str]) -> bool:
    """If rows say of which job and node they are, and when."""
    kinds = {schema.get(_JOB), schema.get(_NODE), *(schema[name] for name in _COLUMNS if name in schema)}
    return kinds == {"VARCHAR"} and schema.get(TIME) == "TIMESTAMP_NS"


def find_ranges(lake: Lake, files: list[Path], largest: int) -> list[Range]:
    """In order, together all rows. Raises duckdb.Error.

    None if rows are not divisible, or if those of one node in one second are too many.
    """
    schema = lake.schema(files)
    if not is_divisible(schema):
        return []
    names = [name for name in _COLUMNS if name in schema]
    selected = ", ".join(map(identifier, names))
    query = f"SELECT {selected}, count(*) FROM {as_table(files)} GROUP BY ALL"
    found = lake.connection.execute(query).fetchall()
    # A file without a column has NULL in it: that goes with the rows that have no text there.
    nulls = [any(row[at] is None for row in found) for at in range(len(names))]
    columns = tuple(
        f"coalesce({identifier(name)}, '')" if null else identifier(name) for name, null in zip(names, nulls)
    )
    counts: Counter[Key] = Counter()
    for *key, rows in found:
        counts[tuple(text or "" for text in key)] += int(rows) * width(schema)
    ranges: list[Range] = []
    for keys in _group(sorted(counts.items()), largest):
        part = _make(columns, names, keys)
        within = [part] if len(keys) > 1 or counts[keys[0]] <= largest else _cut(lake, files, part, largest)
        if not within:
            return []
        ranges += within
    return ranges


def _group(counts: list[tuple[Name, int]], largest: int) -> list[list[Name]]:
    """One after the other, as many as fit. One that does not fit at all is alone."""
    groups: list[list[Name]] = []
    total = 0
    for key, values in counts:
        if not groups or total + values > largest:
            groups.append([])
            total = 0
        groups[-1].append(key)
        total += values
    return groups


def _cut(lake: Lake, files: list[Path], whole: Range, largest: int) -> list[Range]:
    """By time, in whole seconds. None if that is not possible."""
    table = whole.of(as_table(files))
    query = f"SELECT epoch_ns({TIME}) // {_SECOND}, count(*) FROM {table} GROUP BY 1"
    per_row = width(lake.schema(files))
    counts = {second: rows * per_row for second, rows in lake.connection.execute(query).fetchall()}
    if None in counts or max(counts.values()) > largest:
        return []
    return [
        whole._replace(seconds=(found[0], found[-1])) for found in _group(sorted(counts.items()), largest)
    ]


def _make(columns: tuple[str, ...], names: list[str], keys: list[Key]) -> Range:
    jobs, nodes = ([key[names.index(name)] for key in keys] for name in (_JOB, _NODE))
    return Range(columns, keys[0], keys[-1], (min(jobs), max(jobs)), (min(nodes), max(nodes)))


def _compare(columns: tuple[str, ...], key: Key, sign: str) -> str:
    """Column by column: of those before it the key's own value, or the key itself."""
    condition = "true"
    for name, text in reversed(list(zip(columns, map(literal, key)))):
        condition = f"({name} {sign} {text} OR ({name} = {text} AND {condition}))"
    return condition
