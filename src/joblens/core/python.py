"""Python processes of ours, started so that nothing is imported from the current folder.

`python -m` and `python -c` search it first, and it may be a folder that other users can write to.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import Iterator, List

_SAFE = "PYTHONSAFEPATH"


def python_command(module: str, *words: str) -> List[str]:
    """Return the command that runs a module with this Python, which is 3.11 or newer."""
    return [sys.executable, "-P", "-m", module, *words]


@contextmanager
def safe_spawning() -> Iterator[None]:
    """For multiprocessing, whose commands cannot be chosen. Workers call `forget_safe_spawning` at first."""
    if _SAFE in os.environ:
        yield
        return
    os.environ[_SAFE] = "1"
    try:
        yield
    finally:
        del os.environ[_SAFE]


def forget_safe_spawning() -> None:
    """Programs that a worker starts get the usual environment."""
    os.environ.pop(_SAFE, None)
