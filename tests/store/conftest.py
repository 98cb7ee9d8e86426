from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from joblens.store.home import Home
from waiting import PATIENCE

from .made import new_home

Joblens = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return new_home(tmp_path / "store")


def run_joblens(home: Home, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "joblens", *words],
        env={**os.environ, "JOBLENS_HOME": str(home.path), "TZ": "UTC", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.fixture
def joblens(home: Home) -> Joblens:
    """The command, with the store of the test."""
    return partial(run_joblens, home)
