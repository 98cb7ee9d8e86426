"""Locks between the processes of one user. Who can open a file, if only to read it, can lock it: flock(2)."""

from __future__ import annotations

import fcntl
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

SUFFIX = ".lock"


def open_lock(path: Union[str, os.PathLike[str]]) -> int:
    """Open a lock file that only the owner of its folder can open, and create it. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        status, owner = os.fstat(fd), os.stat(os.path.dirname(os.path.abspath(path))).st_uid
        if status.st_mode & 0o077:
            os.fchmod(fd, 0o600)
        if os.geteuid() == 0 and status.st_uid != owner:  # root works in the store of a user
            os.fchown(fd, owner, -1)
    except OSError:
        os.close(fd)
        raise
    return fd


def take_lock(fd: int) -> bool:
    """Return False if another process has it. Where the file system has no locks, each process gets it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def note_progress(fd: int) -> None:
    """Write down who has the lock. Raises OSError."""
    os.pwrite(fd, f"{os.getpid():<10}\n".encode(), 0)


def describe_holder(fd: int, timeout: float) -> str:
    """Return the process that holds the lock, if it has made no progress for `timeout` seconds; else ""."""
    seconds = time.time() - os.fstat(fd).st_mtime
    if seconds < timeout:
        return ""
    return f"process {os.pread(fd, 10, 0).decode('ascii', 'replace').strip()} has had it for {seconds:.0f} s"
