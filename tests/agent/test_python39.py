"""The agent on a node whose Python is as old as it may be."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
CONFIG = """
cluster = 'lab' # by the reader for Pythons without tomllib
[collectors.load]
enabled = false
"""


def find_python39() -> str | None:
    found = [shutil.which("python3.9"), *Path.home().glob(".pyenv/versions/3.9*/bin/python3")]
    return next((str(path) for path in found if path and is_python39(str(path))), None)


def is_python39(path: str) -> bool:
    """A name on PATH can be a wrapper that has none to offer."""
    code = "import sys; sys.exit(sys.version_info[:2] != (3, 9))"
    return subprocess.run([path, "-c", code], capture_output=True, check=False).returncode == 0


def run_joblens(python: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SRC), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-m", "joblens", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def run_once(python: str, config: Path) -> str:
    ended = run_joblens(python, "agent", "--once", "--config", str(config))
    said = [line for line in ended.stderr.splitlines() if "not on this machine" not in line]
    assert (said, ended.returncode) == ([], 0)
    return ended.stdout


@pytest.fixture(scope="module")
def old() -> str:
    found = find_python39()
    if found is None:
        pytest.skip("there is no Python 3.9 on PATH or in ~/.pyenv/versions")
    return found


@pytest.mark.parametrize("command", ["run", "top", "usermode"])
def test_commands_that_need_more(old: str, command: str) -> None:
    """One sentence says which Python is needed."""
    ended = run_joblens(old, command)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"joblens: joblens {command} needs Python 3.11 or newer, not 3.9\n"


def test_the_same_page(old: str, tmp_path: Path) -> None:
    """Python 3.9 finds the same families, of the same types, as the Python of the tests."""
    config = tmp_path / "joblens.toml"
    config.write_text(CONFIG)
    # Without those of jobs: another one may come or go between the two.
    types = re.compile(r"^# TYPE joblens_(?!job_|step_).*", re.MULTILINE)
    pages = [types.findall(run_once(it, config)) for it in (old, sys.executable)]
    assert pages[0] == pages[1]
    assert "# TYPE joblens_memory_mem_total_bytes gauge" in pages[0]
    assert not [line for line in pages[0] if "joblens_load" in line]


@pytest.mark.parametrize(
    "command", ["agent", "slurm", "config", "mark", "fom", "prometheus-config", "record"]
)
def test_commands_without_packages(command: str) -> None:
    """Nodes that run joblens from a folder have the standard library only; -S leaves out site-packages."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    words = [sys.executable, "-S", "-m", "joblens", command, "--help"]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_slurm_check_without_packages() -> None:
    """It imports what it needs only when it is called."""
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    words = [sys.executable, "-S", "-m", "joblens", "slurm", "check"]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert "hub" in ended.stdout
