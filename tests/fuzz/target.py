"""What a fuzz target is: a parser of outside data, inputs to begin with, and the errors that it may raise."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

Seeds = Callable[[], list[bytes]]


class Target(NamedTuple):
    name: str
    run: Callable[[bytes], None]
    seeds: Seeds
    # Beside joblens.core.errors.JoblensError: what the parser documents, and what its only caller catches.
    raises: tuple[type[Exception], ...] = ()


@cache
def scratch() -> Path:
    """A folder in memory, for parsers that read files. One per process."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="joblens-fuzz-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


def fresh(name: str) -> Path:
    """An empty folder."""
    folder = scratch() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
