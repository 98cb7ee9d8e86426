"""Where the store is, and what kind of file system it lies on."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import OutsideError

# File systems of one machine, on which SQLite's locks and shared memory work. Any other may be shared by
# several machines (nfs, lustre, gpfs, beegfs, cephfs, dvs, …) or be a program's (fuse), and is taken so.
_LOCAL = frozenset(
    "bcachefs btrfs exfat ext2 ext3 ext4 f2fs jfs msdos nilfs2 ntfs3 overlay ramfs reiserfs rootfs tmpfs "
    "ubifs vfat xfs zfs".split()
)
_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_LONGEST_NAME = 100


class Home(NamedTuple):
    path: Path
    filesystem: str
    shared: bool

    @property
    def incoming(self) -> Path:
        return self.path / "incoming"

    @property
    def waiting(self) -> Path:
        """Made when the first job waits."""
        return self.path / "waiting"

    @property
    def lake(self) -> Path:
        return self.path / "lake"

    @property
    def records(self) -> Path:
        return self.path / "records"

    @property
    def damaged(self) -> Path:
        return self.path / "damaged"

    @property
    def catalog(self) -> Path:
        """On a shared file system the index is this machine's own, and lies where its locks work."""
        if not self.shared:
            return self.path / "catalog.sqlite"
        name = _digest(os.fsencode(self.path))[:16]
        return local_folder() / f"catalog-{name}.sqlite"

    def describe(self) -> str:
        if not self.shared:
            return (
                f"The store {self.path} is on {self.filesystem}, a file system of this machine; "
                "the catalog lies beside the data."
            )
        return (
            f"The store {self.path} is on {self.filesystem}, which several machines may share. The data lies "
            "there and can be written from all of them at once; nothing relies on its locks. "
            f"The catalog, made from the data, is this machine's own: {_or_why_not(self)}."
        )


def _or_why_not(home: Home) -> str:
    try:
        return str(home.catalog)
    except OutsideError as error:
        return f"it is in memory only, because {error}"


def find_home(chosen: str | os.PathLike[str] | None = None, mounts: str | None = None) -> Home:
    """Return the store at this path, else at JOBLENS_HOME, else in the user's data folder."""
    path = Path(chosen or os.environ.get("JOBLENS_HOME") or _data_folder() / "joblens").absolute()
    try:
        str(path).encode()
        path.exists()  # an automounter mounts it now, if that is what is there
        real = Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise OutsideError(f"the store {str(path)!r} cannot be used: {why}") from None
    kind = filesystem_of(real, _read_mounts() if mounts is None else mounts)
    return Home(path, kind, kind not in _LOCAL)


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
    if given.startswith("/"):
        return Path(given)
    try:
        return Path.home() / ".local" / "share"
    except RuntimeError:  # neither HOME nor the list of users has one
        raise OutsideError("this user has no home folder; say in JOBLENS_HOME where the store is") from None


def local_folder() -> Path:
    """Return a folder on this machine that only this user can write to."""
    import tempfile

    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = runtime.startswith("/") and os.access(runtime, os.W_OK)
    folder = Path(runtime if usable else tempfile.gettempdir()) / f"joblens-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise OutsideError(f"{folder} cannot be made: {error.strerror}") from None
    # A link has the mode 0777, so that one that somebody else has put there is refused too.
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise OutsideError(f"{folder} is not this user's alone, so it is not used")
    return folder


def _read_mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def filesystem_of(path: Path, mounts: str) -> str:
    """The type of the file system that holds the path: the last of the longest mount points wins."""
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


def safe_name(text: str) -> str:
    """A file name for any text, and no two texts have the same.

    Letters, digits, `_` and `-` stay, all else is written as %XX; of a long text the beginning and a digest.
    """
    # Not surrogateescape: it writes some texts as the same bytes.
    data = text.encode("utf-8", "surrogatepass")
    name = "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in data)
    if 0 < len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:60]}%~{_digest(data)[:32]}"


def _digest(data: bytes) -> str:
    import hashlib  # takes a while to load, and few need it

    return hashlib.sha256(data).hexdigest()
