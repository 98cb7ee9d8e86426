"""The batches that the hubs of a group have, kept in Kafka for the next owner of a partition."""

from __future__ import annotations

import json
from collections.abc import Iterator

from joblens.core.errors import MalformedError
from joblens.core.json_file import parse_json
from joblens.hub.dedup import Ranges
from joblens.hub.kafka.client import Notes
from joblens.wire.header import BatchId

_MOST_BOOTS = 8  # of one node
_Boots = dict[str, Ranges]


class Known:
    """Batches of all nodes. Changes are written in the transaction of a claim, to the topic of `notes`."""

    def __init__(self, notes: Notes, group: str) -> None:
        self._notes, self._group = notes, group
        self._read: dict[str, _Boots] = {}
        self._changed: set[str] = set()

    def refresh(self) -> None:
        """Read what other hubs have written meanwhile."""
        for name in self._notes.read():
            self._read.pop(name, None)

    def __contains__(self, batch: BatchId) -> bool:
        boots = self._boots(self._name(batch))
        return batch.boot in boots and batch.sequence in boots[batch.boot]

    def add(self, batch: BatchId) -> None:
        name = self._name(batch)
        boots = self._boots(name)
        if batch.boot not in boots:
            if len(boots) >= _MOST_BOOTS:
                del boots[next(iter(boots))]  # the oldest
            boots[batch.boot] = Ranges([], [])
        boots[batch.boot].add(batch.sequence)
        self._changed.add(name)

    def changes(self) -> Iterator[tuple[str, bytes]]:
        """Yield key and value of each record to be written."""
        for name in sorted(self._changed):
            yield name, _render(self._read[name])

    def written(self) -> None:
        self._changed.clear()

    def _name(self, batch: BatchId) -> str:
        return json.dumps([self._group, batch.cluster, batch.node])

    def _boots(self, name: str) -> _Boots:
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = _parse(name, self._notes.values.get(name, b"{}"))
        return found


def _render(boots: _Boots) -> bytes:
    plain = {boot: list(zip(ranges.firsts, ranges.lasts)) for boot, ranges in boots.items()}
    return json.dumps(plain, separators=(",", ":")).encode()


def _parse(name: str, note: bytes) -> _Boots:
    """Raises MalformedError: without it repeats would be stored again."""
    found: _Boots = {}
    try:
        for boot, pairs in parse_json(note).items():
            flat = [int(number) for pair in pairs for number in pair]
            if flat != sorted(flat) or any(len(pair) != 2 for pair in pairs):
                raise ValueError("not in order")
            found[boot] = Ranges(flat[::2], flat[1::2])
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise MalformedError(f"record of {name}", "not a list of known batches") from None
    return found
