"""A checksum in every Parquet file that joblens writes, over all of its bytes.

DuckDB writes no checksums of pages and checks none, so a flipped bit in a file can change numbers without an
error. The CRC-32 stands in the file's key-value metadata, where other programs take no notice of it. It is
that of the file with zeros in its own place.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path

_NAME, _ZEROS = b"joblens_crc32", b"00000000"
# For DuckDB's COPY: what `add_checksum` fills in.
PLACEHOLDER = f"KV_METADATA {{{_NAME.decode()}: '{_ZEROS.decode()}'}}"
# A value follows its name as a field of type binary and its length: Thrift's compact protocol.
_BEFORE = _NAME + b"\x18" + bytes([len(_ZEROS)])
_END = b"PAR1"
_TAIL = 1 << 16  # bytes that are searched for it: only some bytes per column follow it
_CHUNK = 1 << 20


def add_checksum(path: str) -> None:
    """To a file that was written with the placeholder. Raises OSError."""
    with open(path, "r+b", buffering=0) as file:
        place = _find(file.fileno(), os.fstat(file.fileno()).st_size)
        if place >= 0:
            os.pwrite(file.fileno(), b"%08x" % _sum(file.fileno(), place), place)


def check_file(path: Path) -> str:
    """Why it is damaged, or "" if it is not. Files of an older joblens have no checksum: they pass.

    Raises OSError if it cannot be read now: that says nothing about what is on the disk.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if os.pread(file.fileno(), len(_END), max(size - len(_END), 0)) != _END:
                return "it is cut off"
            place = _find(file.fileno(), size)
            if place < 0:
                return ""
            kept = os.pread(file.fileno(), len(_ZEROS), place)
            return "" if kept == b"%08x" % _sum(file.fileno(), place) else "checksum mismatch"
    except (FileNotFoundError, PermissionError):  # not damaged: gone, or not ours to read
        return ""


def _find(file: int, size: int) -> int:
    """Where the checksum stands; -1 if there is none. By its name alone: a length may be what is damaged."""
    begin = max(size - _TAIL, 0)
    place = os.pread(file, _TAIL, begin).rfind(_BEFORE)
    return begin + place + len(_BEFORE) if place >= 0 else -1


def _sum(file: int, place: int) -> int:
    found = at = 0
    while chunk := os.pread(file, _CHUNK, at):
        first = max(place - at, 0)
        last = min(place + len(_ZEROS) - at, len(chunk))
        if first < last:
            chunk = chunk[:first] + b"0" * (last - first) + chunk[last:]
        found = zlib.crc32(chunk, found)
        at += len(chunk)
    return found
