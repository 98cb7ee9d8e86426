"""Python processes of ours import nothing from the current folder."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from joblens.core.python import forget_safe_spawning, python_command, safe_spawning

SOURCE = Path(__file__).parents[2] / "src" / "joblens"


def test_a_module_of_the_current_folder_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "joblens").mkdir()
    (tmp_path / "joblens" / "__main__.py").write_text("print('evil')")
    (tmp_path / "joblens" / "__init__.py").write_text("print('evil')")
    command = python_command("joblens", "--version")
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "evil" not in result.stdout


def variable() -> str | None:
    return os.environ.get("PYTHONSAFEPATH")


def test_workers_start_others_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is only there while a worker starts."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with safe_spawning():
        assert variable() == "1"
        pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=forget_safe_spawning)
        found = pool.submit(variable)
    with pool:
        assert found.result() is None
    assert variable() is None


def test_all_are_started_so() -> None:
    """No other module makes such a command itself."""
    found = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for text in [path.read_text()]
        if 'sys.executable, "-m"' in text or "{sys.executable} -m" in text or 'get_context("spawn")' in text
        if "safe_spawning()" not in text
    ]
    assert found == []
