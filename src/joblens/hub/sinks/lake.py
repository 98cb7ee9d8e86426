"""The lake as a sink: a group of segments becomes Parquet files, one per set and day, of all nodes together.

Their names come from the hub and the group alone, so a group that is taken again replaces what is there.
Work is done per node and set or per column, never per value.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.core.model import Schema
from joblens.hub.batch_reader import DAY_NS, Checker, LeftOut, Unread, timely
from joblens.hub.compaction import Compaction
from joblens.hub.decode import Description, Packed, decode_columns_together
from joblens.hub.groups import Group
from joblens.hub.segments import Segment
from joblens.hub.sink import Place, Taken, left_out
from joblens.hub.sinks.file_plan import End, FilePlan
from joblens.store.home import Home, find_home, make_home
from joblens.store.lake.columns import TIME, Table, identifier, in_base_units, storable, stored_name
from joblens.store.lake.folder import HUB, JobFile
from joblens.store.lake.lake import Lake, select_text, text_column
from joblens.store.maintenance import retain

if TYPE_CHECKING:
    import numpy

    from joblens.hub.decode import Numbers

    Cells = numpy.ndarray[Any, Any]

# What waits in memory, and what of one set is decoded at once; more goes into further files.
_PENDING_BYTES = 40 << 20
_SET_BYTES = 24 << 20
_PER_TEXT_BYTE = 5  # bytes in memory for one of a description's JSON
_MOST_KINDS = 50  # of columns in one file
_ENTRY_BYTES, _WORD, _CELL_BYTES = 300, 8, 12
_RETAIN_SECONDS = 3600.0
# Stored last: joblens.store.lake.watermarks takes all that a node sent with these as stored.
_LAST = ("job", "load")
_WHOSE = ("cluster", "jobid", "node")  # columns that every file has
_Kind = tuple[bytes, int]  # layout and ticks: what can be decoded together


class Options(NamedTuple):
    home: str = ""  # of the store; "": as JOBLENS_HOME and the like say
    compact_seconds: float = 600.0  # between two cycles of compaction, at least; 0: never
    retain_days: int = 0  # older samples and records are removed; 0: never


def open_sink(place: Place, options: Options) -> LakeSink:
    from joblens.hub.tail import Source, announce

    home = make_home(find_home(options.home or None))
    announce(home.path, Source(place.hub, place.home.absolute(), place.name, Checker.own_rows_only))
    return LakeSink(place.hub, home, options.compact_seconds, options.retain_days)


def prepare(description: Description) -> None:
    """Convert its keys to columns, and compute the layout that entries in the same columns share. Once."""
    schema, keys = description.schema, description.keys
    columns = [_column(cells) for cells in zip(*keys)]
    kinds = [type(column).__name__ for column in columns]
    described = repr((schema.labels, schema.columns, kinds)).encode()
    description.parts, description.layout = columns, blake2b(described, digest_size=16).digest()
    cells = len(keys) * len(schema.labels)
    description.tick_bytes = description.width * _WORD + cells * _CELL_BYTES


class _Texts(NamedTuple):
    """A column of text: most cells are like others."""

    different: list[str]
    places: Cells  # of each cell among the different ones


def _column(cells: tuple[str | int, ...]) -> Cells | _Texts:
    import numpy

    if all(type(cell) is int for cell in cells):
        return numpy.array(cells, dtype=numpy.int64)
    places = _Places()
    numbers = [places[storable(str(cell))] for cell in cells]
    return _Texts(list(places), numpy.array(numbers, dtype=numpy.int32))


class _Places(dict[str, int]):
    """Texts, each with its place in the order in which they came."""

    def __missing__(self, text: str) -> int:
        self[text] = place = len(self)
        return place


# Plain tuples, as there is one for each section of each batch: time of arrival, cluster and node, which the
# entries of a batch share, and the entry.
_Sender = tuple[int, str, str]
_Entry = tuple[_Sender, Packed]


class _Pending:
    """Entries of one file of a set, grouped by what can be decoded together."""

    def __init__(self) -> None:
        self.kinds: dict[_Kind, list[_Entry]] = {}
        self.bytes = self.decoded = 0  # in memory: as it waits, and its numbers once they are decoded
        self._described: set[Description] = set()

    @property
    def is_full(self) -> bool:
        return self.decoded > _SET_BYTES or len(self.kinds) >= _MOST_KINDS

    def add(self, entry: _Entry) -> int:
        """Return by how many bytes this grows."""
        description, ticks, _, data = entry[1]
        if not description.layout:
            prepare(description)
        kind = description.layout, ticks
        try:
            self.kinds[kind].append(entry)
        except KeyError:
            self.kinds[kind] = [entry]
        size = len(data) + _ENTRY_BYTES
        if description not in self._described:
            self._described.add(description)
            size += description.text_bytes * _PER_TEXT_BYTE
        self.bytes += size
        self.decoded += description.tick_bytes * ticks + description.text_bytes
        return size


class _Waiting:
    """Entries that are not written yet, by set."""

    def __init__(self) -> None:
        self.sets: dict[str, _Pending] = {}
        self.bytes = 0

    def add(self, batch: Unread) -> bool:
        """Return whether something is to be written now."""
        full = False
        sender, sets = (batch.received_ns, batch.cluster, batch.node), self.sets
        for packed in batch.entries:
            name = packed[0].schema[0]
            pending = sets.get(name)
            if pending is None:
                pending = sets[name] = _Pending()
            self.bytes += pending.add((sender, packed))
            full = full or pending.decoded > _SET_BYTES or len(pending.kinds) >= _MOST_KINDS
        return full or self.bytes > _PENDING_BYTES

    def full(self) -> tuple[str, ...]:
        """Return the sets that are to be written now, in order."""
        full = {name for name, pending in self.sets.items() if pending.is_full}
        total = sum(pending.bytes for name, pending in self.sets.items() if name not in full)
        while total > _PENDING_BYTES:
            largest = max(self.sets.keys() - full, key=lambda it: (self.sets[it].bytes, it))
            full.add(largest)
            total -= self.sets[largest].bytes
        return tuple(sorted(self.sets if full & {*_LAST} else full, key=_in_order))

    def pop(self, name: str) -> _Pending:
        pending = self.sets.pop(name)
        self.bytes -= pending.bytes
        return pending


class LakeSink:
    def __init__(self, hub: str, home: Home, compact_seconds: float = 0.0, retain_days: int = 0) -> None:
        self.hub, self.home = hub, home
        self.retain_days = retain_days
        self.lake = Lake(home.lake)
        self.checker = Checker()
        self.compaction = Compaction(home.path, compact_seconds)
        self._retained = time.monotonic()

    def recover(self, done: int) -> None:
        """Nothing: what was half done is done again, under the same names."""

    def take(self, segment: Segment) -> Taken:
        return self.take_group(Group(segment.number, segment.number, [segment]))

    def take_group(self, group: Group) -> Taken:
        left = LeftOut()
        taken = Taken()
        written: Counter[str] = Counter()
        for number, set_name, pending in self._files(group, left):
            taken = taken.plus(self._save(group, number, set_name, pending.kinds, left))
            written[set_name] += 1
        self.compaction.count(written)
        self.compaction.look()
        return taken.plus(left_out(left))

    def rest(self) -> None:
        self.compaction.look()
        if self.retain_days and time.monotonic() - self._retained > _RETAIN_SECONDS:
            retain(self.home, self.retain_days)
            self._retained = time.monotonic()

    def _files(self, group: Group, left: LeftOut) -> Iterator[tuple[int, str, _Pending]]:
        """In bounded memory: of each set its first, second, … file, all that came before `_LAST`."""
        waiting = _Waiting()
        numbers: Counter[str] = Counter()
        plan = FilePlan(self.home.path / "hubs" / f"{self.hub}.files", group)

        def close(names: Iterable[str]) -> Iterator[tuple[int, str, _Pending]]:
            for name in names:
                if name in waiting.sets:
                    yield numbers[name], name, waiting.pop(name)
                numbers[name] += 1

        for segment in group.segments:
            for batch in self.checker.unread(segment, left):
                for end in plan.due(segment.number, batch.place):
                    yield from close(end.sets)
                if waiting.add(batch) and not plan.is_settled:
                    full = waiting.full()
                    plan.add(End(segment.number, batch.place, full))
                    yield from close(full)
        for end in plan.due(group.last + 1, 0):
            yield from close(end.sets)
        yield from close(sorted(waiting.sets, key=_in_order))

    def _save(
        self, group: Group, number: int, set_name: str, kinds: dict[_Kind, list[_Entry]], left: LeftOut
    ) -> Taken:
        dates: dict[int, list[tuple[Schema, _Rows]]] = {}
        texts: defaultdict[str, _Places] = defaultdict(_Places)
        taken = Taken()
        for (_, ticks), entries in kinds.items():
            rows, dropped = _read(sorted(entries, key=_by_node), ticks, texts, left)
            problems = (f"{set_name}: numbers that make no sense are left out",) if dropped else ()
            taken = taken.plus(Taken(len(rows.times), rows.values.size, dropped, problems))
            for day, of_day in _days(rows):
                schema = entries[0][1].description.schema
                dates.setdefault(day, []).append((schema, of_day))
        for day, parts in sorted(dates.items()):
            date = time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))
            name = file_name(self.hub, group, number)
            tables = [_table(schema, found) for schema, found in parts]
            self.lake.save_tables(set_name, date, name, tables, ordered=True, texts=texts)
        return taken


def _in_order(set_name: str) -> tuple[bool, str]:
    return set_name in _LAST, set_name


def file_name(hub: str, group: Group, number: int) -> str:
    further = f"~{number}-0" if number else ""
    return JobFile(f"{HUB}{hub}{further}", group.first, group.last).name


def _by_node(entry: _Entry) -> tuple[str, str]:
    return entry[0][1:]


class _Rows(NamedTuple):
    """In columns: of one node together, of one key together, in order of time."""

    times: Numbers
    labels: dict[str, Cells]  # of text: places, 32 bits wide
    values: Numbers  # [column, row]


def _read(
    entries: list[_Entry], ticks: int, texts: Mapping[str, _Places], left: LeftOut
) -> tuple[_Rows, int]:
    """Return the rows, and the number of malformed ones. Rows far from their arrival go to `left`."""
    import numpy

    packed = [entry[1] for entry in entries]
    times, values, wrong = decode_columns_together(packed, ticks)
    sound = timely(times, [sender[0] for sender, _ in entries])
    sound[wrong] = True  # but for its numbers
    all_near = bool(sound.all())
    descriptions = [it.description for it in packed]
    schema = descriptions[0].schema
    heights = numpy.array([len(it.keys) for it in descriptions])
    repeats = heights * ticks
    labels = {
        name: numpy.repeat(_senders(entries, name, texts[name]), repeats)
        for name in _WHOSE
        if name not in schema.labels
    }
    for part, name in enumerate(schema.labels):
        cells = _cells(descriptions, part, name, texts)
        is_text = cells.dtype == numpy.int32
        if is_text and name in ("cluster", "node") and "" in texts.get(name, ()):
            # A process that belongs to no job does not name its node: it is the sender's.
            own = numpy.repeat(_senders(entries, name, texts[name]), heights)
            cells = numpy.where(cells == texts[name][""], own, cells)
        labels[name] = numpy.repeat(cells, ticks)
    by_row = numpy.repeat(times, heights, axis=0).reshape(-1)
    rows = _Rows(by_row, labels, values)
    if all_near and not wrong:
        return rows, 0
    far = (ticks - sound.sum(axis=1)) * heights
    for place in far.nonzero()[0].tolist():
        left.untimely[_by_node(entries[place])] += int(far[place])
    sound[wrong] = False
    return _choose(rows, numpy.repeat(sound, heights, axis=0).reshape(-1)), int(repeats[wrong].sum())


def _cells(descriptions: list[Description], part: int, name: str, texts: Mapping[str, _Places]) -> Cells:
    """Return one label of the rows of all entries. Most entries have the description of another."""
    import numpy

    known: dict[Description, Cells] = {}
    for description in dict.fromkeys(descriptions):
        column = description.parts[part]
        if isinstance(column, _Texts):
            places = numpy.array([texts[name][text] for text in column.different], dtype=numpy.int32)
            column = places[column.places]
        known[description] = column
    if len(known) == 1:
        return numpy.tile(column, len(descriptions))
    return numpy.concatenate([known[description] for description in descriptions])


def _senders(entries: list[_Entry], name: str, texts: _Places) -> Cells:
    """Return cluster, job or node of each entry, for rows that do not name it."""
    import numpy

    if name == "jobid":
        return numpy.full(len(entries), texts[""], dtype=numpy.int32)
    names = [it[0][2] for it in entries] if name == "node" else [it[0][1] for it in entries]
    known = {cell: texts[storable(cell)] for cell in dict.fromkeys(names)}
    return numpy.array([known[cell] for cell in names], dtype=numpy.int32)


def _choose(rows: _Rows, chosen: Cells) -> _Rows:
    labels = {name: cells[chosen] for name, cells in rows.labels.items()}
    return _Rows(rows.times[chosen], labels, rows.values[:, chosen])


def _days(rows: _Rows) -> Iterator[tuple[int, _Rows]]:
    import numpy

    if not len(rows.times):
        return
    first, last = int(rows.times.min()) // DAY_NS, int(rows.times.max()) // DAY_NS
    if first == last:
        yield first, rows
        return
    days = rows.times // DAY_NS
    for day in numpy.unique(days).tolist():
        yield day, _choose(rows, days == day)


def _table(schema: Schema, rows: _Rows) -> Table:
    import numpy

    columns: dict[str, Any] = {TIME: rows.times.view("datetime64[ns]")}
    selected = [TIME]
    for name, cells in rows.labels.items():
        if cells.dtype == numpy.int32:
            columns[text_column(name)] = cells
            selected.append(f"{select_text(name)} AS {identifier(name)}")
        else:
            columns[name] = cells
            selected.append(identifier(name))
    for number, column in enumerate(schema.columns):
        raw = f"raw {number}"  # names have no blanks in them
        columns[raw] = numpy.ascontiguousarray(rows.values[number])
        selected.append(f"{in_base_units(column, raw, columns[raw])} AS {identifier(stored_name(column))}")
    return Table(", ".join(selected), columns, schema.labels)
