"""Agents, hub and sinks are killed, bits flip in their files: every row is stored once, or named in a gap.

JOBLENS_CRASHES says how many kills and how many damaged files, JOBLENS_SEED which ones.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from damage import damage_file, load_gaps
from joblens.store.lake.damage import Lost
from joblens.store.lake.lake import Lake
from joblens.store.maintenance import check_lake
from joblens.wire.batch import decode
from waiting import wait_for

from .cluster import Cluster, Node, Row, rows_of

CRASHES = int(os.environ.get("JOBLENS_CRASHES", "10"))
SINKS = ("lake", "csv")
RECORDED = Path(__file__).parent.parent / "nodes" / "slurm-cgroup-v1"

_SEED = 602013  # `make crash` takes another each time


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("JOBLENS_SEED", _SEED))
    print(f"JOBLENS_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Its agents see a recorded machine with two jobs, so that they take no notice of what runs here."""
    with ExitStack() as stack:
        made = Cluster(stack, tmp_path)
        for node in made.nodes.values():
            node.words = ("--root", str(RECORDED))
        yield made


def test_kills(cluster: Cluster, chance: random.Random) -> None:
    """Whoever is killed at whatever moment. What an agent had only in memory lies in a gap of its own."""
    cluster.start()
    killed: Counter[str] = Counter()
    for _ in range(CRASHES):
        who = chance.choice(("agent", "hub", *SINKS))
        killed[who] += 1
        time.sleep(chance.uniform(0.0, 0.8))
        if who == "agent":
            node = chance.choice(list(cluster.nodes.values()))
            wait_for_life(node)
            node.kill()
            node.start()
        elif who == "hub":
            cluster.kill_hub()
            cluster.start_hub()
        else:
            cluster.kill_sink(who)
    print(dict(killed))
    cluster.run_for(2)
    cluster.drain()
    expected = cluster.check()
    for node in cluster.nodes.values():
        stored = {row.time_ns for row in expected if row.node == node.name}
        gaps = [(gap["from_ns"], gap["to_ns"]) for gap in cluster.gaps() if gap["node"] == node.name]
        lost = [tick for tick in node.ticks() - stored if not any(a <= tick <= b for a, b in gaps)]
        assert not lost, f"{node.name}: {len(lost)} ticks are neither stored nor in a gap: {lost[:5]} {gaps}"


def wait_for_life(node: Node) -> None:
    """So that each kill is of an agent that has begun: before, there is nothing to lose, and no gap."""
    before = node.count_kept()
    wait_for(f"a batch of {node.name}", lambda: node.count_kept() > before)


class Kept(NamedTuple):
    """A batch that was in a spool."""

    node: str
    boot: str
    sequence: int
    rows: list[Row]


def kept(cluster: Cluster) -> Iterator[Kept]:
    for node in cluster.nodes.values():
        for path in sorted((node.folder / "kept").iterdir()):
            header, samples = decode(path.read_bytes())
            rows = [row for sample in samples for row in rows_of(sample, node.name)]
            yield Kept(node.name, header["boot"], header["sequence"], rows)


def test_damage(cluster: Cluster, chance: random.Random) -> None:
    """Of spools, journal and lake. The rest of each file's neighbours is there, and nothing twice."""
    cluster.start()
    for node in cluster.nodes.values():  # so that labels are known though a batch be lost
        for sample in node.samples():
            cluster.labels.setdefault(sample.rows.schema.set, set()).update(sample.rows.schema.labels)
    damaged: Counter[str] = Counter()
    while sum(damaged.values()) < CRASHES:
        cluster.run_for(1)
        wait_for("rows in the lake", lambda: files_of(cluster, "lake"))
        cluster.kill_hub()
        for place in ("journal", "lake"):
            for path in some_of(files_of(cluster, place), chance, 2):
                damaged[place] += damage_file(path, chance)
        cluster.run_for(2)  # which waits in the spools
        for node in cluster.nodes.values():
            anew = chance.random() < 0.5
            if anew:
                node.kill()
            for path in some_of(node.spooled(), chance, 1):
                damaged["spool"] += damage_file(path, chance)
            if anew:
                node.start()
        cluster.start_hub()
    print(dict(damaged))
    nodes = cluster.nodes.values()
    wait_for("what waits", lambda: all(len(node.spooled()) < 2 for node in nodes))
    wait_for("gaps that are told", lambda: not any(untold(node) for node in nodes))
    cluster.drain()
    check_damaged(cluster)


def untold(node: Node) -> bool:
    """An agent tells of a gap once it has not grown for some batches."""
    path = node.folder / "spool" / "gaps.json"
    return path.exists() and path.read_bytes() != b"[]"


def some_of(paths: list[Path], chance: random.Random, count: int) -> list[Path]:
    return chance.sample(paths, min(count, len(paths)))


def files_of(cluster: Cluster, place: str) -> list[Path]:
    if place == "journal":
        return sorted((cluster.disk / "hub" / "journal").glob("*.sealed"))
    lake = Lake(cluster.disk / "store" / "lake")
    return [path for name in ("load", "cpu", "job") for path in lake.files(name)]


def check_damaged(cluster: Cluster) -> None:
    lake = Lake(cluster.disk / "store" / "lake")
    check_lake(lake)
    gaps, of_lake = cluster.gaps(), load_gaps(cluster.disk / "store")
    found = cluster.in_lake()
    assert max(found.values()) == 1
    lost = []
    for batch in kept(cluster):
        missing = [row for row in batch.rows if row not in found]
        if any(names_batch(gap, batch) for gap in gaps):
            continue
        unnamed = [row for row in missing if not any(names_row(gap, row) for gap in of_lake)]
        if unnamed:
            lost.append(f"{batch.node} {batch.sequence}: {len(unnamed)} of {len(batch.rows)} rows")
    assert not lost, "\n".join([*lost, *map(str, gaps), *map(str, of_lake), cluster.said()])
    assert gaps or of_lake, "nothing was damaged"


def names_batch(gap: dict[str, Any], batch: Kept) -> bool:
    if gap["kind"] == "damage" and "node" not in gap:
        return False
    whose = gap.get("node"), gap.get("boot")
    return whose == (batch.node, batch.boot) and gap["first"] <= batch.sequence <= gap["last"]


def names_row(gap: Lost, row: Row) -> bool:
    """By its set and time; where the footer is damaged too, by its set and day."""
    if gap["set"] != row.set:
        return False
    if "from" not in gap:
        day = datetime.fromtimestamp(row.time_ns / 1e9, timezone.utc).strftime("%Y-%m-%d")
        return bool(gap["date"] == day)
    first, last = (
        datetime.fromisoformat(gap[name][:26]).replace(tzinfo=timezone.utc) for name in ("from", "to")
    )
    return first.timestamp() - 1e-3 <= row.time_ns / 1e9 <= last.timestamp() + 1e-3
