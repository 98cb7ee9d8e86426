"""Whose clock was wrong, when and by how much: one line in `clocks.jsonl` for each change.

Times of samples stay as the node wrote them; by these lines one can tell later which of them were off.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from joblens.hub.jsonl import Line, Lines
from joblens.hub.nodes import WRONG_CLOCK, Node

_QUIET = 60.0  # seconds between two lines about one node, however it jumps
_MOST_SHOWN = 1000


class Clocks:
    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self._lines = Lines(path, log)
        self._wrong: dict[tuple[str, str], Line] = {}  # of those whose clock is wrong, what was last written
        self._shown: deque[Line] = deque(maxlen=_MOST_SHOWN)
        self._new: list[Line] = []
        for line in self._lines.load():
            if _is_one(line):
                self._learn(line)

    def look(self, node: Node, boot: str) -> None:
        """At the node's offset, when it is known anew. A clock that drifts has a line for each such step."""
        name, offset = (node.cluster, node.node), node.offset
        known = self._wrong.get(name)
        if offset is None or not _differs(offset, known) or time.monotonic() - node.clock_noted < _QUIET:
            return
        node.clock_noted = time.monotonic()
        line = {
            "kind": "clock",
            "time": round(time.time(), 3),
            "cluster": node.cluster,
            "node": node.node,
            "boot": boot,
            "offset_seconds": round(offset, 3),
            "wrong": node.clock_wrong,
        }
        self._new.append(line)
        self._learn(line)

    def save(self) -> None:
        """What is new, at once for all. Raises OSError, and then it waits for the next time."""
        if self._new:
            self._lines.add(self._new)
            self._new = []

    def _learn(self, line: Line) -> None:
        name = line["cluster"], line["node"]
        self._shown.append(line)
        if not line["wrong"]:
            self._wrong.pop(name, None)
        else:
            since = self._wrong.get(name, line).get("since", line["time"])
            self._wrong[name] = {**line, "since": since}

    def wrong_since(self, node: Node) -> float | None:
        """By the hub's clock; None if it is right."""
        known = self._wrong.get((node.cluster, node.node))
        return None if known is None else known["since"]

    def describe(self) -> list[Line]:
        """The last changes, from old to new."""
        return list(self._shown)


def _differs(offset: float, known: Line | None) -> bool:
    if abs(offset) > WRONG_CLOCK:
        return known is None or abs(offset - known["offset_seconds"]) > WRONG_CLOCK
    # One that is at the limit is not wrong and right by turns.
    return known is not None and abs(offset) <= WRONG_CLOCK / 2


def _is_one(line: dict[str, Any]) -> bool:
    kinds = {"time": (int, float), "cluster": str, "node": str, "offset_seconds": (int, float), "wrong": bool}
    return all(isinstance(line.get(name), kind) for name, kind in kinds.items())  # type: ignore[arg-type]
