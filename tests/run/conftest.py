from __future__ import annotations

from pathlib import Path

import pytest

from .running import Stand


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)
