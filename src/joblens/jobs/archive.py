"""The archive of a captured job: one ZIP file that contains a manifest and the records of each node.

    manifest.json       `Manifest`: the job, and of each file its node, size and checksum
    records/0.capture   the records of the first of these nodes, as joblens.capture.records describes them
    records/1.capture   those of the second, and so on

It is read without unpacking, and nothing in it names a file to write. A later version may add fields to the
manifest; what an older joblens cannot read has another number of its version.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

from msgspec import Meta, field

from joblens import __version__
from joblens.capture.records import describe_missing
from joblens.core.errors import MalformedError
from joblens.core.files import publish, unfinished_name
from joblens.core.json_file import parse_json, render_json
from joblens.record.fields import Moment, Part, Whole, read
from joblens.schedulers.facts import BatchJob

SUFFIX = ".joblens"
VERSION = 1
_FORMAT = "joblens capture"
_MANIFEST = "manifest.json"
_LARGEST_ARCHIVE = 2 << 30
_LARGEST_FILE = 520 << 20  # the library writes no more than 512 MiB
_LARGEST_MANIFEST = 16 << 20
_LATEST = 2**63 // 10**9  # a time in nanoseconds must fit into 64 bits
_PIECE = 2 << 20
# The end of a ZIP file, where its list of files is; before it, that of a larger kind of file.
_END = struct.Struct("<4s4H2IH")
_LARGE_END = b"PK\6\7"
_LARGE_END_BYTES = 20
_ENCRYPTED = 1
_DATE = (1980, 1, 1, 0, 0, 0)  # of each file, so that the same records are the same archive
_Name = Annotated[str, Meta(min_length=1, max_length=255)]


class NodeRecords(Part, kw_only=True):
    """The records of one node."""

    node: _Name
    bytes: Annotated[int, Meta(ge=0, le=_LARGEST_FILE)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class OwnProcess(Part, kw_only=True):
    """A process of joblens itself, which the library has captured as one of the job."""

    node: _Name
    pid: Whole
    start: Whole  # in clock ticks since boot


class Manifest(Part, kw_only=True):
    """What an archive contains."""

    format: str = _FORMAT
    version: int = VERSION
    joblens: str = __version__
    job: BatchJob
    start: Moment  # of capture
    end: Moment
    tags: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)  # a sentence each
    own: list[OwnProcess] = field(default_factory=list)
    files: list[NodeRecords] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Identify the records: an archive that was staged again has the same."""
        parts = [self.job.cluster, self.job.id, *sorted(f"{it.node} {it.sha256}" for it in self.files)]
        return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()


class Source(NamedTuple):
    """The records of a node that go into an archive."""

    node: str
    path: Path


def write_archive(target: Path, manifest: Manifest, sources: Sequence[Source]) -> Manifest:
    """Write it whole or not at all, readable by the owner only. Return the manifest with the files."""
    unfinished = unfinished_name(str(target))
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, False, 6) as archive:
            problems = list(manifest.problems)
            files = [_add(archive, number, source, problems) for number, source in enumerate(sources)]
            manifest = manifest.replace(files=files, problems=problems)
            archive.writestr(_entry(_MANIFEST), render_json(manifest.to_dict()))
        publish(unfinished, str(target))
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    return manifest


