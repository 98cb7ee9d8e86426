"""Batches as arrays: a decoder for many batches of joblens.wire.batch at once (docs/formats.md)."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from joblens.core.counter_file import native
from joblens.core.errors import MalformedError
from joblens.core.model import Column, Key, Schema
from joblens.hub.cache import ByteCache
from joblens.wire.frame import LARGEST, MAGIC, WRONG, inflate

if TYPE_CHECKING:
    import numpy

    Numbers = numpy.ndarray[Any, numpy.dtype[numpy.int64]]

_WORD = 8
_LENGTH, _SIZES = struct.Struct("<I"), struct.Struct("<III")
_LENGTH_BYTES, _SIZES_BYTES = _LENGTH.size, _SIZES.size
_LARGEST_DESCRIPTION = 1 << 25
_AT_ONCE = 1 << 16  # numbers that are decoded together
_LARGEST_READ = 1 << 26  # bytes of all decoded rows of a batch; usually some KB
_PLACE = 4  # bytes of a label in a row


class Description:
    """Schema and keys of an entry. Batches that describe them with the same bytes share one object.

    Sinks keep derived data in it, which is freed with it.
    """

    __slots__ = (
        "keys", "layout", "named", "parts", "row_bytes", "schema", "size", "source", "text_bytes",
        "tick_bytes", "width",
    )  # fmt: skip

    def __init__(
        self, schema: Schema, keys: tuple[Key, ...], source: bytes = b"", text_bytes: int = 0
    ) -> None:
        self.schema, self.keys = schema, keys
        self.source, self.text_bytes = source, text_bytes  # as it was sent, and how long it is in JSON
        self.width = len(keys) * len(schema.columns)  # values of one tick
        # Of the rows of one tick: numbers, time and labels in the lake, and text where it is in each row.
        self.row_bytes = self.width * _WORD + len(keys) * (_WORD + len(schema.labels) * _PLACE) + text_bytes
        # Clusters and nodes that the rows name; None until they have been checked.
        self.named: frozenset[tuple[str, str]] | None = None
        self.layout = b""  # equal where rows fit into the same columns; empty until the lake needs it
        self.parts: list[Any] = []  # with it: the keys as NumPy arrays, one per label
        self.tick_bytes = 0  # and the memory of the rows of one tick without text
        texts = chain((schema.set,), schema.labels, chain.from_iterable(schema.columns))
        # The arrays and what refers to an object are counted before they are made: some words each.
        self.size = sum(map(sys.getsizeof, chain((source,), texts, keys, chain.from_iterable(keys))))
        self.size += _WORD * (16 * len(schema.columns) + (len(schema.labels) + 1) * (len(keys) + 1))


class Columns(NamedTuple):
    """The samples of one schema and one list of keys."""

    description: Description
    times: Numbers  # nanoseconds since 1970, one per tick
    values: Numbers  # raw, [tick, key, column]; in memory the ticks of one value are together

    @property
    def schema(self) -> Schema:
        return self.description.schema

    @property
    def keys(self) -> tuple[Key, ...]:
        return self.description.keys


class Packed(NamedTuple):
    """An entry whose numbers are not decoded yet."""

    description: Description
    ticks: int
    moving: int  # values that are not the same at all ticks
    data: bytes


_make = partial(tuple.__new__, Packed)  # from a tuple


def decode_columns(message: bytes) -> list[Columns]:
    """Decode the numbers of a batch. Raises MalformedError for any invalid message."""
    try:
        return _decode(_unpack(message))
    except WRONG as error:
        raise MalformedError("batch", f"{type(error).__name__}: {error}") from None


def unpack(message: bytes) -> list[Packed]:
    """Return the entries of a batch, not decoded. Raises MalformedError for any invalid message."""
    try:
        return _unpack(message)
    except WRONG as error:
        raise MalformedError("batch", f"{type(error).__name__}: {error}") from None


def choose_keys(entry: Packed, places: list[int]) -> Packed:
    """Return an entry with the rows of some keys only. Raises MalformedError."""
    import numpy

    try:
        (found,) = _decode_numbers([entry], entry.ticks)
    except WRONG as error:
        raise MalformedError("batch", f"{type(error).__name__}: {error}") from None
    chosen = choose_rows(found, places)
    rows = chosen.values.reshape(entry.ticks, -1)
    steps = numpy.diff(rows, axis=0)
    moving = numpy.flatnonzero(steps.any(axis=0))
    first = numpy.concatenate((moving, numpy.diff(chosen.times, prepend=0), rows[0]))
    sizes = _SIZES.pack(entry.ticks, rows.shape[1], len(moving))
    data = sizes + _shuffle(first) + _shuffle(steps[:, moving].T)
    return Packed(chosen.description, entry.ticks, len(moving), data)


def choose_rows(entry: Columns, places: list[int]) -> Columns:
    """As `choose_keys`, of a decoded entry."""
    whole = entry.description
    keys = tuple(whole.keys[place] for place in places)
    description = Description(whole.schema, keys, text_bytes=whole.text_bytes)
    return Columns(description, entry.times, entry.values[:, places])


def _decode(entries: list[Packed]) -> list[Columns]:
    places: dict[int, list[int]] = {}
    for place, entry in enumerate(entries):
        places.setdefault(entry.ticks, []).append(place)
    found: dict[int, Columns] = {}
    for ticks, some in places.items():
        found.update(zip(some, _decode_numbers([entries[place] for place in some], ticks)))
    return [found[place] for place in range(len(entries))]


def _split(message: bytes) -> list[bytes]:
    """As joblens.wire.frame.split, inlined: it is done for every section of every batch."""
    if not message.startswith(MAGIC):
        raise ValueError("bad magic: not a joblens batch")
    sections, at, end, length = [], len(MAGIC), len(message), _LENGTH.unpack_from
    while at < end:
        begin = at + _LENGTH_BYTES
        at = begin + length(message, at)[0]
        sections.append(message[begin:at])
    if at != end:
        raise ValueError("truncated")
    if len(sections) % 2 == 0:
        raise ValueError("the header or a section is missing")
    return sections


def _unpack(message: bytes) -> list[Packed]:
    if hasattr(native, "unpack_sections") and message.startswith(MAGIC):
        known = native.unpack_sections(
            message, len(MAGIC), descriptions.get, _describe, _make, LARGEST, _LARGEST_READ
        )
        if known is not None:
            return cast("list[Packed]", known)
    sections = _split(message)
    found, room = [], LARGEST
    size_read = 0  # constant values are in the message only once
    known, sizes, decompressor = descriptions.get, _SIZES.unpack_from, zlib.decompressobj
    for described, packed in zip(sections[1::2], sections[2::2]):
        description = known(described) or _describe(described, room)
        inflater = decompressor()
        plain = inflater.decompress(packed, room)
        if not inflater.eof or inflater.unused_data:
            raise ValueError("a section is truncated or too large")
        length = len(plain)
        room = room - length or 1
        ticks, size, moving = sizes(plain)
        if (
            size != description.width
            or ticks < 1
            or moving > size
            or length != _SIZES_BYTES + _WORD * (moving * ticks + ticks + size)
        ):
            raise ValueError("the numbers do not match their description")
        size_read += description.row_bytes * ticks
        if size_read > _LARGEST_READ:
            raise ValueError("too many numbers, or too much text in its rows")
        found.append(_make((description, ticks, moving, plain)))
    return found


# The same description comes with every batch of a node, and of all nodes that are alike; deflated by the same
# program it is the same bytes.
descriptions: ByteCache[bytes, Description] = ByteCache(32 << 20)


def _describe(packed: bytes, room: int) -> Description:
    text = inflate(packed, max(min(room, _LARGEST_DESCRIPTION), 1))
    entry = json.loads(text)
    columns = tuple([Column(str(n), str(k), "", int(f), int(d)) for n, k, f, d in entry["columns"]])
    schema = Schema(str(entry["set"]), tuple(map(str, entry["labels"])), columns)
    keys = tuple(map(tuple, entry["keys"]))
    if not {str, int}.issuperset(map(type, chain.from_iterable(keys))):
        raise ValueError("a part of a key is neither a string nor an integer")
    found = Description(schema, keys, packed, len(text))
    descriptions.put(packed, found, found.size)
    return found


def _decode_numbers(entries: list[Packed], ticks: int) -> Iterator[Columns]:
    times, values, wrong = decode_together(entries, ticks)
    if wrong:
        raise ValueError("a position is outside the row")
    at = 0
    for number, entry in enumerate(entries):
        description = entry.description
        shape = len(description.keys), len(description.schema.columns), ticks
        own = values[at : at + description.width].reshape(shape)
        yield Columns(description, times[number], own.transpose(2, 0, 1))
        at += description.width


def decode_together(entries: list[Packed], ticks: int) -> tuple[Numbers, Numbers, list[int]]:
    """Decode entries with the same number of ticks: times as [entry, tick], values as [value, tick].

    The values of all entries follow each other, key by key. Also return the positions of malformed entries,
    whose values are undefined. All entries are decoded together: a NumPy call costs far more than a few
    numbers.
    """
    import numpy

    widths = [entry[0].width for entry in entries]
    moving = numpy.array([entry[2] for entry in entries], dtype=numpy.int64)
    sizes = numpy.array(widths, dtype=numpy.int64)
    first, later = _planes(entries, widths, ticks)
    # Each entry has the places of what moves, the times, and the first row.
    lengths = numpy.stack((moving, numpy.full(len(entries), ticks), sizes), axis=1).reshape(-1)
    parts = numpy.repeat(numpy.tile(numpy.arange(3, dtype=numpy.int8), len(entries)), lengths)
    times = first[parts == 1].reshape(-1, ticks).cumsum(axis=1)
    begin = first[parts == 2]
    values = numpy.empty((len(begin), ticks), dtype=numpy.int64)
    values[:] = begin.reshape(-1, 1)
    if ticks == 1 or not len(later):
        return times, values, []
    places, whose = first[parts == 0], numpy.repeat(numpy.arange(len(entries)), moving)
    outside = (places < 0) | (places >= sizes[whose])
    wrong = sorted(set(whose[outside].tolist()))
    places[outside] = 0
    places += (sizes.cumsum() - sizes)[whose]
    # Differences are modulo 2^64, as is adding int64.
    steps = later.reshape(-1, ticks - 1).cumsum(axis=1)
    steps += begin[places].reshape(-1, 1)
    values[places, 1:] = steps
    return times, values, wrong


def decode_columns_together(entries: list[Packed], ticks: int) -> tuple[Numbers, Numbers, list[int]]:
    """As `decode_together`, of entries with the same columns: values as [column, row], the rows of a key
    together. Some at a time, so that what is in between stays in the processor's cache."""
    import numpy

    width = len(entries[0].description.schema.columns)
    if width and hasattr(native, "decode_rows"):
        in_time, in_columns, wrong = native.decode_rows([entry[3] for entry in entries], width, ticks)
        found = numpy.frombuffer(in_columns, dtype=numpy.int64).reshape(width, -1)
        return numpy.frombuffer(in_time, dtype=numpy.int64).reshape(-1, ticks), found, wrong
    times = numpy.empty((len(entries), ticks), dtype=numpy.int64)
    heights = [len(entry[0].keys) for entry in entries]
    keys = sum(heights)
    values = numpy.empty((width, keys, ticks), dtype=numpy.int64)
    wrong = []
    key = 0
    for begin, end in _portions(heights, width * ticks):
        times[begin:end], found, some_wrong = decode_together(entries[begin:end], ticks)
        after = key + sum(heights[begin:end])
        values[:, key:after] = found.reshape(after - key, width, ticks).transpose(1, 0, 2)
        key = after
        wrong += [begin + place for place in some_wrong]
    return times, values.reshape(width, keys * ticks), wrong


