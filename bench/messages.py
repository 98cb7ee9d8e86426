"""Batches as agents send them, made beforehand: the sender's own cost would be the hub's limit otherwise."""

from __future__ import annotations

import json
import random
import struct
import time
import zlib
from typing import Any, Sequence

from joblens.agent.batch import Batch
from joblens.agent.frame import MAGIC
from joblens.model import COUNTER, NO_KEY, Column, Rows, Sample, Schema

SETS, VALUES = 6, 60
_SPEEDS = (0, 0, 0, 1, 10, 1000, 100_000)  # of counters: about half of a node's stand still
_KINDS, _EACH = 8, 4  # nodes that differ, and batches of each
_SCHEMAS = [
    Schema(f"bench{number}", (), tuple(Column(f"c{place}_bytes", COUNTER, "") for place in range(VALUES)))
    for number in range(SETS)
]


class Messages:
    """Each with its own node and number, in one of some bodies."""

    def __init__(self, ticks: int, jobs: bool = False) -> None:
        chance = random.Random(1)  # noqa: S311
        self.updates = SETS * ticks
        self._jobs = jobs
        self._bodies = [_make_bodies(chance, ticks) for _ in range(_KINDS)]
        self._sets = [[schema.set, 1, VALUES, 1.0, 0.0001] for schema in _SCHEMAS]

    def request(self, node: int, sequence: int, gaps: Sequence[Sequence[Any]] = ()) -> bytes:
        head = {
            "version": 1, "cluster": "bench", "node": f"n{node}", "boot": "b", "sequence": sequence,
            "sent": time.time(), "agent": "bench", "interval": 1.0, "sets": self._sets, "jobs": [],
            "gaps": gaps,
        }  # fmt: skip
        if self._jobs:
            head["jobs"] = [["bench", "1", f"n{node}", "u", 1000]]
        packed = zlib.compress(json.dumps(head).encode(), 1)
        body = MAGIC + struct.pack("<I", len(packed)) + packed + self._bodies[node % _KINDS][sequence % _EACH]
        return b"POST /v1/batch HTTP/1.1\r\nHost: hub\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def _make_bodies(chance: random.Random, ticks: int) -> list[bytes]:
    """What stands behind the header, of batches that follow each other."""
    values = [[chance.randrange(10**9) for _ in range(VALUES)] for _ in range(SETS)]
    speeds = [[chance.choice(_SPEEDS) for _ in range(VALUES)] for _ in range(SETS)]
    batch, found = Batch(), []
    now = int(time.time()) * 10**9
    for _ in range(_EACH):
        for _ in range(ticks):
            now += 10**9
            for number, schema in enumerate(_SCHEMAS):
                pairs = zip(values[number], speeds[number])
                values[number] = [value + chance.randrange(speed + 1) for value, speed in pairs]
                batch.add([Sample(now, Rows(schema, NO_KEY, values[number]))])
        message = batch.encode({})
        (length,) = struct.unpack_from("<I", message, len(MAGIC))
        found.append(message[len(MAGIC) + 4 + length :])
    return found
