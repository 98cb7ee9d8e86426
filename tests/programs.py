"""Programs that tests need. One that tests/services/install could have installed must be there."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def need(*programs: str) -> str:
    """The path of the first. Skips the test if one is missing, and fails it where root and apt are there."""
    if absent := [name for name in programs if shutil.which(name, path=_PATH) is None]:
        fail_or_skip(f"{', '.join(absent)}: not installed; tests/services/install does it where it can")
    return str(shutil.which(programs[0], path=_PATH))


def fail_or_skip(why: str) -> NoReturn:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)
