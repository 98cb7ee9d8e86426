"""Nodes with wrong clocks: one line in `clocks.jsonl` for each change.

Samples keep the time that the node gave them. These lines show later which of them were off, and by how much.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from joblens.hub.jsonl import Lines
from joblens.hub.nodes import WRONG_CLOCK, Node
from joblens.hub.status import ClockChange

_QUIET = 60.0  # seconds between two lines about one node, however often its clock jumps
_MOST_SHOWN = 1000


class Clocks:
    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        self._lines: Lines[ClockChange] = Lines(path, ClockChange, log)
        # By node whose clock is wrong: its last change, and the time of the first.
        self._wrong: dict[tuple[str, str], tuple[ClockChange, float]] = {}
        self._shown: deque[ClockChange] = deque(maxlen=_MOST_SHOWN)
        self._new: list[ClockChange] = []
        for change in self._lines.load():
            if f"{change.cluster}{change.node}{change.boot}".isprintable():
                self._remember(change)

    def check(self, node: Node, boot: str) -> None:
        """Compare the node's offset with the last known one. A drifting clock gets a line for each step."""
        offset = node.offset
        known = self._wrong.get((node.cluster, node.node))
        if offset is None or not _differs(offset, known and known[0]):
            return
        if time.monotonic() - node.clock_noted < _QUIET:
            return
        node.clock_noted = time.monotonic()
        change = ClockChange(
            time=round(time.time(), 3),
            cluster=node.cluster,
            node=node.node,
            boot=boot,
            offset_seconds=round(offset, 3),
            wrong=node.clock_wrong,
        )
        self._new.append(change)
        self._remember(change)

    def save(self) -> None:
        """Write the new changes. Raises OSError, and then they are kept for the next call."""
        if self._new:
            self._lines.add(self._new)
            self._new = []

    def _remember(self, change: ClockChange) -> None:
        name = change.cluster, change.node
        self._shown.append(change)
        if change.wrong:
            _, since = self._wrong.get(name, (change, change.time))
            self._wrong[name] = change, since
        else:
            self._wrong.pop(name, None)

    def wrong_since(self, node: Node) -> float | None:
        """Return the time by the hub's clock, None if the node's clock is right."""
        known = self._wrong.get((node.cluster, node.node))
        return None if known is None else known[1]

    def changes(self) -> list[ClockChange]:
        """Return the last changes, from old to new."""
        return list(self._shown)


def _differs(offset: float, known: ClockChange | None) -> bool:
    if abs(offset) > WRONG_CLOCK:
        return known is None or abs(offset - known.offset_seconds) > WRONG_CLOCK
    # Hysteresis: a clock near the limit does not become wrong and right by turns.
    return known is not None and abs(offset) <= WRONG_CLOCK / 2
