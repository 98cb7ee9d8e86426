"""Nodes whose clocks are wrong: a record says so, for their samples do not fit to the job's times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.made import Running, encode, node_samples, seconds, write_segment
from joblens.hub.limits import Bucket
from joblens.hub.nodes import Node
from joblens.hub.receive import Clocks as HubClocks
from joblens.hub.sinks.lake import LakeSink
from joblens.jobs.clocks import Clocks, _load
from joblens.jobs.finish import Ended, finish
from joblens.record.job import Resources
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.index import Catalog
from joblens.store.home import Home, find_home, make_home
from joblens.store.lake.lake import Lake, as_table

from .made import Site


def line(time: float, node: str, offset: float, wrong: bool = True) -> str:
    return (
        json.dumps({"kind": "clock", "time": time, "node": node, "offset_seconds": offset, "wrong": wrong})
        + "\n"
    )


def test_what_held_while_it_ran(tmp_path: Path) -> None:
    path = tmp_path / "clocks.jsonl"
    clocks = Clocks(path)
    clocks.look()
    assert clocks.say("c1", 0, 1e9) == ""
    path.write_text(
        line(100, "c1.example.org", 40) + line(200, "c1", 0.1, False) + line(300, "c2", -90) + '{"kin'
    )
    clocks.look()
    assert "c1 was 40 s behind" in clocks.say("c1", 150, 160)
    assert "too early" in clocks.say("c1", 50, 120)
    assert "40 s" in clocks.say("c1", 199, 250)
    assert clocks.say("c1", 50, 99) == clocks.say("c1", 201, 500) == clocks.say("c2", 100, 299) == ""
    assert "1 min 30 s ahead" in clocks.say("c2", 250, 400)
    assert "too late" in clocks.say("c2", 1000, 2000)


def test_as_the_hub_writes_it(tmp_path: Path) -> None:
    written = HubClocks(tmp_path / "clocks.jsonl", print)
    node = Node("fox", "c1", Bucket(1.0, 1.0))
    node.offset, node.clock_noted = 40.0, -1e9
    written.check(node, "b1")
    written.save()
    clocks = Clocks(tmp_path / "clocks.jsonl")
    clocks.look()
    assert "c1 was 40 s behind" in clocks.say("c1", 0, 4e9)


def test_a_record_tells(tmp_path: Path) -> None:
    site = Site(tmp_path)
    cluster = site.cluster
    (site.folder.parent / "clocks.jsonl").write_text(line(cluster.now - 500, "c2", 40))
    ids = [cluster.submit(("c1", "c2")), cluster.submit(("c1",))]
    for id in ids:
        cluster.start(id)
    site.turn()
    for id in ids:
        cluster.end(id)
    site.turn()
    both, one = (site.record(id)["data"]["problems"] for id in ids)
    assert [it for it in both if "clock of node c2 was 40 s behind" in it]
    assert not [it for it in one if "clock" in it]


@given(st.binary())
def test_any_file(data: bytes) -> None:
    for changes in _load(data).values():
        assert all(isinstance(it, float) for change in changes for it in change)


@pytest.mark.parametrize("ahead", [-300.0, -60.0, -7.0, -1.5, -0.4, 0.4, 1.5, 7.0, 60.0, 300.0])
def test_samples_of_another_clock(tmp_path: Path, ahead: float) -> None:
    """The controller's clock is so much ahead of the node's. No row is lost, and nothing is less than 0."""
    home = make_home(find_home(tmp_path / "store"))
    running = [Running("17", "alice", 1000)]
    times = seconds(100, 41)
    batch = encode("n0", 1, node_samples("n0", times, running), running)
    LakeSink("h1", home).take(write_segment(tmp_path / "journal", 1, [batch]))
    before = count_rows(home)
    assert before == [len(times)] * 3
    start, end = times[0] / 1e9 + ahead, times[-1] / 1e9 + ahead
    job = BatchJob(
        "lab", "17", "slurm", "alice", state="COMPLETED", exit_code=0, submit=start - 1, start=start, end=end,
        nodes=("n0",), allocated=Resources(1, 4.0, 1 << 30), user_seconds=3.0, system_seconds=1.0,
    )  # fmt: skip
    assert finish(home, tmp_path / "x", [Ended(job)]) == ([], "")
    assert count_rows(home) == before
    catalog = Catalog(home)
    record = catalog.report(("lab", "17", start))
    catalog.close()
    assert find_negative(record) == []
    assert (record["job"]["start"], record["job"]["end"]) == (start, end)
    assert record["used"]["duration_seconds"] == 40.0
    (node,) = record["nodes"]
    inside = [it for it in times if start <= it / 1e9 <= end]
    assert len(inside) - 1 <= node["samples"] <= len(inside) + 1
    for name in ("gaps", "timeline"):
        ends = [(it.start, it.end) for it in record[name]]
        assert all(start <= first <= last <= end + 1 for first, last in ends)
        assert ends == sorted(ends)
    text = render_report(record, Style(False))
    assert "-" not in [word[0] for word in text.split() if word[1:2].isdigit()], text


def count_rows(home: Home) -> list[int]:
    lake = Lake(home.lake)
    with duckdb.connect() as connection:
        tables = [as_table(lake.files(name)) for name in ("job", "load", "process")]
        return [len(connection.execute(f"SELECT time FROM {table}").fetchall()) for table in tables]


def find_negative(found: Any, path: str = "") -> list[str]:
    if isinstance(found, dict):
        return [bad for name, it in found.items() for bad in find_negative(it, f"{path}/{name}")]
    if isinstance(found, list):
        return [bad for number, it in enumerate(found) for bad in find_negative(it, f"{path}/{number}")]
    return [path] if isinstance(found, (int, float)) and found < 0 else []
