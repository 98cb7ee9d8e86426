"""Batches as agents send them, encoded beforehand, so that the sender's cost does not limit the hub."""

from __future__ import annotations

import json
import random
import struct
import time
import zlib
from typing import Any, Sequence

from joblens.agent.sampler import Sampler
from joblens.core.config import Settings
from joblens.core.host import Host
from joblens.core.model import COUNTER, NO_KEY, Column, Rows, Sample, Schema
from joblens.wire.batch import Batch
from joblens.wire.frame import MAGIC
from joblens.wire.mac import Head, digest_of, make_token, sign

KEY = b"the key of the hub that is measured"
SETS, VALUES = 6, 60
_SPEEDS = (0, 0, 0, 1, 10, 1000, 100_000)  # of counters: about half of a node's stand still
_KINDS, _EACH = 8, 4  # nodes that differ, and batches of each
_PERIOD, _LOOK_SECONDS = 10, 0.1  # ticks of an agent's default batch, and real time between two of them
_SCHEMAS = [
    Schema(f"bench{number}", (), tuple(Column(f"c{place}_bytes", COUNTER, "") for place in range(VALUES)))
    for number in range(SETS)
]


class Messages:
    """Batches with their own node and number, which share a few bodies."""

    def __init__(self, ticks: int, jobs: bool = False) -> None:
        chance = random.Random(1)  # noqa: S311
        self.updates = SETS * ticks
        self._jobs = jobs
        self._bodies = [_make_bodies(chance, ticks) for _ in range(_KINDS)]
        self._sets = [[schema.set, 1, VALUES, 1.0, 0.0001] for schema in _SCHEMAS]

    def request(self, node: int, sequence: int, gaps: Sequence[Sequence[Any]] = ()) -> bytes:
        head = {
            "version": 1, "cluster": "bench", "node": f"n{node}", "boot": "b", "sequence": sequence,
            "sent": time.time(), "agent": "bench", "interval": 1.0, "period": self.updates / len(self._sets),
            "updates": self.updates, "sets": self._sets, "jobs": [], "gaps": gaps,
        }  # fmt: skip
        if self._jobs:
            head["jobs"] = [["bench", "1", f"n{node}", "u", 1000]]
        packed = zlib.compress(json.dumps(head).encode(), 1)
        body = MAGIC + struct.pack("<I", len(packed)) + packed + self.sections(node, sequence)
        identity = Head("bench", f"n{node}", "b", sequence, time.time(), digest_of(body))
        token = make_token(KEY, "bench", f"n{node}").encode()
        fields = sign(token, "POST /v1/batch", identity, len(body)).items()
        lines = ["POST /v1/batch HTTP/1.1", "Host: hub", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in fields]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def sections(self, node: int, sequence: int) -> bytes:
        """Return the sections after the header."""
        bodies = self._bodies[node % len(self._bodies)]
        return bodies[sequence % len(bodies)]


class AgentMessages(Messages):
    """Batches of agents with default settings: every set of this machine, ten ticks each."""

    def __init__(self) -> None:
        sampler = Sampler(Host("/"), Settings(), print)
        batch, self._bodies, now = Batch(), [[]], (int(time.time()) - _EACH * _PERIOD) * 10**9
        for tick in range(_EACH * _PERIOD):
            samples = sampler.sample(tick)
            batch.add([Sample(now + tick * 10**9, _of_any_node(sample.rows)) for sample in samples])
            if tick % _PERIOD == _PERIOD - 1:
                self._bodies[0].append(_without_header(batch.encode({})))
            time.sleep(_LOOK_SECONDS)
        sets = [(it.every, rows) for it, rows in sampler.sets() if rows.keys]
        self._sets = [
            [rows.schema.set, len(rows.keys), len(rows.values), every, 0.0001] for every, rows in sets
        ]
        self.updates = sum(max(_PERIOD // every, 1) for every, _ in sets)
        self._jobs = False
        sampler.close()


def _make_bodies(chance: random.Random, ticks: int) -> list[bytes]:
    """Encode the sections after the header, for consecutive batches."""
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
        found.append(_without_header(batch.encode({})))
    return found


def _of_any_node(rows: Rows) -> Rows:
    """Clear the labels of cluster and node: such rows belong to the sender."""
    places = [place for place, label in enumerate(rows.schema.labels) if label in ("cluster", "node")]
    keys = (tuple("" if place in places else it for place, it in enumerate(key)) for key in rows.keys)
    return rows._replace(keys=tuple(keys)) if places else rows


def _without_header(message: bytes) -> bytes:
    (length,) = struct.unpack_from("<I", message, len(MAGIC))
    return message[len(MAGIC) + 4 + length :]
