"""The files of an archive: a tar file, compressed or not, or a folder. Nothing is written anywhere.

A tar file is read twice as a stream, unless its files fit into memory: the job's metadata may be the last of
them. Members that `epmt stage` does not write (links, devices, paths that lead out of the archive) make an
archive hostile, and it is refused as a whole.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from joblens.core.errors import MalformedError, sentence
from joblens.importers.epmt import metadata

_ARCHIVE = re.compile(r"[^.].*\.(?:tgz|tar\.gz|tar)", re.DOTALL)
_METADATA = "job_metadata"
_HEADER = re.compile(r"(.+)-papiex-header\.tsv", re.DOTALL)
_DATA = re.compile(r"(.+?)-(?:collated-)?papiex.*\.[ct]sv", re.DOTALL)
_LARGEST_HEADER = 1 << 20
_LARGEST_HEADERS = 64 << 20  # of all hosts
_LARGEST_MEMBER_HEADER = 1 << 16  # a long name or extended attributes, which are read into memory
_KEPT = 8 << 20  # bytes of an archive that are kept in memory instead of being decompressed twice
_PIECE = 1 << 20
_COMPRESSED_PIECE = 1 << 16
_GZIP = 16 + zlib.MAX_WBITS  # as zlib calls the format
_MOST_MEMBERS = 2_000_000
# Archives of EPMT are 5 to 20 times their size. What expands to far more is made to fill memory or time.
_MOST_RATIO, _SMALL = 250, 256 << 20
_LARGEST = 256 << 30  # bytes, decompressed
_DAMAGE = (tarfile.TarError, EOFError, zlib.error)


class DataFile(NamedTuple):
    name: str
    host: str
    file: BinaryIO


class Archive:
    """The files of one job, as they were found."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata = b""
        self.headers: dict[str, bytes] = {}  # by host
        self.kept: dict[str, bytes] | None = {}  # data files by name, if they fit into memory
        self.kept_bytes = self.header_bytes = 0

    def files(self) -> Iterator[DataFile]:
        """Open the data files, one after the other. Raises MalformedError and OSError."""
        if self.kept is not None:
            for name, data in self.kept.items():
                yield DataFile(name, _host(name), io.BytesIO(data))
        elif self.path.is_dir():
            for path in _names(self.path):
                if is_data(path.name):
                    with _open(path) as file:
                        yield DataFile(path.name, _host(path.name), file)
        else:
            with _members(self.path) as members:
                for member, file in members:
                    if is_data(os.path.basename(member.name)):
                        yield DataFile(member.name, _host(member.name), file)


def find_archives(paths: Iterable[Path], skip: Callable[[str], None]) -> Iterator[Path]:
    """Yield archives among these and below folders. Folders that cannot be read go to `skip`."""

    def on_error(error: OSError) -> None:
        skip(f"{sentence(error)}; folder skipped")

    for path in paths:
        if not path.is_dir() or (path / _METADATA).exists():
            yield path
            continue
        for folder, folders, names in os.walk(path, onerror=on_error):
            folders.sort()
            if _METADATA in names:
                yield Path(folder)
            yield from (Path(folder) / name for name in sorted(names) if _ARCHIVE.fullmatch(name))


def open_archive(path: Path) -> Archive:
    """Read what describes the data. Raises MalformedError and OSError."""
    archive = Archive(path)
    if path.is_dir():
        archive.kept = None
        for entry in _names(path):
            if entry.name == _METADATA or _HEADER.fullmatch(entry.name):
                with _open(entry) as file:
                    _take(archive, entry.name, entry.stat().st_size, file)
    else:
        with _members(path) as members:
            for member, file in members:
                _take(archive, member.name, member.size, file)
    if not archive.metadata:
        raise MalformedError(str(path), f"not an archive of EPMT: it has no {_METADATA}")
    return archive


def is_data(name: str) -> bool:
    return _DATA.fullmatch(name) is not None and _HEADER.fullmatch(name) is None


def _host(name: str) -> str:
    match = _DATA.fullmatch(os.path.basename(name))
    return match[1] if match else ""


