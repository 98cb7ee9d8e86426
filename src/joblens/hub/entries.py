"""An entry of a journal segment: a head with the batch's identity, and the batch.

Head and batch have separate checksums. If the batch is damaged, its identity and the offset of the next entry
are still known; if the head is, the batch has its own header.

Segments of the first versions, whose heads lack the identity, are supported (docs/formats.md).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

from joblens.core.errors import MalformedError
from joblens.wire.frame import MAGIC as BATCH_MAGIC
from joblens.wire.frame import read_header, section_end
from joblens.wire.header import BatchId, parse_header

MAGIC = b"JLE2"
INDEX_MAGIC = b"JLI2"
LARGEST_BATCH = 1 << 26
_LEAST = struct.Struct("<4sIHIIQQ")  # magic, CRC-32 of the rest of the head, then _FIELDS
_FIELDS = struct.Struct("<HIIQQ")  # bytes of names, bytes and CRC-32 of the batch, time received, sequence
_INDEX = struct.Struct("<4sIQ")  # magic, CRC-32 of the rest including the head, offset of the entry
_OFFSET = struct.Struct("<Q")
_OLD = struct.Struct("<IIQ")  # bytes of the batch, CRC-32 of the rest, time received
_CRC_END = 8  # the offset after the CRC in a head
UNIDENTIFIED = BatchId("", "", "", 0)  # in heads without identity


class Head(NamedTuple):
    batch: BatchId  # UNIDENTIFIED in entries of older versions
    received_ns: int
    size: int  # of the head itself
    length: int  # of the batch that follows
    crc: int
    old: bool = False

    @property
    def whole(self) -> int:
        return self.size + self.length


class Indexed(NamedTuple):
    offset: int
    head: Head

    @property
    def end(self) -> int:
        return self.offset + self.head.whole


def pack_head(batch: BatchId, received_ns: int, data: bytes) -> bytes:
    """Return the head of an entry."""
    names = f"{batch.cluster}\0{batch.node}\0{batch.boot}".encode("utf-8", "surrogatepass")
    rest = _FIELDS.pack(len(names), len(data), zlib.crc32(data), received_ns, batch.sequence) + names
    return MAGIC + zlib.crc32(rest).to_bytes(4, "little") + rest


def parse_head(data: bytes, at: int = 0) -> Head | None:
    """Return None without an intact head of this version."""
    if data[at : at + 4] != MAGIC or len(data) - at < _LEAST.size:
        return None
    _, crc, names_length, length, batch_crc, received_ns, sequence = _LEAST.unpack_from(data, at)
    end = at + _LEAST.size + names_length
    if end > len(data) or zlib.crc32(data[at + _CRC_END : end]) != crc:
        return None
    try:
        cluster, node, boot = data[at + _LEAST.size : end].decode("utf-8", "surrogatepass").split("\0")
    except ValueError:
        return None
    return Head(BatchId(cluster, node, boot, sequence), received_ns, end - at, length, batch_crc)


def names_length(data: bytes) -> int:
    """Return the size of a head, by its first bytes."""
    return _LEAST.size + (_LEAST.unpack_from(data)[2] if len(data) >= _LEAST.size else 0)


def read_entry(read: Callable[[int], bytes]) -> tuple[Head, bytes] | None:
    """Read the next entry. Return None at the end. Raises MalformedError."""
    first = read(_OLD.size)
    if not first:
        return None
    if first[:4] == MAGIC:
        first += read(_LEAST.size - _OLD.size)
        if len(first) == _LEAST.size:
            first += read(_LEAST.unpack(first)[2])
        head = parse_head(first)
        if head is None:
            raise MalformedError("journal", "the head of an entry is damaged")
    else:
        head = _parse_old(first)
    data = read(head.length)
    if not _is_sound(head, data):
        raise MalformedError("journal", "an entry is truncated or damaged")
    return head, data


def _parse_old(data: bytes) -> Head:
    if len(data) < _OLD.size:
        raise MalformedError("journal", "an entry is truncated")
    length, crc, received_ns = _OLD.unpack(data)
    if length > LARGEST_BATCH:
        raise MalformedError("journal", "the head of an entry is damaged")
    return Head(UNIDENTIFIED, received_ns, _OLD.size, length, crc, old=True)


def _is_sound(head: Head, data: bytes) -> bool:
    begin = zlib.crc32(_OFFSET.pack(head.received_ns)) if head.old else 0
    return len(data) == head.length and zlib.crc32(data, begin) == head.crc


def find_entry(data: bytes, begin: int, end: int) -> int:
    """Return the offset of the first intact entry that starts in data[begin:end], or `end`."""
    places = [*_find(data, MAGIC, begin, end, 0), *_find(data, BATCH_MAGIC, begin, end, _OLD.size)]
    return next((place for place in sorted(places) if is_entry(data, place)), end)


def _find(data: bytes, magic: bytes, begin: int, end: int, before: int) -> list[int]:
    """Return the offsets at which an entry could start, with the magic `before` bytes later."""
    found = []
    at = data.find(magic, begin + before, end + before + len(magic) - 1)
    while at >= 0:
        found.append(at - before)
        at = data.find(magic, at + 1, end + before + len(magic) - 1)
    return found


def is_entry(data: bytes, at: int) -> Head | None:
    """Return the head of the intact entry at an offset, None if there is none."""
    head = parse_head(data, at)
    if head is None:
        try:
            head = _parse_old(data[at : at + _OLD.size])
        except MalformedError:
            return None
    return head if _is_sound(head, data[at + head.size : at + head.whole]) else None


def pack_index(offset: int, head: bytes) -> bytes:
    """Return a record of a segment's index: the offset of an entry and its head."""
    packed = _OFFSET.pack(offset)
    return INDEX_MAGIC + zlib.crc32(head, zlib.crc32(packed)).to_bytes(4, "little") + packed + head


