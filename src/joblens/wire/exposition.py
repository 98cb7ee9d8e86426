"""Rows as text for Prometheus: its own format (0.0.4) and OpenMetrics 1.0.

Names are `joblens_<set>_<column>` in base units; counters end in `_total`.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Tuple

from joblens.core.model import ABSENT, COUNTER, Column, Key, Rows, Schema

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_UNITS = ("seconds", "bytes", "cores")


class _Layout(NamedTuple):
    schema: Schema
    keys: Tuple[Key, ...]
    heads: List[str]  # per column
    names: List[List[str]]  # per column and row, up to the value


class Exposition:
    """Renders rows as text, and caches what does not change between calls."""

    def __init__(self, openmetrics: bool) -> None:
        self.openmetrics = openmetrics
        self.content_type = OPENMETRICS if openmetrics else PROMETHEUS
        self._layouts: Dict[str, _Layout] = {}

    def render(self, sets: Iterable[Rows]) -> bytes:
        parts: List[str] = []
        for rows in sets:
            self._render_rows(rows, parts)
        if self.openmetrics:
            parts.append("# EOF\n")
        return "".join(parts).encode("utf-8", "replace")

    def _render_rows(self, rows: Rows, parts: List[str]) -> None:
        layout = self._layout(rows)
        width = len(rows.schema.columns)
        for number, column in enumerate(rows.schema.columns):
            lines = [
                f"{name} {column.in_base_units(value)}\n"
                for name, value in zip(layout.names[number], rows.values[number::width])
                if value != ABSENT
            ]
            if lines:
                parts.append(layout.heads[number])
                parts += lines

    def _layout(self, rows: Rows) -> _Layout:
        layout = self._layouts.get(rows.schema.set)
        if layout is None or layout.schema is not rows.schema or layout.keys is not rows.keys:
            layout = self._layouts[rows.schema.set] = self._make_layout(rows)
        return layout

    def _make_layout(self, rows: Rows) -> _Layout:
        schema = rows.schema
        labels = [render_labels(schema.labels, key) for key in rows.keys]
        names = [[series_name(schema, column) + text for text in labels] for column in schema.columns]
        heads = [self._head(schema, column) for column in schema.columns]
        return _Layout(schema, rows.keys, heads, names)

    def _head(self, schema: Schema, column: Column) -> str:
        series = series_name(schema, column)
        # In OpenMetrics `_total` belongs to the sample and not to the name of the family.
        family = series[: -len("_total")] if self.openmetrics and column.kind == COUNTER else series
        head = f"# HELP {family} {_escape_help(column.help)}\n# TYPE {family} {column.kind}\n"
        unit = family.rpartition("_")[2]
        if self.openmetrics and unit in _UNITS:
            head += f"# UNIT {family} {unit}\n"
        return head


def series_name(schema: Schema, column: Column) -> str:
    name = "_".join(filter(None, ("joblens", schema.set, column.name)))
    return name + "_total" if column.kind == COUNTER else name


def render_labels(names: Iterable[str], key: Key) -> str:
    pairs = ",".join(f'{name}="{_escape_label(str(value))}"' for name, value in zip(names, key))
    return "{" + pairs + "}" if pairs else ""


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