def _take(archive: Archive, path: str, size: int, file: BinaryIO) -> None:
    name = os.path.basename(path)
    header = _HEADER.fullmatch(name)
    if name == _METADATA:
        if archive.metadata:
            raise MalformedError(str(archive.path), f"{_METADATA} is in it twice")
        archive.metadata = _read(archive.path, name, file, metadata.LARGEST)
    elif header is not None:
        archive.headers[header[1]] = data = _read(archive.path, name, file, _LARGEST_HEADER)
        archive.header_bytes += len(data)
        if archive.header_bytes > _LARGEST_HEADERS:
            raise MalformedError(str(archive.path), "its header files are too large")
    elif is_data(name) and archive.kept is not None:
        if archive.kept_bytes + size > _KEPT or path in archive.kept:
            archive.kept = None
        else:
            archive.kept[path] = data = file.read(_KEPT)
            archive.kept_bytes += len(data)


def _read(path: Path, name: str, file: BinaryIO, most: int) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise MalformedError(str(path), f"{name:.100} is too large")
    return data


def _names(folder: Path) -> list[Path]:
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file: no link to a file elsewhere, and no pipe that would block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if path.is_symlink():
            raise MalformedError(str(path), "a link, which no archive of EPMT has") from None
        raise error
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise MalformedError(str(path), "not a regular file")
        yield file


class _Member(tarfile.TarInfo):
    """A member whose long name or attributes are limited: tarfile reads them into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type not in (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE) and self.size > _LARGEST_MEMBER_HEADER:
            raise tarfile.ReadError("a member has an overlong header")
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return found


class _Decompressed:
    """A compressed file that may not expand without bounds."""

    def __init__(self, path: Path, raw: BinaryIO) -> None:
        self._where, self._raw, self._count = path, raw, 0
        self._data, self._gzip = b"", zlib.decompressobj(_GZIP)

    def read(self, size: int) -> bytes:
        """Return at most as many bytes; none at the end. Raises EOFError, zlib.error and MalformedError."""
        while True:
            self._data = self._data or self._raw.read(_COMPRESSED_PIECE)
            if self._gzip.eof:
                if not self._data:
                    return b""
                self._data = self._data.lstrip(b"\0")
                if not self._data:
                    continue
                self._gzip = zlib.decompressobj(_GZIP)  # another one follows
            elif not self._data:
                raise EOFError("it ends before its checksum")
            found = self._gzip.decompress(self._data, size)
            self._data = self._gzip.unconsumed_tail or self._gzip.unused_data
            if found:
                return self._counted(found)

    def _counted(self, data: bytes) -> bytes:
        self._count += len(data)
        if self._count > _SMALL and self._count > min(_MOST_RATIO * self._raw.tell(), _LARGEST):
            what = f"it expands to more than {_MOST_RATIO} times its size"
            raise MalformedError(str(self._where), f"{what}, and is not read further")
        return data


@contextmanager
def _members(path: Path) -> Iterator[Iterator[tuple[tarfile.TarInfo, BinaryIO]]]:
    """Read regular members as a stream, to the end of the file: so its checksum is verified."""
    with _open_any(path) as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: BinaryIO = _Decompressed(path, raw) if compressed else raw  # type: ignore[assignment]
        try:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=_PIECE, tarinfo=_Member) as archive:
                yield _regular(path, archive)
            while stream.read(_PIECE):
                continue
        except _DAMAGE as error:
            what = "compressed data is damaged or cut off" if compressed else "not a tar file, or cut off"
            raise MalformedError(str(path), f"{what}: {error!s:.100}") from None


@contextmanager
def _open_any(path: Path) -> Iterator[BinaryIO]:
    """An archive itself may be a link that the user has made."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise MalformedError(str(path), "not a regular file")
        yield file


def _regular(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, BinaryIO]]:
    for number, member in enumerate(archive):
        archive.members = []  # type: ignore[attr-defined]  # of a stream they are of no use
        parts = member.name.split("/")
        if member.name.startswith("/") or ".." in parts:
            raise MalformedError(str(path), f"member {member.name!r:.100} leads out of the archive")
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE):
            raise MalformedError(str(path), f"member {member.name!r:.100} is a link or a device, not a file")
        if number >= _MOST_MEMBERS:
            raise MalformedError(str(path), f"it has more than {_MOST_MEMBERS:,} files")
        file = archive.extractfile(member) if member.type != tarfile.DIRTYPE else None
        if file is not None:
            yield member, file  # type: ignore[misc]