def _portions(heights: list[int], per_key: int) -> Iterator[tuple[int, int]]:
    """Yield slices of about _AT_ONCE numbers."""
    begin = numbers = 0
    for place, height in enumerate(heights, 1):
        numbers += height * per_key
        if numbers >= _AT_ONCE:
            yield begin, place
            begin, numbers = place, 0
    if begin < len(heights):
        yield begin, len(heights)


def _planes(entries: list[Packed], widths: list[int], ticks: int) -> tuple[Numbers, Numbers]:
    """The two parts of all entries, each as one array of words.

    Entries in which as many values change have the same layout: these are read together.
    """
    import numpy

    alike: dict[tuple[int, int], list[int]] = {}
    for place, (entry, width) in enumerate(zip(entries, widths)):
        alike.setdefault((entry[2], width), []).append(place)
    first: list[Any] = [None] * len(entries)
    later: list[Any] = [None] * len(entries)
    for (moving, width), places in alike.items():
        data = numpy.frombuffer(b"".join([entries[place][3] for place in places]), dtype=numpy.uint8)
        lengths = moving + ticks + width, moving * (ticks - 1)
        rows = data.reshape(len(places), -1)[:, _SIZES.size :]
        begin = 0
        for words, length in zip((first, later), lengths):
            end = begin + length * _WORD
            for place, own in zip(places, _unshuffle(rows[:, begin:end], length)):
                words[place] = own
            begin = end
    return numpy.concatenate(first), numpy.concatenate(later)


def _shuffle(words: Any) -> bytes:
    import numpy

    planes = numpy.ascontiguousarray(words, dtype="<i8").view(numpy.uint8).reshape(-1, _WORD)
    return bytes(planes.T.tobytes())


def _unshuffle(rows: Any, length: int) -> Numbers:
    """Bytes of equal weight are stored together; return the words, [row, word]."""
    import numpy

    planes = rows.reshape(len(rows), _WORD, length)
    words: Numbers = numpy.ascontiguousarray(planes.transpose(0, 2, 1)).view("<i8")[:, :, 0]
    return words if sys.byteorder == "little" else words.astype(numpy.int64)
