"""The C library of the agent, built from the source that is tested."""

from __future__ import annotations

import shutil
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from joblens.core.compile_c import build_native


def load_native(folder: Path) -> ModuleType:
    """Skips the test where there is no compiler."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    path = str(folder / "_native.abi3.so")
    assert build_native(path) == ""
    spec = spec_from_file_location("_native", path, loader=ExtensionFileLoader("_native", path))
    assert spec is not None
    return module_from_spec(spec)
