"""Which batches the hub has: ranges of sequence numbers by cluster, node and boot.

A node counts its batches, so that what has come of one boot is mostly one range. It is kept in `seen.json`,
written before a segment is sealed, and what came later is read from the journal at start. The one before it
is kept as `seen.old.json`, for when that is damaged.
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
_WHOLE_BOOTS = 32  # the newest of one node, of which each hole is known
_MOST_BOOTS = 2048  # of one node: of the older ones the first and the last number
# Since the last batch of an older boot, after which it is forgotten. What was captured of it and is sent
# again then has rows too old for any sink (joblens.hub.batch_reader): 31 days, and one that clocks are off.
KEPT_SECONDS = 33 * 86_400
OLD, DAMAGED = "seen.old.json", "seen.damaged.json"


class Ranges:
    """A set of integers that come mostly in order."""

    __slots__ = ("firsts", "heard", "lasts")

    def __init__(self, firsts: list[int], lasts: list[int], heard: float = 0.0) -> None:
        self.firsts, self.lasts, self.heard = firsts, lasts, heard

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.firsts, number) - 1
        return place >= 0 and number <= self.lasts[place]

    def add(self, number: int) -> None:
        firsts, lasts = self.firsts, self.lasts
        if lasts and number == lasts[-1] + 1:  # nearly always
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
            # Senders go from old to new: what is missing in the oldest hole will not come any more.
            self._join(0, anyway=True)

    def join_all(self) -> None:
        """What is missing in between will not come any more."""
        del self.firsts[1:], self.lasts[:-1]

    def _join(self, place: int, anyway: bool = False) -> None:
        """The range at a place with the next one, if they touch."""
        if 0 <= place < len(self.firsts) - 1 and (anyway or self.lasts[place] + 1 == self.firsts[place + 1]):
            del self.firsts[place + 1]
            del self.lasts[place]


class Seen:
    """Asked by the event loop, told by the journal's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[tuple[str, str], dict[str, Ranges]] = {}
        self.through = 0  # the last segment that is wholly in here

    def __contains__(self, batch: BatchId) -> bool:
        with self._lock:
            ranges = self._nodes.get(batch[:2], {}).get(batch.boot)
            return ranges is not None and batch.sequence in ranges

    def highest(self, batch: BatchId) -> int:
        """Of the same boot."""
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
    """To make room for one more: a boot that began long ago is one range, and forgotten later."""
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
    """Empty where there is none. Raises MalformedError: without it repeats would be stored again."""
    try:
        seen = _load(path)
    except MalformedError:
        # What came since is in the journal: its indexes stay that long (joblens.hub.retention).
        seen = _load(path.with_name(OLD))
        if seen is None:
            raise
        with suppress(OSError):
            path.replace(path.with_name(DAMAGED))
        log(f"{path.name} is damaged and kept as {DAMAGED}; {OLD} and the journal say the same")
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
    "it is damaged; the hub can begin without it, but then what nodes send again of older data is stored "
    f"twice: remove it and {OLD} if that is wanted"
)


def _fill(seen: Seen, found: dict[str, Any]) -> None:
    if found["version"] != 1:
        raise ValueError
    seen.through = int(found["through"])
    text = json.dumps(found["nodes"], separators=(",", ":"))
    if found.get("crc") not in (None, _crc(seen.through, text)):  # older versions have written none
        raise ValueError
    now = time.time()
    heard = found.get("heard")  # which older versions have not written
    if not isinstance(heard, list) or len(heard) != len(found["nodes"]):
        heard = [now] * len(found["nodes"])
    for (cluster, node, boot, pairs), last in zip(found["nodes"], heard):
        firsts, lasts = [int(first) for first, _ in pairs], [int(last) for _, last in pairs]
        flat = [number for pair in zip(firsts, lasts) for number in pair]
        if flat != sorted(flat):
            raise ValueError
        boots = seen._nodes.setdefault((str(cluster), str(node)), {})
        boots[str(boot)] = Ranges(firsts, lasts, float(last))
