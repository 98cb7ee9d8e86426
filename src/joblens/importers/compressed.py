"""Files to import, plain or packed. A packed file whose checksum is wrong is refused as a whole.

A flipped bit in packed data can change numbers long before the checksum at its end tells, so that nothing of
such a file can be trusted. Of a plain file, all lines that are sound are taken.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from joblens.core.errors import MalformedError

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_STDIN = Path("-")
_STREAMS = (Path("/dev/stdin"), Path("/dev/fd"))  # a shell's `<(command)` is a pipe below the second
_PIECE = 1 << 20
_OPEN: Mapping[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_ZSTD = b"\x28\xb5\x2f\xfd"


class Opened(NamedTuple):
    file: BinaryIO
    raw: BinaryIO  # the same, or what it is unpacked from: how far it has been read is this one's `tell()`


@contextmanager
def open_packed(path: Path) -> Iterator[Opened]:
    """By what it begins with, not by its name. Raises MalformedError, and OSError."""
    with _open(path) as raw:
        unpack = _unpacker(path, raw)
        if unpack is None:
            yield Opened(raw, raw)
            return
        with unpack(raw) as file:
            _check(path, file, raw)
        raw.seek(0)
        with unpack(raw) as file:
            yield Opened(file, raw)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    if path == _STDIN:
        yield sys.stdin.buffer
        return
    is_stream = path in _STREAMS or path.parent in _STREAMS
    # Not blocking: a pipe that nobody writes to would keep us waiting for ever.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if is_stream else os.O_NONBLOCK | os.O_NOCTTY))
    if not is_stream and not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise MalformedError(str(path), "it is not a regular file")
    with open(file, "rb") as raw:
        yield raw


def _unpacker(path: Path, raw: BinaryIO) -> Callable[..., Any] | None:
    if not raw.seekable():
        return None
    begin = raw.read(6)
    raw.seek(0)
    if begin.startswith(_ZSTD):
        raise MalformedError(str(path), "it is packed with zstd; unpack it first (zstd -d)")
    found = next((unpack for magic, unpack in _OPEN.items() if begin.startswith(magic)), None)
    if found is None and begin and path.suffix in SUFFIXES:
        raise MalformedError(str(path), f"it is not packed as its name says ({path.suffix})")
    return found


def _check(path: Path, file: BinaryIO, raw: BinaryIO) -> None:
    try:
        while file.read(_PIECE):
            continue
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk, not what is on it
            raise
        raise MalformedError(str(path), f"packed data is damaged near byte {raw.tell()}: {error}") from None


def size_of(paths: Iterable[Path]) -> int:
    """For a progress bar: what cannot be asked counts as nothing."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += path.stat().st_size
    return size
