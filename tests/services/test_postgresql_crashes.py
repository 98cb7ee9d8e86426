"""What is killed at random moments while its records go to PostgreSQL is complete when it is repeated."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from joblens.store.database import VARIABLE
from joblens.store.home import Home, find_home, make_home
from jobs.test_ingest_folder import folder, test_killed_at_random_moments  # noqa: F401
from store.test_crashes import crash, quick_folder  # noqa: F401

from .postgresql import Postgres


@pytest.fixture
def home(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Of `joblens ingest`, with a database that has no tables."""
    monkeypatch.setenv("JOBLENS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(VARIABLE, postgres.create().url)
    return make_home(find_home())


@pytest.mark.parametrize("what", ["import", "retire", "upgrade"])
def test_killed(
    postgres: Postgres,
    quick_folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """Repeated, each job is there once with its processes, or gone; an upgraded database has all of them."""
    monkeypatch.setenv(VARIABLE, postgres.create().url)
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    crash("moments", str(quick_folder), what, str(seed), os.environ.get("JOBLENS_CRASHES", "5"))
