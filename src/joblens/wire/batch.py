"""A batch: the samples of some ticks as one message, encoded as a description and then numbers only.

After the header (joblens.wire.frame) follow two sections per entry, an entry being one schema with one list
of keys: its description in JSON, which is deflated once and then only copied; and the numbers.
docs/formats.md has the layout.
"""

from __future__ import annotations

import struct
import sys
from array import array
from itertools import accumulate

from joblens.core.errors import MalformedError
from joblens.core.json_file import compact_json
from joblens.core.model import Column, Rows, Sample, Schema
from joblens.wire.frame import LARGEST, MAGIC, WRONG, inflate, pack, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Tuple

    from joblens.wire.header import Head

_WORD = 8
_FULL = 1 << 64
_HALF = 1 << 63


class _Entry:
    """The samples of one schema and one list of keys."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.times: List[int] = []
        self.values: List[array[int]] = []


class Batch:
    """Collects samples. `encode` returns the message and begins a new batch."""

    def __init__(self) -> None:
        # By identity: schema and keys stay the same objects while only values change. References to them are
        # kept, so that no other object can get the same id.
        self._entries: Dict[Tuple[int, int], _Entry] = {}
        self._described: Dict[Tuple[int, int], Tuple[Rows, bytes]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, samples: Iterable[Sample]) -> None:
        entries = self._entries
        for time_ns, rows in samples:
            name = (id(rows.schema), id(rows.keys))
            entry = entries.get(name)
            if entry is None:
                entry = entries[name] = _Entry(rows)
            entry.times.append(time_ns)
            entry.values.append(_pack(rows.values))

    def encode(self, head: Head) -> bytes:
        entries, self._entries = self._entries, {}
        before, self._described = self._described, {}
        parts = [MAGIC, pack(compact_json(head))]
        for name, entry in entries.items():
            described = before.get(name) or (entry.rows, pack(_describe(entry.rows)))
            self._described[name] = described
            parts.append(described[1])
            parts.append(pack(_encode_numbers(entry.times, entry.values)))
        return b"".join(parts)


def _pack(values: List[int]) -> array[int]:
    try:
        return array("q", values)
    except OverflowError:  # the kernel prints some negative amounts as unsigned
        return array("q", [(value + _HALF) % _FULL - _HALF for value in values])


def _describe(rows: Rows) -> bytes:
    schema = rows.schema
    described = {
        "set": schema.set,
        "labels": schema.labels,
        "columns": [(c.name, c.kind, c.factor, c.divisor) for c in schema.columns],
        "keys": rows.keys,
    }
    return compact_json(described)


def _encode_numbers(times: List[int], rows: List[array[int]]) -> bytes:
    changed = _changed(rows) if any(row != rows[0] for row in rows) else []
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    first = array("q", [*changed, times[0], *gaps, *rows[0]])
    sizes = struct.pack("<III", len(times), len(rows[0]), len(changed))
    if not changed:
        return sizes + _shuffle(_little(first))
    steps = list(zip(rows, rows[1:]))
    later = array("Q", [(row[place] - before[place]) % _FULL for place in changed for before, row in steps])
    return sizes + _shuffle(_little(first)) + _shuffle(_little(later))


def _changed(rows: List[array[int]]) -> List[int]:
    """Return the positions at which any row differs from the first, comparing whole rows as integers."""
    first = int.from_bytes(rows[0].tobytes(), "little")
    differences = 0
    for row in rows[1:]:
        differences |= int.from_bytes(row.tobytes(), "little") ^ first
    words = array("Q", differences.to_bytes(len(rows[0]) * _WORD, "little"))
    return [place for place, word in enumerate(words) if word]


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _shuffle(data: bytes) -> bytes:
    """Group the bytes of equal significance, which makes long runs of zeros."""
    return b"".join([data[byte::_WORD] for byte in range(_WORD)])


def _unshuffle(data: bytes) -> array[int]:
    if len(data) % _WORD:
        raise ValueError("not whole words")
    plain = bytearray(len(data))
    words = len(data) // _WORD
    for byte in range(_WORD):
        plain[byte::_WORD] = data[byte * words : (byte + 1) * words]
    numbers = array("q", bytes(plain))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def decode(message: bytes) -> Tuple[Dict[str, Any], List[Sample]]:
    """Return the header and the samples. Raises MalformedError for any invalid message."""
    import json

    samples: List[Sample] = []
    try:
        first, *sections = _inflate_all(split(message))
        header = json.loads(first)
        if not isinstance(header, dict) or len(sections) % 2:
            raise ValueError("the header or a section is missing")
        for described, numbers in zip(sections[::2], sections[1::2]):
            samples += _decode_samples(json.loads(described), numbers)
    except WRONG as error:
        raise MalformedError("batch", f"{type(error).__name__}: {error}") from None
    return header, samples


def _inflate_all(sections: List[bytes]) -> List[bytes]:
    found: List[bytes] = []
    room = LARGEST
    for section in sections:
        found.append(inflate(section, room))
        room = max(room - len(found[-1]), 1)
    return found


def _decode_samples(entry: Any, numbers: bytes) -> List[Sample]:
    schema = Schema(
        str(entry["set"]),
        tuple(map(str, entry["labels"])),
        tuple(Column(str(n), str(k), "", int(f), int(d)) for n, k, f, d in entry["columns"]),
    )
    keys = tuple(tuple(key) for key in entry["keys"])
    width = len(keys) * len(schema.columns)
    return [Sample(t, Rows(schema, keys, row)) for t, row in _decode_numbers(numbers, width)]


def _decode_numbers(data: bytes, width: int) -> List[Tuple[int, List[int]]]:
    """Invert _encode_numbers."""
    count, size, moving = struct.unpack_from("<III", data)
    begin, middle = 12, 12 + _WORD * (moving + count + size)
    if size != width or count < 1 or moving > size or len(data) != middle + _WORD * moving * (count - 1):
        raise ValueError("the numbers do not match their description")
    first, later = _unshuffle(data[begin:middle]), _unshuffle(data[middle:])
    times = list(accumulate(first[moving : moving + count]))
    rows = [list(first[moving + count :]) for _ in range(count)]
    for order, place in enumerate(first[:moving]):
        if not 0 <= place < size:
            raise ValueError("a position is outside the row")
        value = rows[0][place]
        for step in range(count - 1):
            value = (value + later[order * (count - 1) + step] + _HALF) % _FULL - _HALF
            rows[step + 1][place] = value
    return list(zip(times, rows))
