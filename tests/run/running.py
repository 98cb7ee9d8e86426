"""The real `joblens run`, with a store of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import PATIENCE

LOAD = Path(__file__).with_name("load.py")
JOBLENS = [sys.executable, "-m", "joblens"]


def load(name: str, *words: object) -> list[str]:
    """The command line of one of the jobs in load.py."""
    return [sys.executable, str(LOAD), name, *map(str, words)]


def is_own(process: dict[str, Any]) -> bool:
    """Whether a process in a report is joblens itself."""
    return process["name"].startswith("jl-watch") or "-m joblens" in process["command"]


class Stand:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "store"
        self.environment = {**os.environ, "JOBLENS_HOME": str(self.home)}

    def words(self, command: list[str], *options: str) -> list[str]:
        return [*JOBLENS, "run", *options, "--", *command]

    def run(self, command: list[str], *options: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        """To its end. What it writes is kept."""
        return self.joblens("run", *options, "--", *command, **settings)

    def joblens(self, *words: str, **settings: Any) -> subprocess.CompletedProcess[str]:
        settings = {"env": self.environment, "cwd": self.folder, "timeout": PATIENCE, **settings}
        return subprocess.run([*JOBLENS, *words], capture_output=True, text=True, check=False, **settings)

    def start(self, command: list[str], *options: str, **settings: Any) -> subprocess.Popen[str]:
        """In a group of its own, with its streams in our hands."""
        return subprocess.Popen(
            self.words(command, *options),
            env=self.environment,
            cwd=self.folder,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            **settings,
        )

    def job(self) -> dict[str, Any]:
        """`joblens job last --json`, in which no process may be joblens itself."""
        shown = self.joblens("job", "last", "--json")
        assert shown.returncode == 0, shown.stderr
        found: dict[str, Any] = json.loads(shown.stdout)
        assert [process for process in found["processes"] if is_own(process)] == []
        return found

    def told(self) -> dict[str, float]:
        """What a load has written down about itself, in $TOLD; several of a kind are added up."""
        found: dict[str, float] = {}
        for line in (self.folder / "told").read_text().splitlines():
            name, value = line.split()
            found[name] = found.get(name, 0.0) + float(value)
        return found


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def sampler_of(pid: int) -> int:
    """The process that looks on, by its name; 0 before it has that."""
    return next((it for it in children(pid) if name_of(it).startswith("jl-watch")), 0)


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""
