"""Input files of importers, plain or compressed, and the result of an import.

A compressed file with a wrong checksum is skipped as a whole: a flipped bit can change numbers long before
the checksum at its end. Of a plain file, all valid lines are imported.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from joblens.core.errors import MalformedError, sentence

Progress = Callable[[int, int], None]
Report = Callable[[int, str], None]  # a line number, and what is wrong with the line

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_STDIN = Path("-")
_STREAMS = (Path("/dev/stdin"), Path("/dev/fd"))  # a shell's `<(command)` is a pipe below the second
_PIECE = 1 << 20
_MOST_REPORTED = 10  # bad lines of one file
_OPEN: Mapping[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
_ZSTD = b"\x28\xb5\x2f\xfd"


@dataclass
class ImportResult:
    files: int = 0
    unusable: int = 0  # files that were skipped, whole or from some line on
    bad: int = 0  # lines
    waiting: int = 0  # records that are kept as files until the database takes them
    problems: list[str] = field(default_factory=list)

    def skip(self, why: str) -> None:
        """Count a file, or a folder."""
        self.unusable += 1
        self.problems.append(why)

    def wait(self, why: str, records: int = 1) -> None:
        """Count records that have to wait for the database, if there is a reason. It is said once."""
        if why:
            self.problems += [] if self.waiting else [why]
            self.waiting += records

    def skip_file(self, path: Path, error: Exception, part: str) -> None:
        words = sentence(error) if str(path) in str(error) else f"{path}: {sentence(error)}"
        self.skip(f"{words}; {part} skipped")


class LineErrors:
    """The bad lines of one file: the first are reported, the others counted."""

    def __init__(self, path: Path, result: ImportResult) -> None:
        self.path, self.result, self.count = path, result, 0

    def report(self, number: int, what: str) -> None:
        self.count += 1
        self.result.bad += 1
        if self.count <= _MOST_REPORTED:
            self.result.problems.append(f"{self.path}:{number}: {what}")

    def finish(self) -> None:
        if self.count > _MOST_REPORTED:
            self.result.problems.append(f"{self.path}: {self.count - _MOST_REPORTED} more bad lines")


class ReadProgress:
    """Progress in MiB of the total size of the files."""

    def __init__(self, paths: Iterable[Path], progress: Progress | None) -> None:
        self._progress, self._total, self._done = progress, 0, 0
        for path in paths:
            with suppress(OSError):
                self._total += path.stat().st_size

    def add(self, count: int) -> None:
        self._done += count
        if self._progress:
            self._progress(min(self._done, self._total) >> 20, (self._total >> 20) + 1)

    def finish(self) -> None:
        if self._progress:
            self._progress((self._total >> 20) + 1, (self._total >> 20) + 1)


class Opened(NamedTuple):
    file: BinaryIO
    raw: BinaryIO  # the same, or the compressed file: its position is the progress


@contextmanager
def open_input(path: Path) -> Iterator[Opened]:
    """Detect compression by magic number, not by name. Raises MalformedError and OSError."""
    with _open(path) as raw:
        decompress = _decompressor(path, raw)
        if decompress is None:
            yield Opened(raw, raw)
            return
        with decompress(raw) as file:
            _check(path, file, raw)
        raw.seek(0)
        with decompress(raw) as file:
            yield Opened(file, raw)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    if path == _STDIN:
        yield sys.stdin.buffer
        return
    is_stream = path in _STREAMS or path.parent in _STREAMS
    # Non-blocking: opening a named pipe without a writer would block.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if is_stream else os.O_NONBLOCK | os.O_NOCTTY))
    if not is_stream and not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise MalformedError(str(path), "not a regular file")
    with open(file, "rb") as raw:
        yield raw


def _decompressor(path: Path, raw: BinaryIO) -> Callable[..., Any] | None:
    if not raw.seekable():
        return None
    begin = raw.read(6)
    raw.seek(0)
    if begin.startswith(_ZSTD):
        raise MalformedError(str(path), "zstd is not supported; decompress it first (zstd -d)")
    found = next((decompress for magic, decompress in _OPEN.items() if begin.startswith(magic)), None)
    if found is None and begin and path.suffix in SUFFIXES:
        raise MalformedError(str(path), f"not compressed as its name says ({path.suffix})")
    return found


def _check(path: Path, file: BinaryIO, raw: BinaryIO) -> None:
    try:
        while file.read(_PIECE):
            continue
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk failed
            raise
        raise MalformedError(
            str(path), f"compressed data is damaged near byte {raw.tell()}: {error}"
        ) from None
