"""Where the store is, and what kind of file system it lies on."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

from joblens.errors import OutsideError

# File systems on which SQLite's locks or shared memory cannot be relied on, because several machines
# share them or a program stands in for the kernel.
_SHARED = re.compile(
    r"(nfs|cifs|smb|lustre|gpfs|beegfs|ceph|glusterfs|afs|9p|fuse|pvfs|orangefs|panfs|wekafs)"
)
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


class Home(NamedTuple):
    path: Path
    filesystem: str
    shared: bool

    @property
    def incoming(self) -> Path:
        return self.path / "incoming"

    @property
    def lake(self) -> Path:
        return self.path / "lake"

    @property
    def records(self) -> Path:
        return self.path / "records"

    @property
    def catalog(self) -> Path:
        """On a shared file system the index is this machine's own, and lies where its locks work."""
        if not self.shared:
            return self.path / "catalog.sqlite"
        name = hashlib.sha256(str(self.path).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        return local_folder() / f"catalog-{name}.sqlite"

    def describe(self) -> str:
        if not self.shared:
            return f"{self.path} is on {self.filesystem}: the catalog lies beside the data"
        return (
            f"{self.path} is on {self.filesystem}, which several machines may share: the data lies there, "
            f"and the catalog, made from it, is this machine's own in {self.catalog}"
        )


def find_home(chosen: str | os.PathLike[str] | None = None) -> Home:
    path = Path(chosen or os.environ.get("JOBLENS_HOME") or _data_folder() / "joblens").absolute()
    if set(str(path)) & set("*?[]{}"):
        raise OutsideError(f"the store {path} cannot be used: DuckDB takes *?[]{{}} in a path as a pattern")
    kind = filesystem_of(path, _read_mounts())
    return Home(path, kind, bool(_SHARED.match(kind)))


def make_home(home: Home) -> Home:
    """With its folders, readable by its owner only."""
    try:
        home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (home.incoming, home.lake, home.records):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise OutsideError(f"the store {home.path} cannot be made") from error
    return home


def _data_folder() -> Path:
    given = os.environ.get("XDG_DATA_HOME", "")
    return Path(given) if given.startswith("/") else Path.home() / ".local" / "share"


def local_folder() -> Path:
    """A folder of this user's on this machine, which nobody else can write to."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = (
        Path(runtime)
        if runtime.startswith("/") and os.access(runtime, os.W_OK)
        else Path(tempfile.gettempdir())
    )
    folder = parent / f"joblens-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise OutsideError(f"{folder} is not this user's alone; it is not used")
    return folder


def _read_mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def filesystem_of(path: Path, mounts: str) -> str:
    """The type of the file system that holds the path: the last of the longest mount points wins."""
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1]))
        if (point == path or point in path.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind


def safe_name(text: str) -> str:
    """A file name for any text: letters, digits, `_` and `-` stay, all else is written as %XX."""
    name = "".join(
        chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape")
    )
    if len(name) <= 100 and name:
        return name
    return f"{name[:60]}%~{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}"
