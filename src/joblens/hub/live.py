"""The last batch of every node, for a live view (`joblens top`).

It is kept as received and decoded on request. Where that would take too much memory, only the sets that
such a view shows are kept.
"""

from __future__ import annotations

import struct
import zlib

from joblens.core.errors import MalformedError
from joblens.core.model import ABSENT
from joblens.hub.decode import Columns, decode_columns
from joblens.wire.frame import MAGIC, WRONG, section_end
from joblens.wire.live import WANTED, LiveSet, describe_set

_MOST_KNOWN = 100_000
_MOST_KEPT = 1 << 18  # bytes of one node; larger batches are not shown
_MOST_WHOLE = 1 << 25  # bytes of whole batches of all nodes
_NAMES = tuple(f'{{"set":"{name}",'.encode() for name in WANTED)  # as joblens.wire.batch writes it


class Picker:
    def __init__(self) -> None:
        # By the hash of the section that describes a set: most batches bring the same ones again, and
        # those of processes, which are large, are not kept.
        self._wanted: dict[int, bool] = {}
        self.held = 0  # bytes of whole batches

    def keep(self, now: Now, batch: bytes) -> None:
        """Keep the last batch of a node."""
        now.forget()
        if len(batch) <= _MOST_KEPT and self.held + len(batch) <= _MOST_WHOLE:
            self.held += len(batch)
            now.picker, now.last = self, batch
        else:
            now.last = self.pick(batch)

    def pick(self, batch: bytes) -> bytes:
        """Return the batch with only the needed sets, empty if it is truncated. Numbers are not decoded."""
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
    """The last batch of a node."""

    __slots__ = ("_described", "_sets", "last", "picker")

    def __init__(self) -> None:
        self.last = b""
        self.picker: Picker | None = None  # which counts the last one, if that is kept as a whole
        self._described = True
        self._sets: list[LiveSet] = []

    def forget(self) -> None:
        """Drop the last batch."""
        if self.picker is not None:
            self.picker.held -= len(self.last)
            self.picker = None
        self.last, self._described = b"", False

    def describe(self, anew: bool) -> list[LiveSet]:
        """Return the first and last tick of each set, of the last batch if `anew` is set."""
        if anew and not self._described:
            picked = self.last if self.picker is None else self.picker.pick(self.last)
            self._described, self._sets = True, describe(picked)
        return self._sets


def _ends(columns: Columns) -> list[int]:
    """Return the first and last tick, for jobs known by their processes those with a scan."""
    ticks = range(len(columns.times))
    if columns.schema.set == "job" and len(columns.keys):
        cpu = columns.values[:, :, columns.schema.position("cpu_seconds")]
        known = [tick for tick in ticks if (cpu[tick] != ABSENT).any()]
        ticks_known = known or [len(columns.times) - 1]
        return sorted({ticks_known[0], ticks_known[-1]})
    return sorted({0, len(columns.times) - 1})


def describe(picked: bytes) -> list[LiveSet]:
    """Return the first and last tick of each set, nothing if the batch is malformed: the page is of all
    nodes."""
    sets = []
    try:
        for columns in decode_columns(picked):
            for tick in _ends(columns):
                values = columns.values[tick].reshape(-1).tolist()
                sets.append(describe_set(int(columns.times[tick]), columns.schema, columns.keys, values))
    except (MalformedError, ArithmeticError, *WRONG):
        return []
    return [item for item in sets if item]