def parse_index(data: bytes) -> list[Indexed]:
    """Return the intact records, in order."""
    found = []
    at = data.find(INDEX_MAGIC)
    while at >= 0:
        head = parse_head(data, at + _INDEX.size)
        after = at + 1
        if head is not None:
            _, crc, offset = _INDEX.unpack_from(data, at)
            if zlib.crc32(data[at + _CRC_END : at + _INDEX.size + head.size]) == crc:
                found.append(Indexed(offset, head))
                after = at + _INDEX.size + head.size
        at = data.find(INDEX_MAGIC, after)
    return found


def identify(head: Head, data: bytes) -> BatchId:
    """Return the identity of an intact entry. Raises MalformedError."""
    return parse_header(read_header(data)).batch if head.batch == UNIDENTIFIED else head.batch


class Guessed(NamedTuple):
    """A damaged entry, as far as it can be recovered."""

    begin: int
    end: int
    batch: BatchId


def guess_entries(data: bytes, begin: int, end: int) -> list[Guessed]:
    """Find entries in damaged bytes whose head, or whose batch header, is intact."""
    found: list[Guessed] = []
    ends: list[int] = []  # possible ends of the last one
    at = begin
    for place in sorted([*_find(data, MAGIC, begin, end, 0), *_find(data, BATCH_MAGIC, begin, end, 0)]):
        if place < at:
            continue
        head = parse_head(data, place)
        if head is not None and head.batch != UNIDENTIFIED:
            _end_last(found, ends, place)
            ends = [min(place + head.whole, end)]
            found.append(Guessed(place, ends[0], head.batch))
        elif data.startswith(BATCH_MAGIC, place):
            try:
                batch = parse_header(read_header(data[place:end])).batch
            except MalformedError:
                continue
            at = _end_last(found, ends, place - _OLD.size) or begin
            ends = _section_ends(data, place, end)
            found.append(Guessed(max(place - len(pack_head(batch, 0, b"")), at), ends[0], batch))
        else:
            continue
        at = ends[0]
    _end_last(found, ends, end)
    return found


def _end_last(found: list[Guessed], ends: list[int], limit: int) -> int:
    """Extend the last entry up to `limit`. Return its end, 0 if there is none."""
    if not found:
        return 0
    found[-1] = found[-1]._replace(end=max(it for it in ends if it <= max(limit, ends[0])))
    return found[-1].end


def _section_ends(data: bytes, place: int, end: int) -> list[int]:
    """Return the section ends of the batch at an offset, [end] if its sections are damaged."""
    found: list[int] = []
    at = place + len(BATCH_MAGIC)
    while at + 4 <= end and (at := section_end(data, at)) <= end:
        found.append(at)
    return found or [end]
