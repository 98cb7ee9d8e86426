"""Sinks as their own processes, as the hub starts them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joblens.hub.cursors import load_cursor
from joblens.hub.sink import Place, SinkStatus, check_options, load_status
from waiting import PATIENCE, wait_for


def wait_for_state(place: Place, state: str = "", segment: int = -1, pid: int = -1) -> SinkStatus:
    """The first status of a sink that has all of this."""

    def find() -> SinkStatus | None:
        it = load_status(place)
        fits = state in ("", it.state) and segment in (-1, it.cursor.segment) and pid in (-1, it.pid)
        return it if fits else None

    found = wait_for(f"{place.name} with {state} {segment} {pid}", find)
    assert found is not None
    return found


class Process:
    def __init__(
        self, home: Path, name: str, table: Mapping[str, Any], said: Path, collect_seconds: float = 0.0
    ) -> None:
        self.place = Place(name, home, "h1")
        kind, options = check_options(name, table)
        self._told: dict[str, Any] = {
            "name": name,
            "home": str(home),
            "hub": "h1",
            "type": kind,
            "options": options,
            "collect_seconds": collect_seconds,
        }
        self._said = said
        self.start()

    def start(self) -> None:
        with self._said.open("a") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "joblens.hub.sink"], stdin=subprocess.PIPE, stderr=stderr
            )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(self._told).encode() + b"\n")
        self.process.stdin.flush()

    @property
    def done(self) -> int:
        return load_cursor(self.place.cursor).segment

    def wait_for(self, segment: int) -> None:
        wait_for(f"segment {segment}", lambda: self.done >= segment)

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self) -> int:
        assert self.process.stdin is not None
        code = self.process.wait(PATIENCE)
        self.process.stdin.close()
        return code

    def close(self) -> None:
        """Whatever has become of it."""
        if self.process.poll() is None:
            self.kill()

    def end(self) -> int:
        """As when the hub ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)
