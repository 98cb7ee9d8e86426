"""The lake as a sink: each segment becomes Parquet files, one per set and day, of all nodes together.

Their names come from the hub and the segment alone, so a segment that is taken again replaces what is there.
Work is done per node and set or per column, never per value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.hub.checked import Checker
from joblens.hub.decode import Packed, decode_together
from joblens.hub.segments import Segment
from joblens.hub.sink import Place, Taken, left_out
from joblens.model import Key, Schema
from joblens.store.columns import LATEST_NS, TIME, Table, identifier, in_base_units, storable, stored_name
from joblens.store.compact import compact_small
from joblens.store.folder import HUB, JobFile
from joblens.store.home import Home, find_home, make_home
from joblens.store.lake import Lake
from joblens.store.retain import retain

if TYPE_CHECKING:
    import numpy

    from joblens.hub.decode import Numbers

    Cells = numpy.ndarray[Any, Any]

OPTIONS: Mapping[str, Any] = {
    "home": "",  # of the store; "": as JOBLENS_HOME and the like say
    "compact_seconds": 600.0,  # between two looks for small files to put together; 0: never
    "retain_days": 0,  # older samples and records are removed; 0: never
}
# So many values are held in memory, in files of their own. Taken again, a segment must come to the same
# files, so what is in it alone decides.
_CHUNK_VALUES = 16_000_000
_MOST_PARTS = 50  # kinds of columns in one file
_DAY_NS = 86_400 * 10**9
_RETAIN_SECONDS = 3600.0
_MOST_LABELS = 50_000
_Kind = tuple[int, int]  # of labels and columns, and how many ticks: what can be read at once


def open_sink(place: Place, options: Mapping[str, Any]) -> LakeSink:
    home = make_home(find_home(options["home"] or None))
    return LakeSink(place.hub, home, options["compact_seconds"], options["retain_days"])


class _Labels:
    """The keys of some rows as columns."""

    def __init__(self, schema: Schema, keys: tuple[Key, ...]) -> None:
        self.schema, self.keys = schema, keys
        self.columns = [_column([key[part] for key in keys]) for part in range(len(schema.labels))]
        self.kind = 0  # the same number for those that can be in the same columns

    def describe(self) -> tuple[Any, ...]:
        return self.schema.labels, self.schema.columns, tuple(column.dtype.char for column in self.columns)


def _column(cells: list[Any]) -> Cells:
    import numpy

    if all(type(cell) is int for cell in cells):
        return numpy.array(cells, dtype=numpy.int64)
    return numpy.array([storable(str(cell)) for cell in cells], dtype=object)


class _Entry(NamedTuple):
    cluster: str
    node: str
    labels: _Labels
    packed: Packed


class _Chunk:
    """What will be some files: by set, then by what can be read at once and put into the same columns."""

    def __init__(self) -> None:
        self.sets: dict[str, dict[_Kind, list[_Entry]]] = {}
        self.values = 0

    def add(self, cluster: str, node: str, labels: _Labels, packed: Packed) -> None:
        kinds = self.sets.setdefault(packed.schema.set, {})
        kinds.setdefault((labels.kind, packed.ticks), []).append(_Entry(cluster, node, labels, packed))
        self.values += packed.size * packed.ticks


class LakeSink:
    def __init__(self, hub: str, home: Home, compact_seconds: float = 0.0, retain_days: int = 0) -> None:
        self.hub, self.home = hub, home
        self.compact_seconds, self.retain_days = compact_seconds, retain_days
        self.lake = Lake(home.lake)
        self._checker = Checker()
        self._labels: dict[tuple[int, int], _Labels] = {}
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._numbers = count()
        self._compacted = self._retained = time.monotonic()

    def recover(self, done: int) -> None:
        """Nothing: what was half done is done again, under the same names."""

    def take(self, segment: Segment) -> Taken:
        problems: list[str] = []
        taken = Taken()
        if len(self._labels) >= _MOST_LABELS:  # not on the way: what came before must not decide on files
            self._labels.clear()
            self._kinds.clear()
        for number, chunk in enumerate(self._chunks(segment, problems)):
            for set_name, kinds in sorted(chunk.sets.items()):
                taken = taken.plus(self._save(segment.number, number, set_name, kinds))
        return taken.plus(left_out(problems))

    def rest(self) -> None:
        now = time.monotonic()
        if self.compact_seconds and now - self._compacted > self.compact_seconds:
            compact_small(self.lake)
            self._compacted = time.monotonic()
        if self.retain_days and now - self._retained > _RETAIN_SECONDS:
            retain(self.home, self.retain_days)
            self._retained = time.monotonic()

    def _chunks(self, segment: Segment, problems: list[str]) -> Iterator[_Chunk]:
        chunk = _Chunk()
        for batch in self._checker.unread(segment, problems):
            for entry in batch.entries:
                chunk.add(batch.cluster, batch.node, self._labels_of(entry), entry)
            if chunk.values >= _CHUNK_VALUES:
                yield chunk
                chunk = _Chunk()
        if chunk.values:
            yield chunk

    def _labels_of(self, entry: Packed) -> _Labels:
        name = id(entry.schema), id(entry.keys)
        found = self._labels.get(name)
        if found is None:
            found = self._labels[name] = _Labels(entry.schema, entry.keys)
            found.kind = self._kinds.setdefault(found.describe(), next(self._numbers))
        return found

    def _save(self, segment: int, number: int, set_name: str, kinds: dict[_Kind, list[_Entry]]) -> Taken:
        dates: dict[int, list[Table]] = {}
        taken = Taken()
        for (_, ticks), entries in kinds.items():
            rows, dropped = _read(sorted(entries, key=_by_node), ticks)
            problems = (f"{set_name}: numbers that make no sense are left out",) if dropped else ()
            taken = taken.plus(Taken(len(rows.times), rows.values.size, dropped, problems))
            for day, of_day in _days(rows):
                dates.setdefault(day, []).append(_table(entries[0].packed.schema, of_day))
        for day, tables in sorted(dates.items()):
            date = time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))
            for part in range(0, len(tables), _MOST_PARTS):
                name = file_name(self.hub, segment, number, part // _MOST_PARTS)
                self.lake.save_tables(set_name, date, name, tables[part : part + _MOST_PARTS], ordered=True)
        return taken


def file_name(hub: str, segment: int, chunk: int = 0, part: int = 0) -> str:
    further = f"~{chunk}-{part}" if chunk or part else ""
    return JobFile(f"{HUB}{hub}{further}", segment, segment).name


def _by_node(entry: _Entry) -> tuple[str, str]:
    return entry.cluster, entry.node


class _Rows(NamedTuple):
    """In columns: of one node together, of one key together, in order of time."""

    times: Numbers
    labels: dict[str, Cells]
    values: Numbers  # [column, row]


def _read(entries: list[_Entry], ticks: int) -> tuple[_Rows, int]:
    """All that is sound, and how many rows are not."""
    import numpy

    times, values, wrong = decode_together([entry.packed for entry in entries], ticks)
    sound = (times.min(axis=1) >= 0) & (times.max(axis=1) < LATEST_NS)
    sound[wrong] = False
    schema = entries[0].packed.schema
    heights = numpy.array([len(entry.labels.keys) for entry in entries])
    repeats = heights * ticks
    labels = {
        name: numpy.repeat(_column(cells), repeats)
        for name, cells in _whose(entries).items()
        if name not in schema.labels
    }
    for part, name in enumerate(schema.labels):
        cells = numpy.concatenate([_cells(entry, part, name) for entry in entries])
        labels[name] = numpy.repeat(cells, ticks)
    by_row = numpy.repeat(times, heights, axis=0).reshape(-1)
    width = len(schema.columns)
    by_column = values.reshape(-1, width, ticks).transpose(1, 0, 2).reshape(width, -1)
    rows = _Rows(by_row, labels, by_column)
    if sound.all():
        return rows, 0
    chosen = numpy.repeat(sound, repeats)
    return _choose(rows, chosen), int(len(chosen) - chosen.sum())


def _cells(entry: _Entry, part: int, name: str) -> Cells:
    """Processes of no job do not say where they are: on the node that tells of them."""
    import numpy

    cells = entry.labels.columns[part]
    if name not in ("cluster", "node") or cells.dtype != object:
        return cells
    return numpy.where(cells == "", entry.node if name == "node" else entry.cluster, cells)


def _whose(entries: list[_Entry]) -> dict[str, list[str]]:
    return {
        "cluster": [entry.cluster for entry in entries],
        "jobid": [""] * len(entries),
        "node": [entry.node for entry in entries],
    }


def _choose(rows: _Rows, chosen: Cells) -> _Rows:
    labels = {name: cells[chosen] for name, cells in rows.labels.items()}
    return _Rows(rows.times[chosen], labels, rows.values[:, chosen])


def _days(rows: _Rows) -> Iterator[tuple[int, _Rows]]:
    import numpy

    days = rows.times // _DAY_NS
    different = numpy.unique(days).tolist()
    for day in different:
        yield day, rows if len(different) == 1 else _choose(rows, days == day)


def _table(schema: Schema, rows: _Rows) -> Table:
    import numpy

    columns: dict[str, Any] = {TIME: rows.times, **rows.labels}
    selected = [f"make_timestamp_ns({TIME}) AS {TIME}", *map(identifier, rows.labels)]
    for number, column in enumerate(schema.columns):
        raw = f"raw {number}"  # names have no blanks in them
        columns[raw] = numpy.ascontiguousarray(rows.values[number])
        selected.append(f"{in_base_units(column, raw, columns[raw])} AS {identifier(stored_name(column))}")
    return Table(", ".join(selected), columns, schema.labels)
