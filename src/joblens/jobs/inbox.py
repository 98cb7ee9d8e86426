"""A folder into which people and programs put archives: which of them are complete, and where they go.

    NAME                 an archive, as it was delivered
    .ingest/work/NAME    one that is being stored; after a crash it is stored again, which changes nothing
    done/NAME            one that is stored, unless stored ones are deleted
    failed/NAME          one that cannot be stored; NAME.reason says why
    .ingest/status.json  what `joblens ingest --status` prints

An archive is moved before it is read. Users who may write to the folder cannot replace it afterwards.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from msgspec import field

from joblens.core.errors import OutsideError, printable, sentence
from joblens.core.files import now_at, sync_folder, write_quickly, write_whole
from joblens.core.json_file import load_json, render_json
from joblens.jobs.archive import SUFFIX
from joblens.record.fields import Part, read

_PRIVATE, _DONE, _FAILED, _REASON = ".ingest", "done", "failed", ".reason"
_OWN = frozenset((_PRIVATE, _DONE, _FAILED))
_EPMT = re.compile(r".+\.(?:tgz|tar\.gz|tar)", re.DOTALL)
_UNFINISHED = (".tmp", ".part", ".partial", "~")
_LONGEST_NAME = 200  # bytes: file systems have 255, and a number and `.reason` may follow
_LARGEST_STATUS = 1 << 20
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_WHOLE_FILE = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock
_SHARED_MODE = 0o755  # owners of archives may look for them


class Arrival(NamedTuple):
    """A file in the folder, as it was last seen."""

    name: str
    size: int
    changed_ns: int
    inode: int

    @property
    def is_epmt(self) -> bool:
        return is_epmt(self.name)


class Seen(NamedTuple):
    """What a scan has found."""

    complete: list[Arrival]  # the oldest first
    unfinished: int  # that are still written, or have just been
    refused: int  # that are archives by their name, and cannot be read
    problems: list[str]  # of entries that were not there at the scan before


class Status(Part):
    """What `joblens ingest --status` shows."""

    folder: str = ""
    pid: int = 0
    started: float = 0.0
    updated: float = 0.0
    state: str = "running"  # stopping, stopped
    stored: int = 0  # since it was started
    known: int = 0  # that were stored before
    failed: int = 0
    retried: int = 0  # that wait for another attempt
    unfinished: int = 0  # that are still written
    waiting_for: str = ""  # why the last attempt failed
    retired: int = 0
    retire_at: float | None = None  # when it is next
    problems: list[str] = field(default_factory=list)  # the last ones


class Inbox:
    """Raises OutsideError where other users could replace its folders."""

    def __init__(self, path: Path, settle: float) -> None:
        self.path, self._settle = path, settle
        self.work, self.done, self.failed = path / _PRIVATE / "work", path / _DONE, path / _FAILED
        self._seen: dict[Arrival, float] = {}  # with the monotonic time since which it has not changed
        self._refused: dict[str, tuple[int, int]] = {}  # inode and time of change, by name
        self._lock = -1

    # Its folders

    def open(self) -> None:
        """Make the folders, and keep other instances out. Raises OutsideError and OSError."""
        _check_shared(self.path)
        for folder, mode in (
            (self.work.parent, 0o700),
            (self.work, 0o700),
            (self.done, _SHARED_MODE),
            (self.failed, _SHARED_MODE),
        ):
            with suppress(FileExistsError):
                folder.mkdir(mode)
            _check_own(folder)
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not _lock(fd):
            os.close(fd)
            raise OutsideError(f"another joblens ingest watches {self.path}")
        self._lock = fd

    @property
    def _lock_path(self) -> Path:
        return self.work.parent / "lock"

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def is_watched(self) -> bool:
        """Whether an instance runs. Raises OSError."""
        try:
            fd = os.open(self._lock_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            return _is_locked(fd)
        finally:
            os.close(fd)

    # Arrivals

    def scan(self) -> Seen:
        """Raises OSError if the folder cannot be read."""
        now, here = time.monotonic(), now_at(str(self.work))
        seen: dict[Arrival, float] = {}
        refused: dict[str, tuple[int, int]] = {}
        problems: list[str] = []
        complete, unfinished = [], 0
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name in _OWN or entry.name.startswith(".") or entry.name.endswith(_UNFINISHED):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:  # it is gone
                    continue
                try:
                    why = self._refuse(entry.name, status)
                    if not why and self._is_written(entry.name):
                        unfinished += 1
                        continue
                except FileNotFoundError:
                    continue
                except OSError as error:
                    why = error.strerror or str(error)
                if why:
                    refused[entry.name] = place = (status.st_ino, status.st_ctime_ns)
                    if self._refused.get(entry.name) != place:
                        problems.append(printable(f"{self.path / entry.name}: {why}; it is left there"))
                    continue
                found = Arrival(entry.name, status.st_size, status.st_mtime_ns, status.st_ino)
                seen[found] = self._seen.get(found, now)
                settled = now - seen[found] >= self._settle
                if settled or self._settle <= here - status.st_mtime:
                    complete.append(found)
                else:
                    unfinished += 1
        self._seen, self._refused = seen, refused
        complete.sort(key=lambda it: (it.changed_ns, it.name))
        return Seen(complete, unfinished, sum(map(_is_archive, refused)), problems)

    def _refuse(self, name: str, status: os.stat_result) -> str:
        """Return why an entry is no archive, "" if it may be one."""
        if stat.S_ISLNK(status.st_mode):
            return "a link, which is not followed"
        if stat.S_ISDIR(status.st_mode):
            return "a folder, which is not searched"
        if not stat.S_ISREG(status.st_mode):
            return "not a regular file"
        if not _is_archive(name):
            return f"not an archive by its name ({SUFFIX}, .tgz, .tar.gz, .tar)"
        return ""

    def _is_written(self, name: str) -> bool:
        """Whether a process of this machine has it open for writing (fcntl(2), leases). Raises OSError."""
        fd = os.open(self.path / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except BlockingIOError:
            return True
        except OSError:  # another user's file, or a file system without leases
            return False
        finally:
            os.close(fd)
        return False

    def claim(self, found: Arrival) -> Path | None:
        """Move an archive to where no other user can rename it. Return None if it is gone, or if one of
        the same name is being stored. Raises OSError."""
        target = self.work / _short(found.name)
        if os.path.lexists(target):
            return None
        try:
            os.rename(self.path / found.name, target)
        except FileNotFoundError:
            return None
        return target

    def claimed(self) -> list[Path]:
        """Return what an instance that was killed was storing."""
        return sorted(self.work / name for name in os.listdir(self.work))

    # Where they go

    def keep(self, path: Path) -> None:
        """After it was stored. Raises OSError."""
        os.rename(path, _free(self.done, path.name))
        sync_folder(str(self.done / "x"))

    def set_aside(self, path: Path, why: str) -> None:
        """With the reason beside it, which is written first. Raises OSError."""
        target = _free(self.failed, path.name)
        reason = Path(f"{target}{_REASON}")
        write_whole(str(reason), f"{printable(why)}\n".encode("utf-8", "replace"))
        with suppress(OSError):  # only root may give it to the owner of the archive
            os.chown(reason, path.lstat().st_uid, -1, follow_symlinks=False)
        os.rename(path, target)
        sync_folder(str(self.failed / "x"))

    # Status

    def save_status(self, status: Status) -> None:
        with suppress(OSError):  # a full disk ends no daemon
            write_quickly(str(self.work.parent / "status.json"), render_json(status.to_dict()))

    def load_status(self) -> Status | None:
        """Return None if there is none. Raises OutsideError."""
        try:
            return read(load_json(str(self.work.parent / "status.json"), _LARGEST_STATUS), Status)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise OutsideError(f"the status of {self.path} cannot be read: {sentence(error)}") from None

    def count(self) -> dict[str, int]:
        """Return how many archives are in each folder."""
        return {
            "arrived": _count(self.path, _is_archive),
            "work": _count(self.work),
            "done": _count(self.done),
            "failed": _count(self.failed, lambda name: not name.endswith(_REASON)),
        }


def is_epmt(name: str) -> bool:
    return _EPMT.fullmatch(name) is not None


def _is_archive(name: str) -> bool:
    return not name.startswith(".") and (name.endswith(SUFFIX) or is_epmt(name))


def _count(folder: Path, is_counted: Callable[[str], bool] = bool) -> int:
    try:
        return sum(map(is_counted, os.listdir(folder)))
    except OSError:
        return 0


def _check_shared(path: Path) -> None:
    """A user who can rename its folders could store anything under any name."""
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise OutsideError(f"{path}: not a folder")
    if status.st_uid not in (0, os.geteuid()):
        raise OutsideError(f"{path} belongs to another user, who could replace what is in it")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise OutsideError(f"{path} can be changed by other users: chmod +t {path}")


def _check_own(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise OutsideError(f"{folder} must be a folder that only this user can write to")


def _lock(fd: int) -> bool:
    """A lock of the open file (fcntl(2)): unlike that of flock(2), it can be seen without taking it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _is_locked(fd: int) -> bool:
    try:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WHOLE_FILE)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    kind: int = struct.unpack_from("h", found)[0]
    return kind != fcntl.F_UNLCK


def _free(folder: Path, name: str) -> Path:
    """Return the first name in a folder that is not taken: 42.joblens, 42.2.joblens and so on."""
    target, number, tail = folder / name, 1, _tail(name)
    while os.path.lexists(target):
        number += 1
        target = folder / f"{name.removesuffix(tail)}.{number}{tail}"
    return target


def _tail(name: str) -> str:
    """Return the end by which the kind of an archive is known."""
    return next((it for it in (SUFFIX, ".tgz", ".tar.gz", ".tar") if name.endswith(it)), "")


def _short(name: str) -> str:
    data = os.fsencode(name)
    if len(data) <= _LONGEST_NAME:
        return name
    from joblens.store.location import digest

    return f"{digest(data)[:32]}{_tail(name)}"
