"""A batch: the samples of some ticks as one message, numbers only once what they mean has been said.

After four bytes of magic, all is deflated: the length of a JSON header (32 bits, little-endian), the
header, then one block per entry of `header["sets"]`. A block is the entry's `times` (64-bit nanoseconds)
followed by its rows; a row is `keys * columns` 64-bit integers. Every time and row after the first is
the difference to the one before, taken as one long little-endian integer: one subtraction for a whole
row, which leaves mostly zero bytes. Bytes of equal weight then stand together, so that zeros run on.
docs/formats.md has the long form.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from typing import Any, Dict, Iterable, Iterator, List, Tuple

from joblens.errors import MalformedError
from joblens.model import Column, Rows, Sample, Schema

MAGIC = b"JLB1"
_WORD = 8
_FULL = 1 << 64
_LARGEST = 1 << 28
# What reading a message that nobody of ours has written can raise.
_WRONG = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
    zlib.error,
)


class Batch:
    """Collects samples; `encode` gives the message and begins a new batch."""

    def __init__(self) -> None:
        # By identity: schema and keys stay the same objects while nothing but values changes.
        self._entries: Dict[Tuple[int, int], Tuple[Rows, List[int], List[bytes]]] = {}

    def add(self, samples: Iterable[Sample]) -> None:
        for time_ns, rows in samples:
            name = (id(rows.schema), id(rows.keys))
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = (rows, [], [])
            entry[1].append(time_ns)
            entry[2].append(_pack(rows.values))

    def encode(self, head: Dict[str, Any]) -> bytes:
        import json

        entries, self._entries = list(self._entries.values()), {}
        sets = [_describe(rows, len(times)) for rows, times, _ in entries]
        header = json.dumps({**head, "sets": sets}, separators=(",", ":")).encode()
        parts = [struct.pack("<I", len(header)), header]
        for _, times, rows in entries:
            parts.append(_shuffle(_differences([_pack([time]) for time in times])))
            parts.append(_shuffle(_differences(rows)))
        return MAGIC + zlib.compress(b"".join(parts), 1)


def _pack(values: List[int]) -> bytes:
    try:
        return array("q", values).tobytes()
    except OverflowError:  # the kernel prints some negative amounts as unsigned
        return array("Q", [value % _FULL for value in values]).tobytes()


def _describe(rows: Rows, count: int) -> Dict[str, Any]:
    schema = rows.schema
    return {
        "set": schema.set,
        "labels": schema.labels,
        "columns": [(c.name, c.kind, c.factor, c.divisor) for c in schema.columns],
        "keys": rows.keys,
        "count": count,
    }


def _differences(rows: List[bytes]) -> bytes:
    size = len(rows[0])
    modulus = 1 << (8 * size)
    before = int.from_bytes(rows[0], "little")
    parts = [rows[0]]
    for row in rows[1:]:
        now = int.from_bytes(row, "little")
        parts.append(((now - before) % modulus).to_bytes(size, "little"))
        before = now
    return b"".join(parts)


def _sums(data: bytes, size: int) -> List[bytes]:
    modulus = 1 << (8 * size)
    total = 0
    rows = []
    for at in range(0, len(data), size):
        total = (total + int.from_bytes(data[at : at + size], "little")) % modulus
        rows.append(total.to_bytes(size, "little"))
    return rows


def _shuffle(data: bytes) -> bytes:
    return b"".join([data[byte::_WORD] for byte in range(_WORD)])


def _unshuffle(data: bytes) -> bytes:
    plain = bytearray(len(data))
    words = len(data) // _WORD
    for byte in range(_WORD):
        plain[byte::_WORD] = data[byte * words : (byte + 1) * words]
    return bytes(plain)


def decode(message: bytes) -> Tuple[Dict[str, Any], List[Sample]]:
    """The header and the samples. Raises MalformedError, whatever the message is."""
    if message[: len(MAGIC)] != MAGIC:
        raise MalformedError("batch", "it does not begin as one")
    try:
        inflater = zlib.decompressobj()
        body = inflater.decompress(message[len(MAGIC) :], _LARGEST)
        if not inflater.eof:
            raise MalformedError("batch", "it is cut off or too large")
        return _decode_body(body)
    except _WRONG as error:
        raise MalformedError("batch", f"{type(error).__name__}: {error}") from None


def _decode_body(body: bytes) -> Tuple[Dict[str, Any], List[Sample]]:
    import json

    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    at = 4 + length
    samples: List[Sample] = []
    for entry in header.pop("sets"):
        schema = Schema(
            entry["set"],
            tuple(entry["labels"]),
            tuple(
                Column(name, kind, "", factor, divisor) for name, kind, factor, divisor in entry["columns"]
            ),
        )
        keys = tuple(tuple(key) for key in entry["keys"])
        count, size = int(entry["count"]), len(keys) * len(schema.columns) * _WORD
        times = _block(body, at, count, _WORD)
        at += count * _WORD
        rows = _block(body, at, count, size)
        at += count * size
        for (time_ns,), values in zip(times, rows):
            samples.append(Sample(time_ns, Rows(schema, keys, values)))
    if at != len(body):
        raise MalformedError("batch", f"{len(body) - at} bytes too many")
    return header, samples


def _block(body: bytes, at: int, count: int, size: int) -> Iterator[List[int]]:
    if count < 1 or at + count * size > len(body):
        raise MalformedError("batch", "a block is cut off")
    if size == 0:
        return iter([[] for _ in range(count)])
    rows = _sums(_unshuffle(body[at : at + count * size]), size)
    return (array("q", row).tolist() for row in rows)
