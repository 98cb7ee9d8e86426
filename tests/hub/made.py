"""Segments as the journal has them, of nodes as agents see them, and what must be stored of them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from joblens.attribution.account import JOB, OWNED_PROCESS
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Key, Rows, Sample, Schema
from joblens.hub.segments import Segment, pack_record
from joblens.wire.batch import Batch

SECOND = 10**9
START = 1_700_000_000 * SECOND
CPU = Schema("cpu", ("cpu",), (Column("user_seconds", COUNTER, "", 1, 100), Column("switches", COUNTER, "")))
LOAD = Schema(
    "load",
    (),
    (Column("load1", GAUGE, "", 1, 100), Column("free_bytes", GAUGE, "", 1024), Column("", GAUGE, "")),
)


# The same set on a node with another kernel.
OTHER_LOAD = Schema("load", (), (Column("load1", GAUGE, "", 1, 1000), Column("queued", COUNTER, "")))


class Running(NamedTuple):
    job: str
    user: str
    uid: int = -1
    cluster: str = "lab"


def node_samples(
    node: str, times: Iterable[int], jobs: Iterable[Running] = (), cores: int = 2, cluster: str = "lab"
) -> list[Sample]:
    """The node's own sets, and those of the jobs on it."""
    cpus: tuple[Key, ...] = tuple((f"cpu{core}",) for core in range(cores))
    running = list(jobs)
    job_keys: tuple[Key, ...] = tuple((it.cluster, it.job, node) for it in running)
    process_keys: tuple[Key, ...] = tuple(
        (it.cluster, it.job, "0", node, *_process(number, it)) for number, it in enumerate(running)
    )
    found = []
    for time_ns in times:
        tick = time_ns // SECOND % 100_000
        found += [
            Sample(time_ns, Rows(CPU, cpus, [n for core in range(cores) for n in (tick + core, tick * 7)])),
            Sample(time_ns, Rows(LOAD, ((),), [tick, ABSENT if tick % 3 == 0 else tick * 2, 1])),
            Sample(time_ns, Rows(JOB, job_keys, [tick] * len(JOB.columns) * len(running))),
        ]
        if running:
            values = [tick] * len(OWNED_PROCESS.columns) * len(running)
            found.append(Sample(time_ns, Rows(OWNED_PROCESS, process_keys, values)))
    return found


def _process(number: int, it: Running) -> Key:
    named: dict[str, str | int] = {
        "pid": 100 + number,
        "start": 5,
        "parent": 1,
        "uid": it.uid,
        "name": "x, y",
        "command": 'a "b"\nc',
    }
    return tuple(named.get(label, 0) for label in OWNED_PROCESS.labels[4:])


def encode(
    node: str, sequence: int, samples: Iterable[Sample], jobs: Iterable[Running] = (), **more: Any
) -> bytes:
    batch = Batch()
    batch.add(samples)
    header: Any = {
        "version": 1,
        "cluster": "lab",
        "node": node,
        "boot": "b",
        "sequence": sequence,
        "jobs": [[it.cluster, it.job, node, it.user, it.uid] for it in jobs],
    }
    return batch.encode(header | more)


def write_segment(
    folder: Path, number: int, batches: Iterable[bytes], received_ns: int | None = None
) -> Segment:
    """`received_ns`: when they came, if that is not at the start of all times that are made here."""
    received_ns = START + number if received_ns is None else received_ns
    folder.mkdir(parents=True, exist_ok=True)
    unfinished, path = folder / f"{number:08d}.log", folder / f"{number:08d}.sealed"
    unfinished.write_bytes(b"".join(pack_record(received_ns, batch) for batch in batches))
    unfinished.rename(path)
    return Segment(number, path)


def write_old(path: Path, batches: Iterable[bytes]) -> None:
    """A segment as the first versions wrote it: length, checksum, time, batch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stamp = struct.pack("<Q", START)
    records = [
        struct.pack("<II", len(batch), zlib.crc32(batch, zlib.crc32(stamp))) + stamp + batch
        for batch in batches
    ]
    path.write_bytes(b"".join(records))


def seconds(first: int, count: int) -> list[int]:
    return [START + (first + tick) * SECOND for tick in range(count)]


def fleet_segment(
    folder: Path, number: int, nodes: int = 3, ticks: int = 4, jobs: Iterable[Running] = ()
) -> Segment:
    """The same for each number but for the times, which go on from segment to segment."""
    batches = []
    running = list(jobs)
    for name in (f"n{node}" for node in range(nodes)):
        for part in range(2):
            times = seconds(number * 2 * ticks + part * ticks, ticks)
            batches.append(encode(name, number * 2 + part, node_samples(name, times, running), running))
    return write_segment(folder, number, batches)


def shared_nodes(times: Iterable[int]) -> dict[str, tuple[list[Sample], list[Running]]]:
    """On one node two jobs of one user and one of another; on the other the first of these.

    That one has more cores and other columns. Both have the same processes, one of which is no job's. No two
    rows have the same values.
    """
    jobs = [Running("17", "alice", 1000), Running("18", "alice", 1000), Running("19", "bob", 1001)]
    first, second = node_samples("n1", times, jobs, 2), node_samples("n2", times, jobs[:1], 5)
    return {
        "n1": ([_tell_apart(sample, 1) for sample in first], jobs),
        "n2": ([_tell_apart(_on_other_kernel(sample), 2) for sample in second], jobs[:1]),
    }


def _on_other_kernel(sample: Sample) -> Sample:
    if sample.rows.schema is not LOAD:
        return sample
    return sample._replace(rows=Rows(OTHER_LOAD, ((),), sample.rows.values[:2]))


def _tell_apart(sample: Sample, node: int) -> Sample:
    schema, keys, values = sample.rows.schema, sample.rows.keys, list(sample.rows.values)
    if schema is OWNED_PROCESS:
        keys = (*keys, ("", "", "", "", 99, *keys[0][5:]))
        values += values[: len(schema.columns)]
    told = [
        value if value == ABSENT else value + 1000 * number + 1_000_000 * node
        for number, value in enumerate(values)
    ]
    return sample._replace(rows=Rows(schema, keys, told))
