"""Deduplication: the batches that the hub has, as ranges of sequence numbers by cluster, node and boot.

A node numbers its batches, so that those of one boot are mostly one range. They are saved in `seen.json`
before a segment is sealed; later ones are read from the journal at start-up. The previous version is kept as
`seen.old.json`, in case of damage.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from joblens.core.errors import MalformedError
from joblens.core.files import sync, sync_folder, unfinished_name
from joblens.core.json_file import parse_json
from joblens.wire.header import BatchId

_MOST_RANGES = 1000  # of one boot
_WHOLE_BOOTS = 32  # the newest of one node, with all their ranges
_MOST_BOOTS = 2048  # of one node; older ones are a single range
# From the last batch of an older boot until it is forgotten. In a replay of its batches the rows are then too
# old for any sink (joblens.hub.batch_reader): 31 days, and one for wrong clocks.
KEPT_SECONDS = 33 * 86_400
OLD, DAMAGED = "seen.old.json", "seen.damaged.json"


class Ranges:
    """A set of integers that are mostly added in order."""

    __slots__ = ("firsts", "heard", "lasts")

    def __init__(self, firsts: list[int], lasts: list[int], heard: float = 0.0) -> None:
        self.firsts, self.lasts, self.heard = firsts, lasts, heard

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.firsts, number) - 1
        return place >= 0 and number <= self.lasts[place]

    def add(self, number: int) -> None:
        firsts, lasts = self.firsts, self.lasts
        if lasts and number == lasts[-1] + 1:  # the usual case
            lasts[-1] = number
            return
        place = bisect_right(firsts, number)
        if place and number <= lasts[place - 1]:
            return
        firsts.insert(place, number)
        lasts.insert(place, number)
        self._join(place)
        self._join(place - 1)
        if len(firsts) > _MOST_RANGES:
            # Senders go from old to new: the batches of the oldest hole will not be sent any more.
            self._join(0, anyway=True)

    def join_all(self) -> None:
        """Become a single range: the missing batches will not be sent any more."""
        del self.firsts[1:], self.lasts[:-1]

    def _join(self, place: int, anyway: bool = False) -> None:
        """Merge the range at `place` with the next one if they are adjacent."""
        if 0 <= place < len(self.firsts) - 1 and (anyway or self.lasts[place] + 1 == self.firsts[place + 1]):
            del self.firsts[place + 1]
            del self.lasts[place]


class Seen:
    """The batches that are stored. Read by the event loop, written by the journal's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[tuple[str, str], dict[str, Ranges]] = {}
        self.through = 0  # the last segment that is contained as a whole

    def __contains__(self, batch: BatchId) -> bool:
        with self._lock:
            ranges = self._nodes.get(batch[:2], {}).get(batch.boot)
            return ranges is not None and batch.sequence in ranges

    def highest(self, batch: BatchId) -> int:
        """Return the highest sequence number of the same boot."""
        with self._lock:
            ranges = self._nodes.get(batch[:2], {}).get(batch.boot)
            return ranges.lasts[-1] if ranges is not None else 0

    def __len__(self) -> int:
        return len(self._nodes)

    def knows(self, cluster: str, node: str) -> bool:
        return (cluster, node) in self._nodes

    def add(self, batch: BatchId) -> None:
        with self._lock:
            boots = self._nodes.setdefault(batch[:2], {})
            ranges = boots.get(batch.boot)
            now = time.time()
            if ranges is None:
                _shorten(boots, now)
                ranges = boots[batch.boot] = Ranges([], [])
            ranges.add(batch.sequence)
            ranges.heard = now

    def save(self, path: Path, through: int) -> None:
        with self._lock:
            nodes = [
                [cluster, node, boot, list(map(list, zip(ranges.firsts, ranges.lasts)))]
                for (cluster, node), boots in self._nodes.items()
                for boot, ranges in boots.items()
            ]
            heard = [int(ranges.heard) for boots in self._nodes.values() for ranges in boots.values()]
        text = json.dumps(nodes, separators=(",", ":"))
        unfinished = unfinished_name(str(path))
        try:
            with open(unfinished, "w", encoding="utf-8") as file:
                file.write(f'{{"version":1,"through":{through},"crc":{_crc(through, text)},"nodes":{text}')
                file.write(f',"heard":{json.dumps(heard, separators=(",", ":"))}}}')
            sync(unfinished)
            with suppress(FileNotFoundError):
                os.replace(path, path.with_name(OLD))
            os.rename(unfinished, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished)
            raise
        sync_folder(str(path))
        self.through = through


def _shorten(boots: dict[str, Ranges], now: float) -> None:
    """Make room for one more boot: an old one becomes a single range, and is forgotten later."""
    for ranges in islice(boots.values(), max(len(boots) + 1 - _WHOLE_BOOTS, 0)):
        ranges.join_all()
    while len(boots) >= _WHOLE_BOOTS:
        first = next(iter(boots))
        if len(boots) < _MOST_BOOTS and now - boots[first].heard < KEPT_SECONDS:
            return
        del boots[first]


def _crc(through: int, nodes: str) -> int:
    return zlib.crc32(f"{through} {nodes}".encode())


def load_seen(path: Path, log: Callable[[str], None] = lambda said: None) -> Seen:
    """Load the file if there is one. Raises MalformedError: without it repeats would be stored again."""
    try:
        seen = _load(path)
    except MalformedError:
        # Later batches are in the journal, whose indexes are kept long enough (joblens.hub.retention).
        seen = _load(path.with_name(OLD))
        if seen is None:
            raise
        with suppress(OSError):
            path.replace(path.with_name(DAMAGED))
        log(f"{path.name} is damaged, kept as {DAMAGED}; restored from {OLD} and the journal")
    if seen is None:
        seen = _load(path.with_name(OLD))
    return Seen() if seen is None else seen


def _load(path: Path) -> Seen | None:
    try:
        found = parse_json(path.read_bytes())
        seen = Seen()
        _fill(seen, found)
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise MalformedError(str(path), _ADVICE) from None
    return seen


_ADVICE = (
    "damaged; the hub can start without it, but then older batches that nodes send again are stored twice: "
    f"to accept that, remove it and {OLD}"
)


def _fill(seen: Seen, found: dict[str, Any]) -> None:
    if found["version"] != 1:
        raise ValueError
    seen.through = int(found["through"])
    text = json.dumps(found["nodes"], separators=(",", ":"))
    if found.get("crc") not in (None, _crc(seen.through, text)):  # older versions did not write it
        raise ValueError
    now = time.time()
    heard = found.get("heard")  # missing in files of older versions
    if not isinstance(heard, list) or len(heard) != len(found["nodes"]):
        heard = [now] * len(found["nodes"])
    for (cluster, node, boot, pairs), last in zip(found["nodes"], heard):
        firsts, lasts = [int(first) for first, _ in pairs], [int(last) for _, last in pairs]
        flat = [number for pair in zip(firsts, lasts) for number in pair]
        if flat != sorted(flat):
            raise ValueError
        boots = seen._nodes.setdefault((str(cluster), str(node)), {})
        boots[str(boot)] = Ranges(firsts, lasts, float(last))
