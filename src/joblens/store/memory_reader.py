"""The interface of joblens.store.reader over samples in memory.

The report of a short job is made from these: loading DuckDB and NumPy takes longer than many a job runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from joblens.core.model import ABSENT, Column, Number, Rows, Sample, Schema
from joblens.record.ends import SETS, TEXTS, EndedProcess, merge_sources
from joblens.record.report import ProcessUse
from joblens.store.lake.columns import storable, stored_name
from joblens.store.reader import (
    KEYS,
    MEMORY,
    NO_LABELS,
    PEAKS,
    SPAN_MARGIN,
    WAITING_FOR_DISK,
    Break,
    End,
    Reader,
    Series,
    Span,
    find_breaks,
)

_DAY_NS = 86_400 * 10**9
_WORD = 1 << 63


class SamplesReader(Reader):
    """Samples of one job, and of the node that it ran on."""

    def __init__(self, samples: Iterable[Sample], job: str, node: str) -> None:
        self._node, self._job = node, job
        self._sets: dict[str, list[Sample]] = {}
        for time_ns, rows in samples:
            own = _of_job(rows, job)
            if own.keys:
                self._sets.setdefault(own.schema.set, []).append(Sample(time_ns, own))
        for found in self._sets.values():
            found.sort(key=lambda sample: sample.time_ns)

    def split(
        self,
        span: Span,
        set_name: str,
        labels: Sequence[str],
        columns: Sequence[str],
        points: int,
        only: Mapping[str, str] = NO_LABELS,
    ) -> dict[tuple[str, ...], Series]:
        groups: dict[tuple[str, ...], list[Sample]] = {}
        for sample in self._within(span, set_name):
            for key, rows in self._split(sample.rows, (*labels, *only)).items():
                if key[len(labels) :] == tuple(only.values()):
                    groups.setdefault(key[: len(labels)], []).append(Sample(sample.time_ns, rows))
        found = {key: self._fold(span, set_name, some, columns, points) for key, some in groups.items()}
        return {key: series for key, series in sorted(found.items()) if series.last}

    def _split(self, rows: Rows, labels: Sequence[str]) -> dict[tuple[str, ...], Rows]:
        """A label that the rows do not have is nothing, but job and node, which the lake knows as well."""
        if not labels:
            return {(): rows}
        places = {name: number for number, name in enumerate(rows.schema.labels)}
        known = {"node": self._node, "jobid": self._job}
        found: dict[tuple[str, ...], list[int]] = {}
        for number, key in enumerate(rows.keys):
            texts = (str(key[places[name]]) if name in places else known.get(name, "") for name in labels)
            found.setdefault(tuple(map(storable, texts)), []).append(number)
        return {
            key: Rows(
                rows.schema,
                tuple(rows.keys[number] for number in numbers),
                [value for number in numbers for value in rows.row(number)],
            )
            for key, numbers in found.items()
        }

    def _fold(
        self, span: Span, set_name: str, samples: list[Sample], columns: Sequence[str], points: int
    ) -> Series:
        known = set(self._columns(span, set_name))
        chosen = [name for name in dict.fromkeys(columns) if name in known]
        if not chosen or not samples:
            return Series([], {}, {}, {})
        width = max((span.end - span.start) / max(points, 1), 1e-6)
        bins: dict[int, list[tuple[float, list[float | None]]]] = {}
        for time_ns, parts in _moments(samples):
            moment = time_ns / 1e9
            row = [_sum(parts, name) for name in chosen]
            bins.setdefault(math.floor((moment - span.start) / width), []).append((moment, row))
        stretches = [bins[number] for number in sorted(bins)]
        series = Series([stretch[-1][0] for stretch in stretches], {}, {}, {})
        for number, name in enumerate(chosen):
            cells = [[v for _, row in stretch if (v := row[number]) is not None] for stretch in stretches]
            series.last[name] = [found[-1] if found else None for found in cells]
            series.mean[name] = [sum(found) / len(found) if found else None for found in cells]
            series.peak[name] = [max(found, default=None) for found in cells]
        return series

    def sets(self) -> tuple[str, ...]:
        return tuple(sorted(self._sets))

    def measured(self, span: Span, set_name: str) -> tuple[str, ...]:
        return tuple(name for name in self._columns(span, set_name) if name not in KEYS)

    def processes(self, span: Span) -> list[ProcessUse]:
        found: dict[tuple[int, int, str], _Use] = {}
        for sample in self._within(span.around(), "process"):
            layout = _Layout(sample.rows.schema, self._node)
            for number, key in enumerate(sample.rows.keys):
                identity = layout.identity(key)
                if identity is not None:
                    use = found.get(identity)
                    if use is None:
                        use = found[identity] = _Use(sample.time_ns)
                    use.take(sample.time_ns, layout, key, sample.rows.row(number))
        uses = sorted(found.items(), key=lambda item: (item[1].first, item[0]))
        return [use.plain(*identity) for identity, use in uses]

    def ends(self, span: Span, kind: type[End], most: int | None = None) -> list[End]:
        found: list[End] = []
        for sample in self._within(span._replace(end=span.end + SPAN_MARGIN), SETS[kind]):
            seen, ends = sample.time_ns / 1e9, _make_ends(kind, sample.rows)
            began = ((it, it.began_seconds) for it in ends)
            found += (it for it, at in began if span.has_begin(seen if at is None else at))
        found.sort(key=lambda end: (end.began_seconds or 0, end.pid, end.start))
        return merge_sources(found if most is None else found[:most])

    def count_ends(self, span: Span) -> tuple[int, int]:
        found = self.ends(span, EndedProcess)
        return len(found), sum(end.exact for end in found)

    def sample_times(self, span: Span) -> list[float]:
        return sorted({sample.time_ns / 1e9 for sample in self._within(span, "job")})

    def times_by_node(self, span: Span, set_name: str) -> dict[tuple[str, str], list[float]]:
        found: dict[tuple[str, ...], set[float]] = {}
        for time_ns, rows in self._within(span, set_name):
            for key in self._split(rows, ("cluster", "node")):
                found.setdefault(key, set()).add(time_ns / 1e9)
        return {(cluster, node): sorted(times) for (cluster, node), times in sorted(found.items())}

    def breaks(
        self, span: Span, set_name: str, counters: Sequence[str], longest: float
    ) -> dict[str, list[Break]]:
        groups: dict[str, list[Sample]] = {}
        for time_ns, rows in self._within(span, set_name):
            for (node,), some in self._split(rows, ("node",)).items():
                groups.setdefault(node, []).append(Sample(time_ns, some))
        found = {
            node: find_breaks(_counted(samples, counters), counters, longest)
            for node, samples in sorted(groups.items())
        }
        return {node: breaks for node, breaks in found.items() if breaks}

    def _columns(self, span: Span, set_name: str) -> Iterator[str]:
        """Return all samples of these days, as in the lake, which has a folder per day."""
        first, last = (int(max(moment, 0.0)) * 10**9 // _DAY_NS for moment in (span.start, span.end))
        schemas: dict[int, Schema] = {}
        for time_ns, rows in self._sets.get(set_name, []):
            if first <= time_ns // _DAY_NS <= last:
                schemas[id(rows.schema)] = rows.schema
        columns = (column for schema in schemas.values() for column in schema.columns)
        return iter(dict.fromkeys(map(stored_name, columns)))

    def _within(self, span: Span, set_name: str) -> list[Sample]:
        first, last = span.nanoseconds().values()
        found = [sample for sample in self._sets.get(set_name, []) if first <= sample.time_ns <= last]
        if not span.cluster and not span.nodes:
            return found
        chosen = [Sample(time_ns, self._chosen(span, rows)) for time_ns, rows in found]
        return [sample for sample in chosen if sample.rows.keys]

    def _chosen(self, span: Span, rows: Rows) -> Rows:
        """Select samples of this cluster and these nodes."""
        parts = self._split(rows, ("cluster", "node"))
        wanted = [
            some
            for (cluster, node), some in parts.items()
            if span.has_node(node) and (not span.cluster or cluster == span.cluster)
        ]
        keys = tuple(key for some in wanted for key in some.keys)
        return Rows(rows.schema, keys, [value for some in wanted for value in some.values])


def _moments(samples: list[Sample]) -> Iterator[tuple[int, list[Rows]]]:
    found: dict[int, list[Rows]] = {}
    for time_ns, rows in samples:
        found.setdefault(time_ns, []).append(rows)
    return iter(found.items())


def _counted(
    samples: list[Sample], counters: Sequence[str]
) -> Iterator[tuple[float, dict[str, float | None]]]:
    for time_ns, parts in _moments(samples):
        yield time_ns / 1e9, {name: _sum(parts, name) for name in counters}


def _of_job(rows: Rows, job: str) -> Rows:
    """A batch can hold what says that it is another's."""
    if "jobid" not in rows.schema.labels:
        return rows
    place = rows.schema.labels.index("jobid")
    own = [n for n, key in enumerate(rows.keys) if key[place] == job or storable(str(key[place])) == job]
    if len(own) == len(rows.keys):
        return rows
    values = [value for number in own for value in rows.row(number)]
    return Rows(rows.schema, tuple(rows.keys[number] for number in own), values)


