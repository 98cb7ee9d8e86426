"""Compile the preloaded library of capture when a wheel is built. Without a compiler the wheel has none."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_CAPTURE = Path("src", "joblens", "capture")


class CaptureHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = _load(Path(self.root, _CAPTURE, "library.py"))
        problem = library.build_library()
        if problem:
            self.app.display_warning(f"joblens run --capture will not be available: {problem}")
            Path(library.LIBRARY).unlink(missing_ok=True)
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(str(Path(library.LIBRARY).relative_to(self.root)))


def _load(path: Path) -> Any:
    """By path: joblens itself is not installed in the environment that builds it."""
    spec = importlib.util.spec_from_file_location("capture_library", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
