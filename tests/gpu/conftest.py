from __future__ import annotations

from pathlib import Path

import pytest

from .standin import Driver, build


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path / "driver")
