"""Samples as Prometheus's remote write wants them: the message WriteRequest of its prompb/remote.proto.

    message WriteRequest { repeated TimeSeries timeseries = 1; }
    message TimeSeries   { repeated Label labels = 1; repeated Sample samples = 2; }
    message Label        { string name = 1; string value = 2; }
    message Sample       { double value = 1; int64 timestamp = 2; }

A sample of our times is always 18 bytes long, so that those of a series are one array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.core.model import ABSENT, Column, Key, Schema
from joblens.hub.cache import ByteCache
from joblens.hub.decode import Columns, Description
from joblens.store.lake.columns import storable
from joblens.wire.exposition import series_name
from joblens.wire.varint import varint

if TYPE_CHECKING:
    import numpy

    from joblens.hub.decode import Numbers

_NAME = re.compile("[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile("[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_SAMPLE_BYTES = 18
# In milliseconds; in this range, from 1971 to 2109, a time has six bytes.
_EARLIEST, _LATEST = 1 << 35, 1 << 42
_NAMED_BYTES = 64 << 20
_SERIES_BYTES = 72  # the tuple of a series' name, and its place in a list


# The labels of a series: the one with its name, those before and behind it. Empty if no server takes it.
Name = tuple[bytes, ...]


class Series(NamedTuple):
    labels: Name
    samples: bytes
    amount: int


class Namer:
    """The labels of series as they are sent: made once for each node and list of keys."""

    def __init__(self) -> None:
        self.known: ByteCache[tuple[str, str, int], tuple[Description, list[list[Name]]]] = ByteCache(
            _NAMED_BYTES
        )

    def labels(self, cluster: str, node: str, description: Description) -> list[list[Name]]:
        """By key and column."""
        name = cluster, node, id(description)
        found = self.known.get(name)
        if found is None:
            found = description, _name_all(cluster, node, description.schema, description.keys)
            texts = sum(map(getsizeof, {text for names in found[1] for name in names for text in name}))
            self.known.put(name, found, description.size + texts + _SERIES_BYTES * description.width)
        return found[1]


def _name_all(cluster: str, node: str, schema: Schema, keys: tuple[Key, ...]) -> list[list[Name]]:
    names = [_series_label(schema, column) for column in schema.columns]
    sound = _is_sound(schema)
    return [
        [(before, of_column, behind) if of_column and sound else () for of_column in names]
        for before, behind in (_labels(cluster, node, schema, key) for key in keys)
    ]


def _is_sound(schema: Schema) -> bool:
    reserved = {"__name__", "instance", "job"}
    return all(_LABEL.fullmatch(name) and name not in reserved for name in schema.labels)


def _series_label(schema: Schema, column: Column) -> bytes:
    name = series_name(schema, column)
    return _label("__name__", name) if _NAME.fullmatch(name) else b""


def _labels(cluster: str, node: str, schema: Schema, key: Key) -> tuple[bytes, bytes]:
    """Return the labels that sort before the name of the series, and those after it.

    They are what Prometheus would store had it scraped the node: `instance` is the sender, `job` is joblens.
    Rows without a node are the sender's.
    """
    given = {name: text for name, text in zip(schema.labels, map(str, key)) if text}
    named = {"cluster": cluster, "node": node, **given, "instance": node, "job": "joblens"}
    found = [(name, _label(name, storable(value))) for name, value in sorted(named.items()) if value]
    before = b"".join(label for name, label in found if name < "__name__")
    return before, b"".join(label for name, label in found if name > "__name__")


def _label(name: str, value: str) -> bytes:
    body = _field(1, name.encode()) + _field(2, value.encode())
    return _field(1, body)


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + varint(len(data)) + data


def encode(series: list[Series]) -> Iterator[bytes]:
    """In pieces, which repeat where it pays to know that."""
    for labels, samples, _ in merge(series):
        yield b"\x0a" + varint(sum(map(len, labels)) + len(samples))
        yield from labels
        yield samples


def merge(series: list[Series]) -> list[Series]:
    """Each only once, in order of time: its rows may have stood beside others for a while."""
    found: dict[Name, list[Series]] = {}
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


def make_series(entry: Columns, labels: list[list[Name]]) -> tuple[list[Series], int]:
    """One per key and column that has any sample; and how many samples cannot be sent."""
    chosen = _choose(entry.times)
    values = entry.values[chosen].transpose(1, 2, 0)  # [key, column, tick]
    left = (len(entry.times) - len(chosen)) * entry.values[0].size
    ticks = len(chosen)
    if not ticks:
        return [], left
    known = (values != ABSENT).reshape(-1, ticks)
    amounts = known.sum(axis=1).tolist()
    frames = _frames(
        entry.times[chosen] // 1_000_000, _in_base_units(entry.schema, values).reshape(-1, ticks)
    )
    data, size = frames.tobytes(), ticks * _SAMPLE_BYTES
    found: list[Series] = []
    for number, name in enumerate(name for names in labels for name in names):
        amount = amounts[number]
        if not name:
            left += amount
        elif amount == ticks:
            found.append(Series(name, data[number * size : (number + 1) * size], amount))
        elif amount:
            found.append(Series(name, frames[number][known[number]].tobytes(), amount))
    return found, left


def _choose(times: Numbers) -> Numbers:
    """In order of time, each millisecond once, and of our times."""
    import numpy

    milliseconds = times // 1_000_000
    order = numpy.argsort(milliseconds, kind="stable")
    ordered = milliseconds[order]
    fine = (ordered >= _EARLIEST) & (ordered < _LATEST)
    fine[1:] &= ordered[1:] != ordered[:-1]
    return order[fine]


def _in_base_units(schema: Schema, values: Numbers) -> numpy.ndarray[Any, Any]:
    import numpy

    factors = numpy.array([float(column.factor) for column in schema.columns]).reshape(1, -1, 1)
    divisors = numpy.array([float(column.divisor) for column in schema.columns]).reshape(1, -1, 1)
    return numpy.ascontiguousarray(values * factors / divisors, dtype="<f8")


def _frames(milliseconds: Numbers, numbers: numpy.ndarray[Any, Any]) -> numpy.ndarray[Any, Any]:
    """By series and tick: field, length, the value's tag, the value, the time's tag, the time."""
    import numpy

    frames = numpy.empty((*numbers.shape, _SAMPLE_BYTES), dtype=numpy.uint8)
    frames[:, :, :3] = (0x12, _SAMPLE_BYTES - 2, 0x09)
    frames[:, :, 3:11] = numbers.view(numpy.uint8).reshape(*numbers.shape, 8)
    frames[:, :, 11] = 0x10
    for byte in range(6):
        more = 0x80 if byte < 5 else 0
        frames[:, :, 12 + byte] = (milliseconds >> (7 * byte)) & 0x7F | more
    return frames
