"""Where the files of a group end, so that a group that is taken again comes to the same files.

A group that does not fit into memory becomes several files per set. Where a file ends depends on what was
read before it, and part of that can be damaged by the time the group is taken again after a crash. So each
end is on disk before the file is written, in the store beside the lake:

    hubs/ID.files    {"first": 5, "last": 7, "ends": [[6, 17, ["process"]], …], "crc": 2718281828}
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import NamedTuple

from joblens.core.files import write_whole
from joblens.core.json_file import parse_json
from joblens.hub.groups import Group


class End(NamedTuple):
    """Behind that batch, a file of each of these sets ends."""

    segment: int
    place: int  # of the batch in the segment; damaged ones count too
    sets: tuple[str, ...]


class FilePlan:
    """The ends in one group: those of an earlier attempt, then those that are added."""

    def __init__(self, path: Path, group: Group) -> None:
        self._path, self._group = path, group
        self._ends = _load(path, group)
        self._next = 0

    def due(self, segment: int, place: int) -> list[End]:
        """Ends of an earlier attempt that lie before this batch. In order, each once."""
        begin = self._next
        while self._next < len(self._ends) and self._ends[self._next][:2] < (segment, place):
            self._next += 1
        return self._ends[begin : self._next]

    @property
    def is_settled(self) -> bool:
        """Whether an earlier attempt has decided about the files here: its next end is still to come."""
        return self._next < len(self._ends)

    def add(self, end: End) -> None:
        """On disk on return. Raises OSError."""
        self._ends.append(end)
        self._next = len(self._ends)
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        first, last = self._group.first, self._group.last
        crc = _crc(first, last, self._ends)
        write_whole(
            str(self._path),
            json.dumps({"first": first, "last": last, "ends": self._ends, "crc": crc}).encode(),
        )


def _load(path: Path, group: Group) -> list[End]:
    """None of another group, or where the file is damaged."""
    try:
        found = parse_json(path.read_bytes())
        ends = [
            End(int(segment), int(place), tuple(map(str, sets))) for segment, place, sets in found["ends"]
        ]
        same = (found["first"], found["last"]) == (group.first, group.last)
        return ends if same and found["crc"] == _crc(group.first, group.last, ends) else []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return []


def _crc(first: int, last: int, ends: list[End]) -> int:
    return zlib.crc32(json.dumps([first, last, ends]).encode())
