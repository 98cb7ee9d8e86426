"""Nodes whose clock was wrong while a job ran, as the hub has recorded it (joblens.hub.receive).

Samples have their node's time and a job has its scheduler's: where these differ, samples at the job's begin
or end are not found, or seem to be of a time without it.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from joblens.core.json_file import parse_json
from joblens.core.units import render_seconds
from joblens.store.lake.watermarks import short

_Change = tuple[float, float]  # when, and by how much from then on: the hub's clock minus the node's


class Clocks:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int] = (0, 0)
        self._changes: dict[str, list[_Change]] = {}

    def look(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return
        version = status.st_mtime_ns, status.st_size
        if version != self._version:
            self._version, self._changes = version, _load(self._path.read_bytes())

    def say(self, node: str, start: float, end: float) -> str:
        """A sentence, or nothing where it was right all the time."""
        worst = max(self._offsets(short(node), start, end), key=abs, default=0.0)
        if not worst:
            return ""
        how, when = ("behind", "early") if worst > 0 else ("ahead", "late")
        by = render_seconds(abs(worst))
        return f"the clock of node {node} was {by} {how}: its samples have times that are as much too {when}"

    def _offsets(self, node: str, start: float, end: float) -> list[float]:
        """Each that held at some time in between."""
        changes = self._changes.get(node, [])
        until = [moment for moment, _ in changes[1:]] + [float("inf")]
        return [offset for (first, offset), last in zip(changes, until) if first <= end and last >= start]


def _load(data: bytes) -> dict[str, list[_Change]]:
    """Parse the lines; invalid ones, such as one that is being written, are skipped."""
    found: dict[str, list[_Change]] = defaultdict(list)
    for text in data.splitlines():
        try:
            line: Any = parse_json(text)
            offset = float(line["offset_seconds"]) if line["wrong"] else 0.0
            found[short(str(line["node"]))].append((float(line["time"]), offset))
        except (ValueError, TypeError, KeyError):
            continue
    return found
