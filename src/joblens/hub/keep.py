"""How long a sealed segment is kept: until every sink has it, but not beyond what the journal may take."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from joblens.hub.gaps import Gaps
from joblens.hub.segments import Segment, dropping, list_sealed


class Lag(NamedTuple):
    """What a sink still has before it."""

    segments: int
    bytes: int


def read_cursor(home: Path, sink: str) -> int:
    """The last segment that a sink has done; 0 if none."""
    try:
        number = json.loads((home / "cursors" / f"{sink}.json").read_bytes())["segment"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return 0
    return number if type(number) is int else 0


def clean(
    home: Path, sinks: Iterable[str], most_bytes: int, gaps: Gaps, log: Callable[[str], None]
) -> dict[str, Lag]:
    """Deletes what can go, and what must; returns how far behind each sink is. Raises OSError."""
    cursors = {sink: read_cursor(home, sink) for sink in sinks}
    sizes = {segment: _size(segment) for segment in list_sealed(home / "journal")}
    total = sum(sizes.values())
    for segment in list(sizes):
        if cursors and all(done >= segment.number for done in cursors.values()):
            segment.path.unlink(missing_ok=True)
        elif total <= most_bytes or not _drop(home, segment, list(cursors), gaps, log):
            continue
        total -= sizes.pop(segment)
    return {
        sink: Lag(
            sum(segment.number > done for segment in sizes),
            sum(size for segment, size in sizes.items() if segment.number > done),
        )
        for sink, done in cursors.items()
    }


def _drop(home: Path, segment: Segment, sinks: list[str], gaps: Gaps, log: Callable[[str], None]) -> bool:
    """And records it. False if a sink is just storing it: then it stays, and a later one goes instead."""
    try:
        with dropping(segment) as free:
            if not free:
                return False
            # Read again: a sink may have come to its end since.
            behind = [sink for sink in sinks if read_cursor(home, sink) < segment.number]
            if behind or not sinks:
                gaps.of_segment(segment, behind, _size(segment))
                whose = ", ".join(behind) or "anybody"
                log(
                    f"journal segment {segment.number} is deleted though {whose} did not have it: "
                    "too much waits"
                )
            segment.path.unlink(missing_ok=True)
    except FileNotFoundError:  # somebody else has removed it
        pass
    return True


def _size(segment: Segment) -> int:
    try:
        return segment.path.stat().st_size
    except FileNotFoundError:
        return 0