def _sum(parts: list[Rows], name: str) -> float | None:
    """Over keys (devices, interfaces) the values of one moment are added up."""
    total: float | None = None
    for rows in parts:
        for place, column in enumerate(rows.schema.columns):
            if stored_name(column) == name:
                known = [v for v in rows.values[place :: len(rows.schema.columns)] if v != ABSENT]
                if known:
                    total = (total or 0.0) + float(column.in_base_units(sum(known)))
    return total


def _make_ends(kind: type[End], rows: Rows) -> Iterator[End]:
    """From labels and values, column by column; unknown ones keep their default."""
    labels = {name: place for place, name in enumerate(rows.schema.labels)}
    values = {stored_name(column): (n, column) for n, column in enumerate(rows.schema.columns)}
    cells: list[Iterable[str | Number | None]] = []
    for name in kind._fields:
        default = kind._field_defaults[name]
        if name in labels:
            cells.append(_label_cells(rows, labels[name], name in TEXTS, default))
        elif name in values:
            cells.append(_value_cells(rows, *values[name], default))
        else:
            cells.append([default] * len(rows.keys))
    return (kind._make(row) for row in zip(*cells, strict=True))


def _label_cells(rows: Rows, place: int, is_text: bool, default: Any) -> Iterable[str | Number | None]:
    if is_text:
        return [storable(str(key[place])) for key in rows.keys]
    return [key[place] if type(key[place]) is int else default for key in rows.keys]


