from __future__ import annotations

from pathlib import Path

import pytest

from joblens.store.home import Home
from store.made import START, new_home, store_job


@pytest.fixture(scope="session")
def site_home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A store with three jobs, one of which has a task of an array, for tests that only read it."""
    home = new_home(tmp_path_factory.mktemp("site") / "store")
    store_job(home, "4242", source="slurm", nodes=["c1"], name="train", partition="gpu")
    store_job(home, "4243", source="slurm", nodes=["c1"], start=START + 60, array_job="4200", array_task="7")
    store_job(home, "4250", source="slurm", nodes=["c1"], start=START + 120, name="last")
    return home


@pytest.fixture
def own_home(tmp_path: Path) -> Home:
    return new_home(tmp_path / "own")
