"""One process at a time stores a job from an archive, and its files are not compacted meanwhile."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from joblens.store.home import Home
from joblens.store.location import safe_name


@contextmanager
def in_progress(home: Home, job: str) -> Iterator[None]:
    """Hold the job's folder in `incoming`. Another process that stores the same job waits."""
    folder = home.incoming / safe_name(job)
    fd = _hold(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()
        os.close(fd)


def _hold(folder: Path) -> int:
    """Create, open and lock it, once more if who held it has removed it meanwhile."""
    while True:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        with suppress(OSError):  # a file system without locks: the same files are written twice
            fcntl.flock(fd, fcntl.LOCK_EX)
        with suppress(OSError):
            if os.path.samestat(os.fstat(fd), os.stat(folder)):
                return fd
        os.close(fd)
