"""Samples as Prometheus's remote write wants them: the message WriteRequest of its prompb/remote.proto.

    message WriteRequest { repeated TimeSeries timeseries = 1; }
    message TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2; }
    message Label        { string name = 1; string value = 2; }
    message Sample       { double value = 1; int64 timestamp = 2; }

A sample of our times is always 18 bytes long, so that those of a series are one array.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.agent.exposition import series_name
from joblens.hub.decode import Columns
from joblens.hub.sinks.snappy import varint
from joblens.model import ABSENT, Column, Key, Schema
from joblens.store.columns import storable

if TYPE_CHECKING:
    import numpy

    from joblens.hub.decode import Numbers

_NAME = re.compile("[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile("[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_SAMPLE_BYTES = 18
# In milliseconds; in this range, from 1971 to 2109, a time has six bytes.
_EARLIEST, _LATEST = 1 << 35, 1 << 42
_MOST_NAMED = 100_000


class Series(NamedTuple):
    labels: bytes
    samples: bytes
    amount: int


class Namer:
    """The labels of series as they are sent: made once for each node and list of keys."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Schema, tuple[Key, ...], list[list[bytes]]]] = {}

    def labels(self, cluster: str, node: str, schema: Schema, keys: tuple[Key, ...]) -> list[list[bytes]]:
        """By key and column; empty where a name is none that Prometheus takes."""
        name = cluster, node, id(schema), id(keys)
        found = self._known.get(name)
        if found is None:
            if len(self._known) >= _MOST_NAMED:
                self._known.clear()
            names = [_series_label(schema, column) for column in schema.columns]
            sound = _is_sound(schema)
            made = [
                [_sorted(of_column, rest) if of_column and sound else b"" for of_column in names]
                for rest in (_labels(cluster, node, schema, key) for key in keys)
            ]
            found = self._known[name] = schema, keys, made
        return found[2]


def _is_sound(schema: Schema) -> bool:
    reserved = {"__name__", "instance", "job"}
    return all(_LABEL.fullmatch(name) and name not in reserved for name in schema.labels)


def _series_label(schema: Schema, column: Column) -> bytes:
    name = series_name(schema, column)
    return _label("__name__", name) if _NAME.fullmatch(name) else b""


def _labels(cluster: str, node: str, schema: Schema, key: Key) -> list[tuple[str, bytes]]:
    """As Prometheus would have them had it scraped the node: `instance` is who told, `job` is joblens."""
    named = {"cluster": cluster, "node": node, **dict(zip(schema.labels, map(str, key)))}
    named |= {"instance": node, "job": "joblens"}
    return [(name, _label(name, storable(value))) for name, value in sorted(named.items()) if value]


def _sorted(name: bytes, rest: list[tuple[str, bytes]]) -> bytes:
    before = b"".join(label for other, label in rest if other < "__name__")
    return before + name + b"".join(label for other, label in rest if other > "__name__")


def _label(name: str, value: str) -> bytes:
    body = _field(1, name.encode()) + _field(2, value.encode())
    return _field(1, body)


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + varint(len(data)) + data


def encode(series: list[Series]) -> bytes:
    parts: list[bytes] = []
    for labels, samples, _ in merge(series):
        parts += (b"\x0a", varint(len(labels) + len(samples)), labels, samples)
    return b"".join(parts)


def merge(series: list[Series]) -> list[Series]:
    """Each only once, in order of time: its rows may have stood beside others for a while."""
    found: dict[bytes, list[Series]] = {}
    for one in series:
        found.setdefault(one.labels, []).append(one)
    return [some[0] if len(some) == 1 else _merge(some) for some in found.values()]


def _merge(some: list[Series]) -> Series:
    import numpy

    frames = numpy.frombuffer(b"".join(it.samples for it in some), dtype=numpy.uint8)
    frames = frames.reshape(-1, _SAMPLE_BYTES)
    weights = numpy.array([1 << (7 * byte) for byte in range(6)])
    times = (frames[:, 12:] & 0x7F) @ weights
    _, first = numpy.unique(times, return_index=True)
    return Series(some[0].labels, frames[first].tobytes(), len(first))


def make_series(entry: Columns, labels: list[list[bytes]]) -> tuple[list[Series], int]:
    """One per key and column that has any sample; and how many samples cannot be sent."""
    import numpy

    milliseconds = entry.times // 1_000_000
    order = numpy.argsort(milliseconds, kind="stable")
    ordered = milliseconds[order]
    # In order of time, each once, and of our times.
    fine = (ordered >= _EARLIEST) & (ordered < _LATEST)
    fine[1:] &= ordered[1:] != ordered[:-1]
    chosen = order[fine]
    values = entry.values[chosen]
    left = (len(order) - len(chosen)) * entry.values[0].size
    frames = _frames(milliseconds[chosen])
    found: list[Series] = []
    for number, column in enumerate(entry.schema.columns):
        raw = values[:, :, number]
        known = raw != ABSENT
        numbers = _in_base_units(column, raw)
        for row, names in enumerate(labels):
            if not names[number]:
                left += int(known[:, row].sum())
                continue
            some = known[:, row]
            count = int(some.sum())
            if count:
                frames[:, 3:11] = numbers[:, row].reshape(-1, 1).view(numpy.uint8)
                samples = frames if count == len(frames) else frames[some]
                found.append(Series(names[number], samples.tobytes(), count))
    return found, left


def _in_base_units(column: Column, raw: Numbers) -> numpy.ndarray[Any, Any]:
    import numpy

    scaled = raw.astype("<f8")
    if column.factor != 1 or column.divisor != 1:
        scaled = scaled * column.factor / column.divisor
    return numpy.ascontiguousarray(scaled.T).T


def _frames(milliseconds: Numbers) -> numpy.ndarray[Any, Any]:
    """All but the values: field, length, the value's tag, room for it, the time's tag, the time."""
    import numpy

    frames = numpy.empty((len(milliseconds), _SAMPLE_BYTES), dtype=numpy.uint8)
    frames[:, :3] = (0x12, _SAMPLE_BYTES - 2, 0x09)
    frames[:, 11] = 0x10
    for byte in range(6):
        more = 0x80 if byte < 5 else 0
        frames[:, 12 + byte] = (milliseconds >> (7 * byte)) & 0x7F | more
    return frames
