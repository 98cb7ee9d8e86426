"""Snappy's block format, as far as it takes to be read: https://github.com/google/snappy, format_description.

A compressor that looks at every byte is too slow in Python. So whoever knows what repeats gives the data in
pieces: one that was there before becomes a copy, all else literals.
"""

from __future__ import annotations

from collections.abc import Iterable

from joblens.wire.varint import varint

_FURTHEST = (1 << 16) - 1  # that a copy with an offset of two bytes reaches back
_LONGEST_COPY = 64
_SHORTEST = 8  # below, a copy saves nothing


def compress(pieces: Iterable[bytes]) -> bytes:
    """All pieces as one block."""
    out: list[bytes] = []
    plain: list[bytes] = []  # not told yet
    seen: dict[bytes, int] = {}
    length = waiting = 0
    for piece in pieces:
        size = len(piece)
        before = seen.get(piece) if size >= _SHORTEST else None
        if before is not None and length - before <= _FURTHEST:
            if waiting:
                out.append(_literal(waiting))
                out += plain
                plain, waiting = [], 0
            out.append(_copies(length - before, size))
        else:
            plain.append(piece)
            waiting += size
        seen[piece] = length
        length += size
    if waiting:
        out.append(_literal(waiting))
        out += plain
    return b"".join((varint(length), *out))


def _literal(size: int) -> bytes:
    length = size - 1
    if length < 60:
        return bytes((length << 2,))
    width = (length.bit_length() + 7) // 8
    return bytes(((59 + width) << 2,)) + length.to_bytes(width, "little")


def _copies(offset: int, size: int) -> bytes:
    """Of at most 64 bytes each."""
    back = offset.to_bytes(2, "little")
    whole, rest = divmod(size, _LONGEST_COPY)
    found = (bytes(((_LONGEST_COPY - 1) << 2 | 2,)) + back) * whole
    return found + (bytes(((rest - 1) << 2 | 2,)) + back if rest else b"")