def _value_cells(rows: Rows, place: int, column: Column, default: Any) -> Iterable[str | Number | None]:
    factor, divisor = column.factor, column.divisor
    found = rows.values[place :: len(rows.schema.columns)]
    if divisor == 1:
        return [default if value == ABSENT else value * factor for value in found]
    return [default if value == ABSENT else value * factor / divisor for value in found]


class _Layout:
    """Where in the rows of a schema stands what is known of a process. A batch need not have all of it."""

    def __init__(self, schema: Schema, node: str) -> None:
        self._node = node
        self._labels = {name: place for place, name in enumerate(schema.labels)}
        self._columns = {stored_name(column): (n, column) for n, column in enumerate(schema.columns)}

    def identity(self, key: tuple[Any, ...]) -> tuple[int, int, str] | None:
        pid, start = self.number(key, "pid"), self.number(key, "start")
        return None if pid is None or start is None else (pid, start, self.text(key, "node", self._node))

    def number(self, key: tuple[Any, ...], name: str) -> int | None:
        place = self._labels.get(name)
        found = None if place is None else key[place]
        return found if type(found) is int else None

    def text(self, key: tuple[Any, ...], name: str, otherwise: str) -> str:
        place = self._labels.get(name)
        return otherwise if place is None else str(key[place])

    def value(self, row: list[int], name: str) -> Number | None:
        place, column = self._columns.get(name, (0, None))
        return None if column is None or row[place] == ABSENT else column.in_base_units(row[place])


class _Use:
    def __init__(self, first: int) -> None:
        self.first = self.last = first
        self.parent: int | None = None
        self.name = self.command = ""
        self.most: dict[str, Number] = {}
        self.looks = self.waiting = 0

    def take(self, time_ns: int, layout: _Layout, key: tuple[Any, ...], row: list[int]) -> None:
        self.last = time_ns
        self.looks += 1
        self.waiting += layout.value(row, "state") == WAITING_FOR_DISK
        self.name = layout.text(key, "name", self.name)
        self.command = layout.text(key, "command", self.command)
        if self.parent is None:
            self.parent = layout.number(key, "parent")
        for name in PEAKS:
            self._keep(name, layout.value(row, name))
        anon, shmem = (layout.value(row, name) for name in MEMORY)
        self._keep("memory", None if anon is None or shmem is None else anon + shmem)

    def _keep(self, name: str, value: Number | None) -> None:
        if value is not None and (name not in self.most or value > self.most[name]):
            self.most[name] = value

    def plain(self, pid: int, start: int, node: str) -> ProcessUse:
        user, system, *whole = (self.most.get(name) for name in (*PEAKS[:2], "memory", *PEAKS[2:]))
        *amounts, delay = whole
        memory, threads, read, written, files = map(_whole, amounts)
        return ProcessUse(
            pid, start, self.parent or 0, storable(self.name), storable(self.command), storable(node),
            self.first / 1e9, self.last / 1e9, _parts(user), _parts(system), memory, threads, read, written,
            files, self.looks, self.waiting, _parts(delay),
        )  # fmt: skip


def _parts(value: Number | None) -> float | None:
    return None if value is None else float(value)


def _whole(value: Number | None) -> int | None:
    return None if value is None or not -_WORD <= value < _WORD else round(value)
