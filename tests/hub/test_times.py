"""Rows whose time is far from the arrival of their batch are left out by every sink, counted and reported."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from joblens.core.model import GAUGE, Column, Rows, Sample, Schema
from joblens.hub.batch_reader import NEWEST_DAYS, OLDEST_DAYS
from joblens.hub.cursors import load_cursor
from joblens.hub.runner import UNTIMELY, Runner
from joblens.hub.segments import Segment, pack_record
from joblens.hub.sink import Place, Sink, Work, load_status
from joblens.hub.sinks.csv_tree import CsvSink
from joblens.hub.sinks.kafka import Form, Options
from joblens.hub.sinks.lake import LakeSink
from joblens.hub.sinks.remote_write import RemoteWriteSink, Server
from joblens.store.home import find_home, make_home
from joblens.wire.frame import MAGIC, pack

from .made import CPU, LOAD, SECOND, START, Running, encode, node_samples, seconds, write_segment

DAY = 86_400 * SECOND
JOB = Running("17", "alice", 1000)


class Taking(Server):
    def send(self, body: bytes) -> None:
        """As a server that takes everything."""


def lake(folder: Path) -> Sink:
    return LakeSink("h1", make_home(find_home(folder / "home")))


def tree(folder: Path) -> Sink:
    return CsvSink(folder / "tree", folder / "undo")


def remote(folder: Path) -> Sink:
    return RemoteWriteSink(Taking("http://127.0.0.1:1"), folder / "sent")


def loads(times: list[int]) -> list[Sample]:
    return [Sample(time_ns, Rows(LOAD, ((),), [1, 2, 3])) for time_ns in times]


def many_days(days: int) -> bytes:
    """As a hostile node can send it: what does not change takes no room."""
    step = b"".join(struct.pack("<q", it)[byte : byte + 1] for byte in range(8) for it in steps(days))
    described = {"set": "load", "labels": [], "columns": [["a", "gauge", 1, 1]], "keys": [[]]}
    header = {"version": 1, "cluster": "lab", "node": "n1", "boot": "b", "sequence": 1,
              "jobs": [["lab", "17", "n1", "alice", 1000]]}  # fmt: skip
    numbers = struct.pack("<III", days, 1, 0) + step
    sections = json.dumps(header).encode(), json.dumps(described).encode(), numbers
    return MAGIC + b"".join(map(pack, sections))


def steps(days: int) -> list[int]:
    return [START - days * DAY // 2, *[DAY] * (days - 1), 7]


@pytest.mark.parametrize("make", [lake, tree, remote])
def test_a_small_batch_with_many_days(make: Callable[[Path], Sink], tmp_path: Path) -> None:
    """It makes few files, every row is stored or counted for its node, and other nodes are stored."""
    message = many_days(2000)
    assert len(message) < 600
    others = encode("n2", 1, node_samples("n2", seconds(0, 3), [JOB]), [JOB])
    sink = make(tmp_path)
    sink.recover(0)
    taken = sink.take(write_segment(tmp_path / "journal", 1, [message, others]))
    alone = make(tmp_path / "alone")
    alone.recover(0)
    expected = alone.take(write_segment(tmp_path / "alone" / "journal", 1, [others]))
    stored = taken.rows - expected.rows
    assert 0 <= stored <= 4
    assert taken.untimely == (("lab", "n1", 2000 - stored),)
    assert taken.dropped == expected.dropped + 2000 - stored
    assert len(list(tmp_path.glob("home/lake/*/*/*.parquet"))) <= 4 + 4


def test_rows_to_kafka(tmp_path: Path) -> None:
    """Those that become messages of their own; whole batches are left to the hub that takes them."""

    class Topics:
        @staticmethod
        def topic(name: str) -> str:
            return name

    record = next(write_segment(tmp_path, 1, [many_days(2000)]).records())
    found = Form(Topics(), Options()).messages(record)  # type: ignore[arg-type]
    assert len(found.messages) <= 4
    assert found.taken.untimely == (("lab", "n1", 2000 - len(found.messages)),)
    whole = Form(Topics(), Options(format="batch")).messages(record)  # type: ignore[arg-type]
    assert [message.value for message in whole.messages] == [record.batch]


@pytest.mark.parametrize(
    ("offset", "is_stored"),
    [
        (0, True),
        (-(OLDEST_DAYS - 1) * DAY, True),
        (-(OLDEST_DAYS + 1) * DAY, False),
        (NEWEST_DAYS * DAY - 60 * SECOND, True),
        ((NEWEST_DAYS + 1) * DAY, False),
        (-START, False),
    ],
)
@pytest.mark.parametrize("make", [lake, tree, remote])
def test_what_a_spool_may_hold(
    make: Callable[[Path], Sink], tmp_path: Path, offset: int, is_stored: bool
) -> None:
    """A node that was cut off for weeks loses nothing; of a clock that is far off, nothing is stored."""
    samples = loads([START + offset + tick * SECOND for tick in range(3)])
    sink = make(tmp_path)
    sink.recover(0)
    taken = sink.take(write_segment(tmp_path, 1, [encode("n1", 1, samples, [JOB])]))
    assert (taken.rows > 0) == is_stored
    assert taken.untimely == (() if is_stored else (("lab", "n1", 3),))


def test_a_clock_that_is_set_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    """What was sampled before the clock was right is left out, and what came after it is stored."""
    samples = loads([100 * SECOND, 101 * SECOND, START, START + SECOND])
    taken = lake(tmp_path).take(write_segment(tmp_path, 1, [encode("n1", 1, samples)]))
    assert (taken.rows, taken.untimely) == (2, (("lab", "n1", 2),))


def test_a_hub_whose_clock_is_not_set(tmp_path: Path) -> None:
    """It cannot judge the clocks of others: all is stored."""
    path = tmp_path / "00000001.sealed"
    path.write_bytes(pack_record(1000 * SECOND, encode("n1", 1, loads(seconds(0, 4)))))
    taken = lake(tmp_path).take(Segment(1, path))
    assert (taken.rows, taken.dropped) == (4, 0)


@pytest.mark.parametrize("make", [lake, tree, remote])
def test_a_batch_with_very_many_sets(make: Callable[[Path], Sink], tmp_path: Path) -> None:
    """Each would be a folder of the lake. The batch is left out, the next one is stored."""
    kinds = [Schema(f"s{number}", (), (Column("a", GAUGE, ""),)) for number in range(300)]
    batches = [
        encode("n1", 1, [Sample(START, Rows(kind, ((),), [1])) for kind in kinds], [JOB]),
        encode("n1", 2, loads(seconds(0, 1)), [JOB]),
    ]
    sink = make(tmp_path)
    sink.recover(0)
    taken = sink.take(write_segment(tmp_path, 1, batches))
    assert taken.dropped == 1
    assert "sets" in taken.problems[0]
    assert taken.rows > 0
    assert not list(tmp_path.glob("home/lake/set=s*"))


def test_counted_by_node_and_reported_once(tmp_path: Path) -> None:
    """In the cursor, so that a segment counts once; in the log once for each node; on the hub's page."""
    place = Place("lake", tmp_path / "hub", "h1")
    for folder in (place.cursor.parent, place.status.parent):
        folder.mkdir(parents=True)
    far = {node: encode(node, 1, loads([START - 50 * DAY])) for node in ("n1", "n2")}
    sound = encode("n3", 1, [Sample(START, Rows(CPU, (("cpu0",),), [1, 2]))])
    said: list[str] = []
    work = Work(place, "lake", lake(tmp_path), said.append)
    write_segment(place.journal, 1, [far["n1"], far["n1"], sound])
    work.step()
    write_segment(place.journal, 2, [far["n1"], far["n2"]])
    work.step()
    assert load_cursor(place.cursor).untimely == (("lab", "n1", 3), ("lab", "n2", 1))
    assert load_cursor(place.cursor).dropped == 4
    assert [line.partition(" are left out")[0] for line in said] == [
        "sink lake: 2 rows of node n1 of cluster lab",
        "sink lake: 1 rows of node n2 of cluster lab",
    ]
    assert load_status(place).cursor.untimely == (("lab", "n1", 3), ("lab", "n2", 1))
    options: dict[str, Any] = {}
    runner = Runner(place.home, {"lake": ("lake", options)}, said.append)
    (rows,) = [rows for rows in runner.rows() if rows.schema is UNTIMELY]
    assert dict(zip(rows.keys, rows.values)) == {("lake", "lab", "n1"): 3, ("lake", "lab", "n2"): 1}


def test_very_many_nodes_are_counted_together(tmp_path: Path) -> None:
    """What the cursor holds is bounded, and the sum is right."""
    batches = [encode(f"n{number}", 1, loads([5])) for number in range(1100)]
    taken = lake(tmp_path).take(write_segment(tmp_path, 1, batches))
    assert len(taken.untimely) == 1001
    assert sum(rows for *_, rows in taken.untimely) == taken.dropped == 1100
    assert taken.untimely[-1] == ("", "other nodes", 100)
