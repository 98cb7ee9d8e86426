"""Which segments a sink takes together: a few at a time, so that it writes fewer and larger files.

A group that was begun must be taken again as the same group after a crash, as its files are named after it.
So it is on the disk before the sink begins with it:

    sinks/NAME/group         {"hub": "4f2a…", "first": 5, "last": 7, "crc": 2718281828}
    sinks/NAME/group.copy    the same, for the case that the first is damaged

Until it is stored none of its segments is dropped (joblens.hub.retention): its files would come out
differently.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from joblens.core.files import read_small, write_small
from joblens.core.json_file import parse_json
from joblens.hub.segments import Segment

_MOST_BYTES = 256 << 20
_ENOUGH_BYTES = 192 << 20  # that wait: larger groups would take no less time per row
_MOST_SEGMENTS = 1000


class Group(NamedTuple):
    first: int
    last: int
    segments: list[Segment]  # those that are still there


class Groups:
    def __init__(self, path: Path, hub: str, seconds: float) -> None:
        """`seconds`: so long a segment may wait for others."""
        self._path, self._hub, self._seconds = path, hub, seconds
        self._begun = load_group(path, hub)  # its segments are searched again
        self._since: float | None = None  # when the oldest that waits was seen

    def choose(self, waiting: list[Segment], hurry: bool, done: int = 0) -> Group | None:
        """The next of those that wait, in their order; None while more may come. Raises OSError.

        `done`: the last segment that is stored.
        """
        if not waiting:
            self._since = None  # what had waited was dropped
            return None
        if not self._seconds:
            return _group(waiting[:1])
        begun = self._begun
        if begun is not None and begun.last > waiting[-1].number:  # such a group was never begun
            begun = None
        if begun is not None and done < begun.first <= waiting[0].number <= begun.last:  # not stored yet
            return begun._replace(segments=[it for it in waiting if it.number <= begun.last])
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        group, size = _bounded(waiting)
        is_all = len(group) == len(waiting)
        if begun is None:  # a version that knew no groups may have begun with the first one
            group = waiting[:1]
        elif is_all and size < _ENOUGH_BYTES and not hurry and now - self._since < self._seconds:
            return None
        self._begun, self._since = _group(group), None
        first, last = self._begun.first, self._begun.last
        data = {"hub": self._hub, "first": first, "last": last, "crc": _crc(self._hub, first, last)}
        text, short = json.dumps(data), json.dumps([*data.values()], separators=(",", ":"))
        write_small(str(self._path), text, short)
        with suppress(OSError):
            write_small(str(_copy_of(self._path)), text, short)
        return self._begun

    def remaining(self) -> float:
        """Seconds until those that wait are chosen, if no more come; infinity if none waits."""
        if self._since is None:
            return math.inf
        return max(self._since + self._seconds - time.monotonic(), 0.0)


def _group(segments: list[Segment]) -> Group:
    return Group(segments[0].number, segments[-1].number, segments)


def _bounded(waiting: list[Segment]) -> tuple[list[Segment], int]:
    """Return the first segments, and their bytes."""
    group: list[Segment] = []
    total = 0
    for segment in waiting[:_MOST_SEGMENTS]:
        size = segment.path.stat().st_size if segment.path.exists() else 0
        if group and total + size > _MOST_BYTES:
            break
        group.append(segment)
        total += size
    return group, total


def _copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.copy")


def load_group(path: Path, hub: str) -> Group | None:
    """The one that was begun last; None if that cannot be known."""
    return _load(path, hub) or _load(_copy_of(path), hub)


def _load(path: Path, hub: str) -> Group | None:
    """The first versions wrote no checksum."""
    try:
        found = parse_json(read_small(str(path)))
        if isinstance(found, list):  # written on a full disk
            found = dict(zip(("hub", "first", "last", "crc"), found))
        first, last = int(found["first"]), int(found["last"])
        sound = found["hub"] == hub and found.get("crc", _crc(hub, first, last)) == _crc(hub, first, last)
        return Group(first, last, []) if sound else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _crc(hub: str, first: int, last: int) -> int:
    return zlib.crc32(f"{hub} {first} {last}".encode())
