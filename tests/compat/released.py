"""Files that a released version wrote, and what it said about them (README.md)."""

from __future__ import annotations

import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / "store.tar.xz").exists())
STORE = "/home/alice/store"  # when it was recorded


def unpack(version: str, name: str, folder: Path) -> Any:
    """Extract an archive into the folder and return its expected.json."""
    with tarfile.open(HERE / version / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="tar")
    return json.loads((folder / "expected.json").read_bytes())


def move_store(folder: Path) -> None:
    """Replace the recorded path of the store in the session's own files."""
    for path in folder.glob("store/usermode/*/*"):
        if path.suffix in (".json", ".toml"):
            path.write_text(path.read_text().replace(STORE, str(folder / "store")))


def environment_at(then: float) -> dict[str, str]:
    """For commands whose clock is to show this time, with all that they start."""
    return {
        **os.environ,
        "PYTHONPATH": str(HERE / "clock"),
        "JOBLENS_TEST_SHIFT": f"{then - time.time():.3f}",
    }


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Every value that was there and is another now. New fields are none."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = [name for name in expected if name != "written"]
        return [
            it for name in names for it in differences(expected[name], found.get(name), f"{where}.{name}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found))
        return [it for number, (a, b) in pairs for it in differences(a, b, f"{where}[{number}]")]
    return [] if expected == found else [f"{where}: {expected!r}, now {found!r}"]
