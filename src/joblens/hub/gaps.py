"""Data that is lost: one line for each gap in `gaps.jsonl`, with its origin and the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

from msgspec import UNSET, UnsetType

from joblens.hub.damage import Damage
from joblens.hub.identity import read_identity
from joblens.hub.jsonl import MOST_BYTES, Line, Lines
from joblens.hub.segments import Segment
from joblens.wire.header import Header

_MOST_KNOWN = 200_000


class NodeGap(Line, tag="node", kw_only=True):
    """Batches that a node had to drop."""

    cluster: str
    node: str
    boot: str = ""
    first: int
    last: int
    from_ns: int = 0
    to_ns: int = 0
    why: str = ""

    def identity(self) -> Hashable:
        # Of damaged notes the numbers are unknown, and an agent can have several.
        unknown = () if self.last else (self.from_ns, self.to_ns)
        return self.cluster, self.node, self.boot, self.first, self.last, *unknown


class SinkGap(Line, tag="sink", kw_only=True):
    """A segment that was deleted before these sinks had stored it."""

    segment: int
    sinks: tuple[str, ...] = ()
    bytes: int = 0
    why: str = "the journal was full"

    def identity(self) -> Hashable:
        return "sink", self.hub, self.segment  # a new journal uses the same numbers again


class DamageGap(Line, tag="damage", kw_only=True):
    """Batches of a damaged segment, or bytes of it whose batches cannot be identified."""

    segment: int
    sinks: tuple[str, ...] = ()
    why: str = "damaged in the journal"
    cluster: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    boot: str | UnsetType = UNSET
    first: int | UnsetType = UNSET
    last: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET

    def identity(self) -> Hashable:
        return "damage", self.hub, self.segment, self.cluster, self.node, self.boot, self.first, self.last


AnyGap = NodeGap | SinkGap | DamageGap


class Gaps:
    """Each gap once: a node reports one until that is acknowledged, so that it can arrive again."""

    def __init__(self, path: Path, log: Callable[[str], None] = print, most_bytes: int = MOST_BYTES) -> None:
        self._home = path.parent
        self._lines: Lines[AnyGap] = Lines(path, AnyGap, log, most_bytes)
        found = self._lines.load()
        self._known = {hash(gap.identity()) for gap in found}  # numbers only: there can be very many
        self._unsaved: dict[int, AnyGap] = {}
        self.count = self._lines.dropped + Counter(map(_kind, found))

    def of_node(self, header: Header) -> None:
        """Add the gaps that a batch reports. `save` writes them, for many nodes at once."""
        cluster, node, *_ = header.batch
        for it in header.gaps():
            gap = NodeGap(cluster=cluster, node=node, **it._asdict())
            self._unsaved[hash(gap.identity())] = gap

    def save(self) -> None:
        """Write the gaps of nodes durably. Raises OSError, and then they are kept for the next call."""
        self._add(list(self._unsaved.values()))
        self._unsaved.clear()

    def of_segment(self, segment: Segment, sinks: Iterable[str], size: int) -> None:
        """Record a segment durably before it is deleted. Raises OSError."""
        hub = read_identity(self._home)
        self._add([SinkGap(hub=hub, segment=segment.number, sinks=tuple(sorted(sinks)), bytes=size)])

    def of_damage(self, segment: Segment, damage: Damage) -> bool:
        """Record durably. Return False if it is known already, or no sink needs it. Raises OSError."""
        hub, sinks = read_identity(self._home), damage.sinks
        lost = [DamageGap(hub=hub, segment=segment.number, sinks=sinks, **it._asdict()) for it in damage.lost]
        if damage.unknown_bytes:
            why = "damaged in the journal: the nodes are unknown"
            size = damage.unknown_bytes
            lost.append(DamageGap(hub=hub, segment=segment.number, sinks=sinks, why=why, bytes=size))
        return self._add(lost) if sinks else False

    def _add(self, gaps: Sequence[AnyGap]) -> bool:
        identified = {hash(gap.identity()): gap for gap in gaps}
        new = {number: gap for number, gap in identified.items() if number not in self._known}
        if not new:
            return False
        self._lines.add(list(new.values()))
        if len(self._known) < _MOST_KNOWN:
            self._known |= new.keys()
        self.count.update(map(_kind, new.values()))
        return True


def _kind(gap: AnyGap) -> str:
    return str(type(gap).__struct_config__.tag)
