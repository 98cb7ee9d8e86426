"""The location of the store, and the type of its file system."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import OutsideError
from joblens.store.database import Database, find_database
from joblens.store.location import INCOMING, WAITING, digest, locate, make_folders

# Local file systems, on which SQLite's locks and shared memory work. Any other is treated as shared between
# machines (nfs, lustre, gpfs, beegfs, cephfs, dvs, …, and fuse).
_LOCAL = frozenset(
    "bcachefs btrfs exfat ext2 ext3 ext4 f2fs jfs msdos nilfs2 ntfs3 overlay ramfs reiserfs rootfs tmpfs "
    "ubifs vfat xfs zfs".split()
)


class Home(NamedTuple):
    path: Path
    filesystem: str
    shared: bool
    index_file: Path | None = None  # the catalog, where it is not at its usual place
    database: Database | None = None  # that has the records, where they are not files

    @property
    def incoming(self) -> Path:
        return self.path / INCOMING

    @property
    def waiting(self) -> Path:
        """Jobs with a record whose samples are not in the lake yet."""
        return self.path / WAITING

    @property
    def lake(self) -> Path:
        return self.path / "lake"

    @property
    def records(self) -> Path:
        return self.path / "records"

    @property
    def undelivered(self) -> Path:
        """Records that wait for the database, as files."""
        return self.path / "undelivered"

    @property
    def damaged(self) -> Path:
        return self.path / "damaged"

    @property
    def catalog(self) -> Path:
        """The index. On a shared file system each machine has its own, on a local file system."""
        if self.index_file is not None:
            return self.index_file
        if not self.shared:
            return self.path / "catalog.sqlite"
        name = digest(os.fsencode(self.path))[:16]
        return local_folder() / f"catalog-{name}.sqlite"

    def describe(self) -> str:
        if self.database is not None:
            return f"The store {self.path} has the samples; the job records are in {self.database}."
        if not self.shared:
            return (
                f"The store {self.path} is on {self.filesystem}, a local file system. "
                "The catalog is beside the data."
            )
        return (
            f"The store {self.path} is on {self.filesystem}, which several machines may share. "
            "All of them can write to it at the same time; nothing relies on its locks. "
            f"Each machine has its own catalog, built from the data: {_catalog_path(self)}."
        )


def _catalog_path(home: Home) -> str:
    try:
        return str(home.catalog)
    except OutsideError as error:
        return f"in memory only, because {error}"


def find_home(chosen: str | os.PathLike[str] | None = None, mounts: str | None = None) -> Home:
    """Return the home at a path, by default JOBLENS_HOME or the user's data folder, and its database.

    Raises OutsideError and ConfigError.
    """
    path = Path(locate(chosen))
    try:
        path.exists()  # triggers an automounter
        real = Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OutsideError(f"cannot use the store {str(path)!r}: {why}") from None
    kind = filesystem_of(real, _read_mounts() if mounts is None else mounts)
    return Home(path, kind, kind not in _LOCAL, None, find_database(os.environ))


def make_home(home: Home) -> Home:
    """Create its folders, readable by the owner only."""
    make_folders(str(home.path))
    return home


def local_folder() -> Path:
    """Return a local folder that only this user can write to."""
    import tempfile

    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = runtime.startswith("/") and os.access(runtime, os.W_OK)
    folder = Path(runtime if usable else tempfile.gettempdir()) / f"joblens-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise OutsideError(f"cannot create {folder}: {error.strerror}") from None
    # A symbolic link has mode 0777, so one that another user created is rejected too.
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise OutsideError(f"{folder} is accessible to other users, and is not used")
    return folder


def _read_mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def filesystem_of(path: Path, mounts: str) -> str:
    """Return the file system type of the longest mount point above the path; of equal ones the last."""
    best, kind = -1, "unknown"
    for line in mounts.split("\n"):
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        # proc_mounts(5): space, tab, newline and backslash are written in octal.
        point = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[1]))
        if (point == path or point in path.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), fields[2]
    return kind
