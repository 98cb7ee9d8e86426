"""The frame of a batch: a magic number, then sections, each deflated and prefixed with its length.

The first section is the header in JSON. joblens.wire.batch defines the others.
"""

from __future__ import annotations

import struct
import zlib

from joblens.core.errors import MalformedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

MAGIC = b"JLB1"
VERSION = 1  # of the header
LARGEST = 1 << 28  # bytes of a batch when it is inflated
LARGEST_HEADER = 1 << 20  # accepted by a hub
_LEVEL, _WINDOW, _MEMORY = 1, 13, 5
_LENGTH = struct.Struct("<I")
# What decoding a message of unknown origin can raise.
WRONG = (
    ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, IndexError, MemoryError,
    struct.error, zlib.error,
)  # fmt: skip


def pack(data: bytes) -> bytes:
    """Return a section."""
    # Small tables: initialising the default ones costs more than deflating a batch.
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY)
    packed = deflater.compress(data) + deflater.flush()
    return _LENGTH.pack(len(packed)) + packed


def split(message: bytes) -> List[bytes]:
    """Return the sections, still deflated. Raises MalformedError, ValueError or struct.error."""
    _check_magic(message)
    found: List[bytes] = []
    at, end = len(MAGIC), len(message)
    while at < end:
        after = section_end(message, at)
        found.append(message[at + _LENGTH.size : after])
        at = after
    if at != end:
        raise ValueError("the message is truncated")
    return found


def _check_magic(message: bytes) -> None:
    if message[: len(MAGIC)] != MAGIC:
        raise MalformedError("batch", "bad magic: not a joblens batch")


def section_end(message: bytes, at: int) -> int:
    """Return the end of the section at `at`, by its length prefix."""
    return at + _LENGTH.size + int(_LENGTH.unpack_from(message, at)[0])


def inflate(section: bytes, most: int = LARGEST) -> bytes:
    """Inflate a section. Raises ValueError or zlib.error: each has its own checksum."""
    inflater = zlib.decompressobj()
    plain = inflater.decompress(section, most)
    if not inflater.eof or inflater.unused_data:
        raise ValueError("a section is truncated or too large")
    return plain


def read_header(message: bytes, most: int = LARGEST) -> Dict[str, Any]:
    """Return the header without reading the rest. Raises MalformedError."""
    import json

    _check_magic(message)
    try:
        first = message[len(MAGIC) + _LENGTH.size : section_end(message, len(MAGIC))]
        header = json.loads(inflate(first, most))
        if not isinstance(header, dict):
            raise ValueError("the header is not an object")
    except WRONG as error:
        raise MalformedError("batch", f"{type(error).__name__}: {error}") from None
    return header


def check_sections(message: bytes) -> None:
    """Check that the sections fill the message: one header, two per entry. Raises MalformedError."""
    at, end, count, unpack = len(MAGIC), len(message), 0, _LENGTH.unpack_from
    while at + 4 <= end:  # section_end inlined: this runs for every section of every batch
        at += 4 + unpack(message, at)[0]
        count += 1
    if at != end or count % 2 == 0:
        raise MalformedError("batch", "the section lengths do not add up to its size")


def check_whole(message: bytes) -> None:
    """Verify the checksums of all sections, and that none is missing. Raises MalformedError."""
    updates = read_header(message).get("updates")
    ticks = 0  # of all entries; each section of numbers begins with its own
    try:
        sections = split(message)
        for place, section in enumerate(sections):
            plain = inflate(section)
            ticks += int(_LENGTH.unpack_from(plain)[0]) if place and place % 2 == 0 else 0
    except WRONG:
        raise MalformedError("batch", "checksum mismatch") from None
    if len(sections) % 2 == 0 or updates not in (None, ticks):
        raise MalformedError("batch", "sections are missing")
