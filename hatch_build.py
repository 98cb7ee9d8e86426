"""Compile the C parts of joblens when a wheel is built. Without a compiler the wheel has none."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LibraryHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # joblens itself is not installed in the environment that builds it.
        sys.path.insert(0, str(Path(self.root, "src")))
        from joblens.capture.library import LIBRARY, build_library
        from joblens.core.compile_c import NATIVE, build_native

        built = [
            self._build(LIBRARY, build_library(), "joblens run --capture will not be available"),
            self._build(NATIVE, build_native(), "agents, hubs and joblens submit will need more CPU time"),
        ]
        if any(built):
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
            build_data["artifacts"] += [str(Path(path).relative_to(self.root)) for path in built if path]

    def _build(self, path: str, problem: str, effect: str) -> str:
        """Return the path of what was built, "" if it was not."""
        if not problem:
            return path
        self.app.display_warning(f"{effect}: {problem}")
        Path(path).unlink(missing_ok=True)
        return ""
