"""The agent as one file."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from joblens.usermode.pack import pack_agent
from test_structure import AGENT, MODULES, SOURCE, closure

OTHER_PYTHON = "/usr/bin/python3"


def test_all_that_the_agent_loads_is_there() -> None:
    names = zipfile.ZipFile(io.BytesIO(pack_agent())).namelist()
    needed = closure(("joblens.cli.agent",)) & MODULES.keys()
    assert {MODULES[name].relative_to(SOURCE.parent).as_posix() for name in needed} <= set(names)
    assert "joblens.cli.agent" in AGENT


def test_the_same_code_is_the_same_file() -> None:
    assert pack_agent() == pack_agent()


def test_this_python_need_not_compile_it(tmp_path: Path) -> None:
    """The sources are not even looked at; a Python that cannot read what was compiled takes them."""
    whole, without = zipfile.ZipFile(io.BytesIO(pack_agent())), tmp_path / "without"
    with zipfile.ZipFile(without, "w") as archive:
        for name in whole.namelist():
            is_compiled = name + "c" in whole.namelist()
            archive.writestr(name, b"this is not Python" if is_compiled else whole.read(name))
    command = [sys.executable, "-I", "-S", str(without), "agent", "--once"]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", env={})
    assert "\njoblens_memory_mem_total_bytes " in found.stdout
    with zipfile.ZipFile(without, "w") as archive:
        for name in whole.namelist():
            archive.writestr(name, b"no magic" if name.endswith("c") else whole.read(name))
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/", env={})
    assert "\njoblens_memory_mem_total_bytes " in found.stdout


@pytest.mark.parametrize("python", [sys.executable, OTHER_PYTHON])
def test_it_runs_alone(python: str, tmp_path: Path) -> None:
    """With no package but itself, from any folder, and by its name alone."""
    if not Path(python).exists():
        pytest.skip(f"there is no {python}")
    file = tmp_path / "joblens-agent"
    file.write_bytes(pack_agent())
    found = subprocess.run(
        [python, "-I", "-S", str(file), "agent", "--once"],
        capture_output=True, text=True, check=True, cwd="/", env={},
    )  # fmt: skip
    assert "\njoblens_memory_mem_total_bytes " in found.stdout
    assert found.stderr == ""
    file.chmod(0o700)
    version = subprocess.run([str(file), "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("joblens ")
