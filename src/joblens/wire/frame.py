"""The frame of a batch: magic, then sections, each with its length in front and deflated on its own.

The first is the sender's header in JSON. What the others are is joblens.wire.batch's.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Dict, List

from joblens.core.errors import MalformedError

MAGIC = b"JLB1"
LARGEST = 1 << 28  # bytes of a batch when it is inflated
LARGEST_HEADER = 1 << 20  # that a hub takes
_LEVEL, _WINDOW, _MEMORY = 1, 13, 5
_LENGTH = struct.Struct("<I")
# What a message that nobody of ours has written can lead to.
WRONG = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, IndexError, MemoryError,
    struct.error, zlib.error,
)  # fmt: skip


def pack(data: bytes) -> bytes:
    """A section."""
    # Small tables: making the usual ones ready costs more than deflating a batch.
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY)
    packed = deflater.compress(data) + deflater.flush()
    return _LENGTH.pack(len(packed)) + packed


def split(message: bytes) -> List[bytes]:
    """The sections as they came, deflated. Raises MalformedError, ValueError or struct.error."""
    _check_magic(message)
    found: List[bytes] = []
    at, end = len(MAGIC), len(message)
    while at < end:
        after = section_end(message, at)
        found.append(message[at + _LENGTH.size : after])
        at = after
    if at != end:
        raise ValueError("it is cut off")
    return found


def _check_magic(message: bytes) -> None:
    if message[: len(MAGIC)] != MAGIC:
        raise MalformedError("batch", "it does not begin as one")


def section_end(message: bytes, at: int) -> int:
    """Where the section that begins there ends, as it says itself."""
    return at + _LENGTH.size + int(_LENGTH.unpack_from(message, at)[0])


def inflate(section: bytes, most: int = LARGEST) -> bytes:
    """Raises ValueError or zlib.error: every section has a checksum of its own."""
    inflater = zlib.decompressobj()
    plain = inflater.decompress(section, most)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("a section is cut off or too large")
    return plain


def read_header(message: bytes, most: int = LARGEST) -> Dict[str, Any]:
    """Without the rest. Raises MalformedError."""
    import json

    _check_magic(message)
    try:
        first = message[len(MAGIC) + _LENGTH.size : section_end(message, len(MAGIC))]
        header = json.loads(inflate(first, most))
        if not isinstance(header, dict):
            raise ValueError("its header is no object")
    except WRONG as error:
        raise MalformedError("batch", f"{type(error).__name__}: {error}") from None
    return header


def check_sections(message: bytes) -> None:
    """That they fill the message: one for the header, two for each entry. Raises MalformedError."""
    at, end, count, unpack = len(MAGIC), len(message), 0, _LENGTH.unpack_from
    while at + 4 <= end:  # as section_end, for every section of every batch
        at += 4 + unpack(message, at)[0]
        count += 1
    if at != end or count % 2 == 0:
        raise MalformedError("batch", "its sections do not fill it")


def check_whole(message: bytes) -> None:
    """That everything in it is as it was written. Raises MalformedError."""
    try:
        sections = split(message)
        if not sections:
            raise ValueError("it has no header")
        for section in sections:
            inflate(section)
    except WRONG:
        raise MalformedError("batch", "it is not as it was written") from None
