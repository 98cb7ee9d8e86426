"""An encoder for Snappy's block format: https://github.com/google/snappy, format_description.

A compressor that scans every byte is too slow in Python. The caller, who knows what repeats, passes the data
in pieces: a repeated piece becomes a copy, all others literals.
"""

from __future__ import annotations

from collections.abc import Iterable

from joblens.wire.varint import varint

_FURTHEST = (1 << 16) - 1  # the largest offset of a copy with a two-byte offset
_LONGEST_COPY = 64
_SHORTEST = 8  # a copy of a shorter piece saves nothing


def compress(pieces: Iterable[bytes]) -> bytes:
    """Encode all pieces as one block."""
    out: list[bytes] = []
    plain: list[bytes] = []  # literals that are not written yet
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
    """Encode a copy as elements of at most 64 bytes each."""
    back = offset.to_bytes(2, "little")
    whole, rest = divmod(size, _LONGEST_COPY)
    found = (bytes(((_LONGEST_COPY - 1) << 2 | 2,)) + back) * whole
    return found + (bytes(((rest - 1) << 2 | 2,)) + back if rest else b"")
