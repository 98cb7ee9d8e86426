"""Records of jobs whose samples the hub has stored: the same from an excerpt as from the whole lake."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hub.made import START, Running, encode, node_samples, seconds, write_segment
from joblens.core.config import JobsSettings
from joblens.hub.sinks.lake import LakeSink
from joblens.jobs.finish import Ended, finish, make_record
from joblens.jobs.follow import Follower
from joblens.jobs.state import State
from joblens.record.fields import read
from joblens.record.job import Resources, Step
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.slurm.client import Slurm
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import JobFilter
from joblens.store.home import Home, find_home, make_home
from joblens.store.lake.lake import Lake
from joblens.store.lake.watermarks import Arrivals
from joblens.store.reader import LakeReader
from plain_records import stored

BEGIN = START / 1e9


def store_segments(home: Home, journal: Path, segments: int, nodes: int = 3) -> None:
    """Jobs 17 and 18 on all nodes, all of the time."""
    sink = LakeSink("h1", home)
    running = [Running("17", "alice", 1000), Running("18", "bob", 1001)]
    for number in range(1, segments + 1):
        times = seconds(number * 10, 10)
        batches = [
            encode(f"n{node}", number, node_samples(f"n{node}", times, running), running)
            for node in range(nodes)
        ]
        sink.take(write_segment(journal, number, batches))


def job(id: str, first: float, last: float, nodes: tuple[str, ...] = ("n0", "n1")) -> BatchJob:
    return BatchJob(
        "lab",
        id,
        "slurm",
        user="alice",
        state="COMPLETED",
        exit_code=0,
        start=BEGIN + first,
        end=BEGIN + last,
        nodes=nodes,
        allocated=Resources(len(nodes), 4.0, 1 << 30, None, "cpu=4"),
        user_seconds=3.0,
        system_seconds=1.0,
        steps=(Step("batch", memory_peak_bytes=5, nodes=nodes),),
    )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(find_home(tmp_path / "store"))


def test_excerpt_is_as_good_as_the_lake(home: Home, tmp_path: Path) -> None:
    store_segments(home, tmp_path / "journal", 5)
    some = [
        job("17", 10, 59),
        job("18", 20, 40),
        job("17", 12, 30, ("n2",)),
        job("99", 10, 59),
        job("98", 10, 59, ("n7",)),
    ]
    assert finish(home, tmp_path / "x", [Ended(it) for it in some]) == ([], "")
    assert not (tmp_path / "x").exists()
    catalog = Catalog(home)
    reader = LakeReader(Lake(home.lake))
    assert len(catalog.jobs(JobFilter(limit=0))) == 5
    for it in some:
        found = catalog.report(("lab", it.id, it.start or 0.0))
        expected = stored(make_record(it, reader))
        for part in ("job", "used", "asked", "verdict", "timeline", "processes", "nodes", "gaps", "data"):
            assert found[part] == expected[part], part
    assert catalog.report(("lab", "17", BEGIN + 10))["data"]["samples"] > 80
    for id in ("99", "98"):  # nobody saw it on nodes that were looked at, or nobody looked
        found = catalog.report(("lab", id, BEGIN + 10))
        assert (found["used"]["memory_peak_bytes"], found["used"]["memory_from"]) == (5, "accounting")
    assert found["data"]["samples"] == 0
    catalog.close()


def test_arrivals(home: Home, tmp_path: Path) -> None:
    """Up to when there are samples, of nodes and of jobs, as files come."""
    arrivals = Arrivals(Lake(home.lake))
    arrivals.look()
    assert arrivals.of_node("n0") == 0.0
    store_segments(home, tmp_path / "journal", 1)
    arrivals.look()
    assert arrivals.of_node("n0") == arrivals.of_node("n0.example.org") == BEGIN + 19
    store_segments(home, tmp_path / "journal", 3, nodes=2)
    arrivals.look()
    assert (arrivals.of_node("n0"), arrivals.of_node("n2")) == (BEGIN + 39, BEGIN + 19)
    assert arrivals.of_node("n9") == 0.0


def test_arrivals_after_a_pause(home: Home, tmp_path: Path) -> None:
    """A follower that was away for a day finds samples that the hub has stored meanwhile."""
    store_segments(home, tmp_path / "journal", 1)
    before = time.time() - 86_400
    for path in home.lake.rglob("*.parquet"):
        os.utime(path, (before, before))
    folder = tmp_path / "jobs"
    folder.mkdir()
    state = State(folder)
    state.since = before - 600
    state.save()
    follower = Follower(Slurm(), home, folder, "h1", JobsSettings(), print)
    follower.newest.look()
    assert follower.newest.of_node("n0") == BEGIN + 19
    state.since = time.time()
    state.save()
    follower = Follower(Slurm(), home, folder, "h1", JobsSettings(), print)
    follower.newest.look()
    assert follower.newest.of_node("n0") == 0.0


def test_long_names(home: Home, tmp_path: Path) -> None:
    """An agent that calls its node by its name in DNS: its looks at the node are found for a record, too."""
    sink, running = LakeSink("h1", home), [Running("17", "alice", 1000)]
    name = "n0.example.org"
    batches = [
        encode(name, 1, node_samples(name, seconds(10, 10), running), running),
        encode(name, 2, node_samples(name, seconds(20, 20), [])),  # nothing of it is there any more
    ]
    sink.take(write_segment(tmp_path / "journal", 1, batches))
    it = job("17", 12, 30, ("n0",))
    assert finish(home, tmp_path / "x", [Ended(it)]) == ([], "")
    catalog = Catalog(home)
    found = catalog.report(("lab", "17", it.start or 0.0))
    catalog.close()
    expected = stored(make_record(it, LakeReader(Lake(home.lake))))
    assert found["gaps"] == []
    for part in ("used", "nodes", "gaps", "data"):
        assert found[part] == expected[part], part


def test_facts_as_json() -> None:
    found = job("17", 10, 59)
    assert read(found.to_dict(), BatchJob) == found
    assert read({**found.to_dict(), "later": 1}, BatchJob) == found
    assert "qos" not in found.to_dict()
