"""Temporary folders in memory. What a killed process has left is removed by the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from joblens.core.files import list_names

_PREFIX = "joblens-tail-"
_IN_MEMORY = "/dev/shm"  # noqa: S108 (a private folder is created in it)
_NEW_SECONDS = 600.0  # in which a folder without a lock is kept: its owner may be about to lock it


@contextmanager
def open_scratch() -> Iterator[Path]:
    """Yield a private folder. It is locked while it is used, whatever happens to its process."""
    parent = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK | os.X_OK) else tempfile.gettempdir()
    remove_leftovers(parent)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=parent) as folder:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # where folders cannot be locked, nothing is removed either
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(folder)
        finally:
            os.close(fd)


def remove_leftovers(parent: str) -> None:
    """Remove the folders of this user that no process uses."""
    for name in list_names(parent):
        if name.startswith(_PREFIX):
            with suppress(OSError):  # in use, of another user, or gone
                _remove_unused(f"{parent}/{name}")


def _remove_unused(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _NEW_SECONDS:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    finally:
        os.close(fd)
