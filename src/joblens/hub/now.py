"""What every node did in its last batch, for a live view (`joblens top`).

Of each batch only the parts that such a view needs are kept, as they came; they are read when somebody asks.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

from joblens.agent.frame import MAGIC, section_end
from joblens.agent.now import WANTED, describe_set
from joblens.errors import MalformedError
from joblens.hub.decode import decode_columns

_MOST_KNOWN = 100_000
_MOST_KEPT = 1 << 18  # bytes of one node; a batch with more is a strange one
_NAMES = tuple(f'{{"set":"{name}",'.encode() for name in WANTED)  # as joblens.agent.batch writes it


class Picker:
    def __init__(self) -> None:
        # By the hash of the section that describes a set: most batches bring the same ones again, and
        # those of processes, which are large, are not kept.
        self._wanted: dict[int, bool] = {}

    def pick(self, batch: bytes) -> bytes:
        """The batch with less in it; nothing of one that is cut off. Cheap: no number is looked at."""
        picked: list[bytes] = []
        try:
            end = section_end(batch, len(MAGIC))
            picked.append(batch[:end])
            while end < len(batch):
                begin, middle = end, section_end(batch, end)
                end = section_end(batch, middle)
                if self._is_wanted(batch[begin:middle]):
                    picked.append(batch[begin:end])
        except struct.error:
            return b""
        found = b"".join(picked)
        return found if len(found) <= _MOST_KEPT else b""

    def _is_wanted(self, described: bytes) -> bool:
        name = hash(described)
        found = self._wanted.get(name)
        if found is None:
            if len(self._wanted) >= _MOST_KNOWN:
                self._wanted.clear()
            try:
                begin = zlib.decompressobj().decompress(described[4:], 100)
            except zlib.error:
                begin = b""
            found = self._wanted[name] = begin.startswith(_NAMES)
        return found


class Now:
    """Of one node."""

    __slots__ = ("_described", "_sets", "picked")

    def __init__(self) -> None:
        self.picked = self._described = b""
        self._sets: list[dict[str, Any]] = []

    def describe(self, anew: bool) -> list[dict[str, Any]]:
        """The first and the last tick of each set; as they were before, where there is no time for more."""
        if anew and self._described is not self.picked:
            self._described, self._sets = self.picked, describe(self.picked)
        return self._sets


def describe(picked: bytes) -> list[dict[str, Any]]:
    """The first and the last tick of each set. Nothing if it cannot be read."""
    try:
        _, found = decode_columns(picked)
    except MalformedError:
        return []
    sets = []
    for columns in found:
        for tick in sorted({0, len(columns.times) - 1}):
            values = columns.values[tick].reshape(-1).tolist()
            sets.append(describe_set(int(columns.times[tick]), columns.schema, columns.keys, values))
    return [item for item in sets if item]
