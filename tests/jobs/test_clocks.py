"""Nodes whose clocks are wrong: a record says so, for their samples do not fit to the job's times."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from joblens.hub.clocks import Clocks as HubClocks
from joblens.hub.limits import Bucket
from joblens.hub.nodes import Node
from joblens.jobs.clocks import Clocks, _load

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
    written.look(node, "b1")
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