def change_archive(path: Path, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Write an archive again, with another manifest; its mode stays, and so does a link to it.

    Raises MalformedError and OSError.
    """
    path = path.resolve()
    unfinished = unfinished_name(str(path))
    with open_archive(path) as source:
        if source.owner != os.geteuid():
            raise MalformedError(str(path), "only its owner can change it")
        manifest = change(source.manifest)
        mode = stat.S_IMODE(path.stat().st_mode)
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with (
                open(fd, "wb") as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, False, 6) as archive,
            ):
                for number in range(len(manifest.files)):
                    with archive.open(_entry(_member(number)), "w") as target:
                        source.pass_records(number, target.write)
                archive.writestr(_entry(_MANIFEST), render_json(manifest.to_dict()))
            os.chmod(unfinished, mode)
            publish(unfinished, str(path))
        except BaseException:
            Path(unfinished).unlink(missing_ok=True)
            raise
    return manifest


def _add(archive: zipfile.ZipFile, number: int, source: Source, problems: list[str]) -> NodeRecords:
    """Add a file that may still grow: what was there at the beginning."""
    digest, count = hashlib.sha256(), 0
    with source.path.open("rb") as file, archive.open(_entry(_member(number)), "w") as target:
        status = os.fstat(file.fileno())
        problems += describe_missing(f"capture on {source.node}", status.st_mode)
        left = min(status.st_size, _LARGEST_FILE)
        while left and (piece := file.read(min(_PIECE, left))):
            digest.update(piece)
            target.write(piece)
            count, left = count + len(piece), left - len(piece)
    return NodeRecords(node=source.node, bytes=count, sha256=digest.hexdigest())


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | 0o600) << 16
    return entry


def _member(number: int) -> str:
    return f"records/{number}.capture"


class Archive:
    """An archive that is open, its manifest checked."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, owner: int) -> None:
        self.path, self._archive = path, archive
        self.owner = owner  # numeric user id
        self._entries = _list_entries(path, archive)
        self.manifest = self._read_manifest()
        expected = {_MANIFEST, *(_member(number) for number in range(len(self.manifest.files)))}
        if self._entries.keys() != expected:
            differing = sorted(self._entries.keys() ^ expected)
            raise MalformedError(str(path), f"manifest and content differ: {differing[0]!r:.100}")

    def read_records(self, number: int) -> bytes:
        """Return the records of a node. Raises MalformedError if they are not as the manifest says."""
        parts: list[bytes] = []
        self.pass_records(number, parts.append)
        return b"".join(parts)

    def pass_records(self, number: int, take: Callable[[bytes], object]) -> None:
        """Pass them in pieces. Only if this returns they were as the manifest says."""
        described, name = self.manifest.files[number], _member(number)
        digest, count = hashlib.sha256(), 0
        with _refusing(str(self.path), name), self._archive.open(self._entries[name]) as file:
            while count <= described.bytes and (piece := file.read(_PIECE)):
                digest.update(piece)
                take(piece)
                count += len(piece)
        if count != described.bytes or digest.hexdigest() != described.sha256:
            raise MalformedError(str(self.path), f"{name}: checksum mismatch")

    def _read_manifest(self) -> Manifest:
        if _MANIFEST not in self._entries:
            raise MalformedError(str(self.path), "not an archive of joblens: it has no manifest")
        data = self._read(_MANIFEST, _LARGEST_MANIFEST)
        try:
            plain = parse_json(data)
            _check_version(str(self.path), plain)
            manifest = read(plain, Manifest)
        except (ValueError, RecursionError) as error:
            raise MalformedError(str(self.path), f"damaged manifest: {error!s:.200}") from None
        if not manifest.job.id or not manifest.start <= manifest.end < _LATEST:
            why = (
                "the job has no id"
                if not manifest.job.id
                else "the end of capture is no time after its start"
            )
            raise MalformedError(str(self.path), f"damaged manifest: {why}")
        return manifest

    def _read(self, name: str, most: int) -> bytes:
        """Read no more than that, whatever the list of files says about it."""
        entry = self._entries[name]
        if entry.file_size > most:
            raise MalformedError(str(self.path), f"{name} is larger than {most:,} bytes")
        with _refusing(str(self.path), name), self._archive.open(entry) as file:
            return file.read(most + 1)


def _check_version(path: str, plain: Any) -> None:
    if not isinstance(plain, dict) or plain.get("format") != _FORMAT:
        raise MalformedError(path, "not an archive of joblens")
    version = plain.get("version")
    if isinstance(version, int) and version > VERSION:
        raise MalformedError(path, f"version {version} of a newer joblens; update this one")


def _list_entries(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if entry.filename in found:
            raise MalformedError(str(path), f"{entry.filename!r:.100} is in it twice")
        if kind not in (0, stat.S_IFREG):
            raise MalformedError(str(path), f"{entry.filename!r:.100} is not a regular file")
        if entry.flag_bits & _ENCRYPTED:
            raise MalformedError(str(path), f"{entry.filename!r:.100} is encrypted")
        found[entry.filename] = entry
    return found


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Raises MalformedError and OSError, for a pipe or a device in its place too, without blocking."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise MalformedError(str(path), "not a regular file")
        _check_end(str(path), file, status.st_size)
        with _refusing(str(path), "damaged archive"):
            archive = zipfile.ZipFile(file)
        with archive:
            yield Archive(path, archive, status.st_uid)


@contextmanager
def _refusing(path: str, what: str) -> Iterator[None]:
    """Turn what zipfile raises for a damaged file into MalformedError."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place before the beginning of the file
            raise
        raise MalformedError(path, f"{what}: a file in it begins nowhere") from None
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError) as error:
        raise MalformedError(path, f"{what}: {error!s:.200}") from None


def _check_end(path: str, file: BinaryIO, size: int) -> None:
    """Check the size of the list of files before it is read into memory."""
    if size > _LARGEST_ARCHIVE:
        raise MalformedError(path, f"larger than {_LARGEST_ARCHIVE:,} bytes")
    if size < _END.size:
        raise MalformedError(path, "truncated, or not an archive of joblens")
    tail = os.pread(file.fileno(), _END.size + _LARGE_END_BYTES, max(size - _END.size - _LARGE_END_BYTES, 0))
    magic, *_, list_size, _, comment = _END.unpack(tail[-_END.size :])
    if magic != b"PK\5\6" or comment or tail.startswith(_LARGE_END):
        raise MalformedError(path, "truncated, or not an archive of joblens")
    if list_size > _LARGEST_MANIFEST:
        raise MalformedError(path, "its list of files is too long")
