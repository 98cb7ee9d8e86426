"""Snappy's block format, as far as it takes to be read: https://github.com/google/snappy, format_description.

Literals, and copies of what came before, found through a table of where eight bytes were seen last. As in
the reference, the more often nothing is found, the larger the steps: what does not repeat costs little.
"""

from __future__ import annotations

_BLOCK = 1 << 16  # copies do not reach further back, so that their offset has 16 bits
_LONGEST_COPY = 64
_SHORTEST_COPY = 8  # below, a copy saves too little for the time that it takes


def compress(data: bytes) -> bytes:
    out = bytearray(varint(len(data)))
    for begin in range(0, len(data), _BLOCK):
        _compress_block(data[begin : begin + _BLOCK], out)
    return bytes(out)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _compress_block(data: bytes, out: bytearray) -> None:
    seen: dict[bytes, int] = {}
    at = told = 0
    missed = 32
    last = len(data) - _SHORTEST_COPY
    while at <= last:
        word = data[at : at + _SHORTEST_COPY]
        found = seen.get(word)
        seen[word] = at
        if found is None:
            at += missed >> 5
            missed += 1
            continue
        missed = 32
        length = _same(data, found, at)
        _literal(data[told:at], out)
        _copy(at - found, length, out)
        at += length
        told = at
    _literal(data[told:], out)


def _same(data: bytes, earlier: int, later: int) -> int:
    """How many bytes are the same from there on: by halves, as comparing is quick and looping is not."""
    low, high = _SHORTEST_COPY, len(data) - later
    if data[earlier : earlier + high] == data[later:]:
        return high
    step = 16
    while low + step < high and data[earlier : earlier + low + step] == data[later : later + low + step]:
        low, step = low + step, step * 2
    high = min(high, low + step)
    while low < high - 1:
        middle = (low + high) // 2
        if data[earlier + low : earlier + middle] == data[later + low : later + middle]:
            low = middle
        else:
            high = middle
    return low


def _literal(data: bytes, out: bytearray) -> None:
    if not data:
        return
    length = len(data) - 1
    if length < 60:
        out.append(length << 2)
    elif length < 1 << 8:
        out += bytes((60 << 2, length))
    else:
        out.append(61 << 2)
        out += length.to_bytes(2, "little")
    out += data


def _copy(offset: int, length: int, out: bytearray) -> None:
    back = offset.to_bytes(2, "little")
    while length:
        # A copy of less than four bytes is none.
        part = length if length <= _LONGEST_COPY else _LONGEST_COPY if length >= _LONGEST_COPY + 4 else 60
        out.append((part - 1) << 2 | 2)
        out += back
        length -= part
