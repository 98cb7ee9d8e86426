"""What is missing and will not come: one line each in `gaps.jsonl`, with whose it is and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from joblens.hub.damage import Damage
from joblens.hub.identity import read_identity
from joblens.hub.jsonl import MOST_BYTES, Line, Lines
from joblens.hub.segments import Segment
from joblens.wire.header import Header

_MOST_KNOWN = 200_000
_NAMES = ("kind", "segment", "cluster", "node", "boot", "first", "last")


class Gaps:
    """A gap is told by its node until that is acknowledged, so the same can come again: it is kept once."""

    def __init__(self, path: Path, log: Callable[[str], None] = print, most_bytes: int = MOST_BYTES) -> None:
        self._home, self._lines = path.parent, Lines(path, log, most_bytes)
        found = self._lines.load()
        self._known = set(map(_identity, found))
        self._told: dict[int, Line] = {}  # and not written down yet
        self._count = self._lines.dropped + Counter(str(gap.get("kind")) for gap in found)

    @property
    def of_nodes(self) -> int:
        return self._count["node"]

    @property
    def of_sinks(self) -> int:
        return self._count["sink"]

    @property
    def of_damaged(self) -> int:
        return self._count["damage"]

    def of_node(self, header: Header) -> None:
        """Written down by `save`, for many nodes at once."""
        batch = header.batch
        who = {"kind": "node", "cluster": batch.cluster, "node": batch.node}
        told: list[Line] = [{**who, **gap._asdict()} for gap in header.gaps()]
        self._told.update((_identity(gap), gap) for gap in told)

    def save(self) -> None:
        """On the disk on return. Raises OSError; then they are kept for the next time."""
        self._add(list(self._told.values()))
        self._told.clear()

    def of_segment(self, segment: Segment, sinks: Iterable[str], size: int) -> None:
        """On the disk on return: what is missing is known before it is missing. Raises OSError."""
        which = {
            "kind": "sink",
            "hub": read_identity(self._home),  # a journal that began anew has the same numbers again
            "segment": segment.number,
            "sinks": sorted(sinks),
            "bytes": size,
        }
        self._add([{**which, "why": "the journal was full"}])

    def of_damage(self, segment: Segment, damage: Damage) -> bool:
        """On the disk on return. False if it was there before, or no sink misses it. Raises OSError."""
        which = {
            "kind": "damage",
            "hub": read_identity(self._home),
            "segment": segment.number,
            "sinks": list(damage.sinks),
            "why": "damaged in the journal",
        }
        lost = [{**which, **it._asdict()} for it in damage.lost]
        if damage.unknown_bytes:
            lost.append(
                {**which, "bytes": damage.unknown_bytes, "why": "damaged in the journal: whose is unknown"}
            )
        return self._add(lost) if damage.sinks else False

    def _add(self, gaps: list[Line]) -> bool:
        new = {_identity(gap): gap for gap in gaps if _identity(gap) not in self._known}
        if not new:
            return False
        self._lines.add(list(new.values()))
        if len(self._known) < _MOST_KNOWN:
            self._known |= new.keys()
        self._count.update(gap["kind"] for gap in new.values())
        return True


def _identity(gap: dict[str, Any]) -> int:
    """As a number: there can be very many."""
    whose = gap.get("hub") if gap.get("kind") in ("sink", "damage") else ""
    return hash((whose, *(str(gap.get(name)) for name in _NAMES)))
