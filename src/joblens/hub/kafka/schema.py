"""Rows as messages, in JSON or in Avro: one message is one row of one set at one time (docs/kafka.md)."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from joblens.core.errors import MalformedError
from joblens.core.model import ABSENT, Column, Key, Number, Schema
from joblens.hub.decode import Columns
from joblens.store.lake.columns import storable, stored_name
from joblens.wire.varint import varint

_LATEST_NS = 9 * 10**18
_WORD = 1 << 63

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Row",
    "namespace": "joblens",
    "fields": [
        {"name": "cluster", "type": "string"},
        {"name": "node", "type": "string"},
        {"name": "set", "type": "string"},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "labels", "type": {"type": "map", "values": ["string", "long"]}},
        {"name": "values", "type": {"type": "map", "values": ["long", "double"]}},
    ],
}
# The same in Avro's canonical form, for its fingerprint.
_CANONICAL = (
    '{"name":"joblens.Row","type":"record","fields":[{"name":"cluster","type":"string"},'
    '{"name":"node","type":"string"},{"name":"set","type":"string"},{"name":"time","type":"long"},'
    '{"name":"labels","type":{"type":"map","values":["string","long"]}},'
    '{"name":"values","type":{"type":"map","values":["long","double"]}}]}'
)


class Row(NamedTuple):
    node: str
    value: bytes


Encode = Callable[[Columns, str, str], Iterator[Row]]


class _Place(NamedTuple):
    """The owner of a row: from its key, or else the sender."""

    cluster: str
    node: str
    labels: list[tuple[str, str | int]]


def json_rows(found: Columns, cluster: str, node: str) -> Iterator[Row]:
    """Yield the rows tick by tick, key by key. Raises MalformedError before the first if they are invalid."""
    places = _places(found, cluster, node)
    heads = [_json_head(place, found.schema.set) for place in places]
    names = [f",{json.dumps(stored_name(column))}:" for column in found.schema.columns]
    texts = [
        [name + repr(value) if value is not None else "" for value in _in_base_units(found, number, column)]
        for number, (name, column) in enumerate(zip(names, found.schema.columns))
    ]
    cells = zip(*texts)
    for time_ns in found.times.tolist():
        at = _seconds(time_ns)
        for place, head, row in zip(places, heads, cells):
            yield Row(place.node, f"{head}{at}{''.join(row)}}}".encode())


def _json_head(place: _Place, set_name: str) -> str:
    named = {"cluster": place.cluster, "node": place.node, "set": storable(set_name)}
    return f'{json.dumps({**named, **dict(place.labels)}, separators=(",", ":"))[:-1]},"time":'


def _seconds(time_ns: int) -> str:
    """Render exactly, beyond the precision of a double."""
    whole, rest = divmod(time_ns, 10**9)
    return f"{whole}.{rest:09d}".rstrip("0").rstrip(".")


def avro_rows(found: Columns, cluster: str, node: str) -> Iterator[Row]:
    """As `json_rows`, without the prefix of each value, see `avro_frame`."""
    places = _places(found, cluster, node)
    set_name = _avro_text(storable(found.schema.set))
    heads = [_avro_text(place.cluster) + _avro_text(place.node) + set_name for place in places]
    labels = [_avro_map(_avro_labels(place.labels)) for place in places]
    names = [_avro_text(stored_name(column)) for column in found.schema.columns]
    parts = [
        [name + _avro_number(value) if value is not None else b"" for value in values]
        for name, values in zip(
            names, (_in_base_units(found, n, column) for n, column in enumerate(found.schema.columns))
        )
    ]
    cells = zip(*parts)
    for time_ns in found.times.tolist():
        at = _avro_long(time_ns // 1000)
        for place, head, label, row in zip(places, heads, labels, cells):
            yield Row(place.node, b"".join((head, at, label, _avro_map([cell for cell in row if cell]))))


def avro_frame(schema_id: int) -> bytes:
    """Return the prefix of a value: Avro's marker and fingerprint, or a schema registry's ID."""
    if schema_id:
        return struct.pack(">bI", 0, schema_id)
    return b"\xc3\x01" + struct.pack("<Q", fingerprint(_CANONICAL.encode()))


def fingerprint(data: bytes) -> int:
    """Return the CRC-64-AVRO of Avro's specification."""
    empty = found = 0xC15D213AA4D7A795
    for byte in data:
        step = (found ^ byte) & 0xFF
        for _ in range(8):
            step = (step >> 1) ^ (empty if step & 1 else 0)
        found = (found >> 8) ^ step
    return found


def _avro_labels(labels: Iterable[tuple[str, str | int]]) -> list[bytes]:
    return [
        _avro_text(name)
        + (_avro_long(0) + _avro_text(part) if isinstance(part, str) else b"\x02" + _avro_long(part))
        for name, part in labels
    ]


def _avro_map(entries: list[bytes]) -> bytes:
    return b"".join((_avro_long(len(entries)), *entries, b"\0")) if entries else b"\0"


def _avro_number(value: Number) -> bytes:
    if isinstance(value, int) and -_WORD <= value < _WORD:
        return b"\0" + _avro_long(value)
    return b"\2" + struct.pack("<d", value)


def _avro_text(text: str) -> bytes:
    data = text.encode()
    return _avro_long(len(data)) + data


def _avro_long(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63))


def _in_base_units(found: Columns, number: int, column: Column) -> list[Number | None]:
    """Return one column of all rows, None where unknown."""
    raw: list[int] = found.values[:, :, number].ravel().tolist()
    if column.factor == column.divisor == 1:
        return [None if value == ABSENT else value for value in raw]
    return [None if value == ABSENT else column.in_base_units(value) for value in raw]


def _places(found: Columns, cluster: str, node: str) -> list[_Place]:
    _check_schema(found.schema)
    times = found.times
    if len(times) and not 0 <= int(times.min()) <= int(times.max()) < _LATEST_NS:
        raise MalformedError(found.schema.set, "a time is out of range")
    return [_place(found.schema, key, cluster, node) for key in found.keys]


def _place(schema: Schema, key: Key, cluster: str, node: str) -> _Place:
    if len(key) != len(schema.labels):
        raise MalformedError(schema.set, "the length of a key differs from the number of labels")
    if not all(type(part) is str or (type(part) is int and -_WORD <= part < _WORD) for part in key):
        raise MalformedError(schema.set, "a part of a key is neither a string nor an integer")
    labels = dict(zip(schema.labels, (storable(part) if isinstance(part, str) else part for part in key)))
    whose = [
        str(labels.pop(name, "") or otherwise) for name, otherwise in (("cluster", cluster), ("node", node))
    ]
    return _Place(whose[0], whose[1], list(labels.items()))


def _check_schema(schema: Schema) -> None:
    columns = [stored_name(column) for column in schema.columns]
    names = [*schema.labels, *columns, "set", "time"]
    if len(set(names)) < len(names) or {"cluster", "node"}.intersection(columns) or not columns:
        raise MalformedError(schema.set, "columns without names, or with duplicate or reserved ones")
    if not all(name and name == storable(name) for name in names):
        raise MalformedError(schema.set, "a column's name is not valid text")
    if not all(0 < column.divisor < _WORD and -_WORD < column.factor < _WORD for column in schema.columns):
        raise MalformedError(schema.set, "a column's factor or divisor is out of range")
