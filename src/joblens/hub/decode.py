"""Batches as arrays: what joblens.agent.batch writes, read by the thousand (docs/formats.md)."""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.agent.batch import MAGIC
from joblens.errors import MalformedError
from joblens.model import Column, Key, Schema

if TYPE_CHECKING:
    import numpy

    Numbers = numpy.ndarray[Any, numpy.dtype[numpy.int64]]

_WORD = 8
_LARGEST = 1 << 28  # bytes of a batch when it is inflated
_LARGEST_HEADER = 1 << 20
_WRONG = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, IndexError, MemoryError,
    struct.error, zlib.error,
)  # fmt: skip


class Columns(NamedTuple):
    """The samples of one schema and one list of keys."""

    schema: Schema
    keys: tuple[Key, ...]
    times: Numbers  # nanoseconds since 1970, one per tick
    values: Numbers  # raw, [tick, key, column]


def read_header(message: bytes) -> dict[str, Any]:
    """Of a batch, without its numbers. Raises MalformedError."""
    try:
        if message[: len(MAGIC)] != MAGIC:
            raise ValueError("it does not begin as one")
        (length,) = struct.unpack_from("<I", message, len(MAGIC))
        start = len(MAGIC) + 4
        header = json.loads(_inflate(message[start : start + length], _LARGEST_HEADER))
        if not isinstance(header, dict):
            raise ValueError("its header is no object")
        return header
    except _WRONG as error:
        raise MalformedError("batch", f"{type(error).__name__}: {error}") from None


def decode_columns(message: bytes) -> tuple[dict[str, Any], list[Columns]]:
    """The header and the numbers. Raises MalformedError, whatever the message is."""
    try:
        return _decode(message)
    except _WRONG as error:
        raise MalformedError("batch", f"{type(error).__name__}: {error}") from None


def _decode(message: bytes) -> tuple[dict[str, Any], list[Columns]]:
    sections = _sections(message)
    header = json.loads(sections[0])
    if not isinstance(header, dict) or len(sections) % 2 == 0:
        raise ValueError("the header or a section is missing")
    found = []
    for described, numbers in zip(sections[1::2], sections[2::2]):
        schema, keys = _describe(described)
        times, values = _decode_numbers(numbers, len(keys) * len(schema.columns))
        found.append(Columns(schema, keys, times, values.reshape(len(times), len(keys), len(schema.columns))))
    return header, found


# The same description comes with every batch of a node, and of all nodes that are alike.
_known: dict[bytes, tuple[Schema, tuple[Key, ...]]] = {}
_MOST_KNOWN = 20_000


def _describe(data: bytes) -> tuple[Schema, tuple[Key, ...]]:
    found = _known.get(data)
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        entry = json.loads(data)
        columns = tuple(Column(str(n), str(k), "", int(f), int(d)) for n, k, f, d in entry["columns"])
        schema = Schema(str(entry["set"]), tuple(map(str, entry["labels"])), columns)
        found = _known[data] = schema, tuple(tuple(key) for key in entry["keys"])
    return found


def _sections(message: bytes) -> list[bytes]:
    if message[: len(MAGIC)] != MAGIC:
        raise ValueError("it does not begin as one")
    found: list[bytes] = []
    at, room = len(MAGIC), _LARGEST
    while at < len(message):
        (length,) = struct.unpack_from("<I", message, at)
        found.append(_inflate(message[at + 4 : at + 4 + length], room))
        room = max(room - len(found[-1]), 1)
        at += 4 + length
    return found


def _inflate(data: bytes, most: int) -> bytes:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(data, most)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("a section is cut off or too large")
    return plain


def _decode_numbers(data: bytes, width: int) -> tuple[Numbers, Numbers]:
    import numpy

    count, size, moving = struct.unpack_from("<III", data)
    begin, middle = 12, 12 + _WORD * (moving + count + size)
    if size != width or count < 1 or moving > size or len(data) != middle + _WORD * moving * (count - 1):
        raise ValueError("the numbers do not fit what they are said to be")
    first, later = _unshuffle(data[begin:middle]), _unshuffle(data[middle:])
    places = first[:moving]
    if moving and (int(places.min()) < 0 or int(places.max()) >= size):
        raise ValueError("a place outside the row")
    times = numpy.cumsum(first[moving : moving + count])
    values = numpy.repeat(first[moving + count :].reshape(1, size), count, axis=0)
    if moving and count > 1:
        # Differences are modulo 2^64, as is adding int64.
        values[1:, places] += numpy.cumsum(later.reshape(moving, count - 1), axis=1).T
    return times, values


def _unshuffle(data: bytes) -> Numbers:
    """Bytes of equal weight stand together; here each word's own do again."""
    import numpy

    if len(data) % _WORD:
        raise ValueError("not whole words")
    planes = numpy.frombuffer(data, dtype=numpy.uint8).reshape(_WORD, -1)
    words: Numbers = numpy.ascontiguousarray(planes.T).view("<i8").reshape(-1).astype(numpy.int64, copy=False)
    return words
