"""One odd batch from a node: every sink goes on, and what is sound beside it is stored.

A batch that a sink could not get past would be tried again for all time, and hold back all nodes.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from joblens.core.model import ABSENT, GAUGE, Column, Key, Rows, Sample, Schema
from joblens.hub.live import describe
from joblens.hub.sink import Sink
from joblens.hub.sinks.csv_tree import CsvSink
from joblens.hub.sinks.lake import LakeSink
from joblens.hub.sinks.remote_write import RemoteWriteSink, Server
from joblens.store.home import find_home, make_home
from joblens.wire.frame import MAGIC, pack

from .made import START, Running, encode, node_samples, seconds, write_segment
from .test_kafka import form
from .test_remote_write import FakeServer, running

ALICE = Running("17", "alice", 1000)
_HUGE = 10**400
_WORD = 1 << 63
_LONG = "x" * 5000


def one(set_name: str, labels: tuple[str, ...], key: Key, column: Column, value: int = 1) -> Sample:
    return Sample(START, Rows(Schema(set_name, labels, (column,)), (key,), [value]))


PLAIN = Column("a", GAUGE, "")
ODD = {
    **{
        f"units {len(str(factor))} {len(str(divisor))}": [
            one(f"x{number}", (), (), Column("a", GAUGE, "", factor, divisor), value)
            for number, value in enumerate((0, 5, -5, _WORD - 1, 1 - _WORD, ABSENT))
        ]
        for factor in (0, -7, 10**18, _WORD, _HUGE)
        for divisor in (0, 1, 3, 10**9, 10**19, _HUGE)
    },
    "path": [one("../../x", (), (), PLAIN)],
    "long": [one(_LONG, (_LONG,), (_LONG,), Column(_LONG, GAUGE, ""))],
    "no name": [one("", (), (), PLAIN)],
    "lines": [one("a\nb\0", ("l",), ("a\nb\0",), PLAIN)],
    "no text": [one("a\ud800", ("l\ud800",), ("a\ud800",), Column("a\ud800", GAUGE, ""))],
    "quotes": [one("d\"';--", ('k"',), ("a",), Column("a\"'", GAUGE, ""))],
    "numbers as names": [one("job", ("cluster", "jobid", "node"), (1, 2, 3), PLAIN)],
    "long names": [one("job", ("cluster", "jobid", "node"), (_LONG, _LONG, _LONG), PLAIN)],
    "in 1970": [one("d", (), (), PLAIN)._replace(time_ns=0)],
    "kind": [one("d", (), (), Column("a", "weird", ""))],
}


@pytest.mark.parametrize("samples", ODD.values(), ids=ODD.keys())
def test_no_sink_is_held_up(samples: list[Sample], tmp_path: Path) -> None:
    sound = encode("n2", 1, node_samples("n2", seconds(0, 2), [ALICE]), [ALICE])
    odd = [encode("n1", number, [sample], [ALICE]) for number, sample in enumerate(samples)]
    segment = write_segment(tmp_path / "journal", 1, [*odd, sound])
    fake = FakeServer()
    with running(fake):
        server = Server(fake.url, timeout=10.0)
        sinks: list[Sink] = [
            CsvSink(tmp_path / "tree", tmp_path / "undo"),
            LakeSink("h1", make_home(find_home(tmp_path / "home"))),
            RemoteWriteSink(server, tmp_path / "sent"),
        ]
        for sink in sinks:
            sink.recover(0)
            sink.take(segment)
        server.close()
    for kind in ("json", "avro"):
        made = [form(format=kind).messages(record) for record in segment.records()]
        assert [message.key for message in made[-1].messages] == ["n2"] * made[-1].taken.rows
        assert made[-1].taken.rows > 0
    assert (tmp_path / "tree" / "alice" / "17" / "n2" / "load.csv").read_text().count("\n") == 3
    assert list((tmp_path / "home" / "lake" / "set=load").rglob("*.parquet"))
    assert any(("node", "n2") in labels for labels in fake.found())


def still(labels: list[str], keys: list[list[str]], ticks: int, jobs: int = 1) -> bytes:
    """A batch in which nothing changes from tick to tick: some KB, however many rows there are."""
    header = {"version": 1, "cluster": "lab", "node": "n1", "boot": "b", "sequence": 1}
    header["jobs"] = [["lab", str(number), "n1", "alice", 1000] for number in range(17, 17 + jobs)]
    described = {"set": "x", "labels": labels, "columns": [["a", GAUGE, 1, 1]], "keys": keys}
    words = ticks + len(keys)  # the first of them is the first time
    planes = b"".join(bytes((START >> 8 * place & 255,)) + bytes(words - 1) for place in range(8))
    numbers = struct.pack("<III", ticks, len(keys), 0) + planes
    return MAGIC + b"".join(map(pack, (json.dumps(header).encode(), json.dumps(described).encode(), numbers)))


WHOSE = ["cluster", "jobid", "node"]
LARGE = {
    "rows": still([], [[]], 8_000_000),
    "rows with labels": still([f"l{number}" for number in range(1000)], [["a"] * 1000], 100_000),
    "rows with long text": still([*WHOSE, "l"], [["lab", "17", "n1", "x" * 1_000_000]], 10_000),
    "rows for many jobs": still([], [[]], 100_000, jobs=20_000),
}


@pytest.mark.parametrize("batch", LARGE.values(), ids=LARGE.keys())
@pytest.mark.parametrize("kind", ["csv", "lake"])
def test_small_batches_that_would_be_large(batch: bytes, kind: str, tmp_path: Path) -> None:
    """They are left out, and what comes with them is stored: memory for them there is none."""
    assert len(batch) < 300_000
    sound = encode("n2", 1, node_samples("n2", seconds(0, 2), [ALICE]), [ALICE])
    segment = write_segment(tmp_path / "journal", 1, [batch, sound])
    home = make_home(find_home(tmp_path / "home"))
    sink: Sink = CsvSink(tmp_path / "tree", tmp_path / "undo") if kind == "csv" else LakeSink("h1", home)
    sink.recover(0)
    taken = sink.take(segment)
    is_copied = batch is LARGE["rows for many jobs"]  # only where each job has its own files
    assert taken.dropped == (0 if is_copied and kind == "lake" else 1)
    assert taken.rows >= 4
    stored = tmp_path / ("tree/alice/17/n2" if kind == "csv" else "home/lake/set=load")
    assert list(stored.rglob("*"))


@pytest.mark.parametrize(
    "column",
    [PLAIN, Column("cpu_seconds", GAUGE, "", 1, 0), Column("cpu_seconds", GAUGE, "", _HUGE, 3)],
    ids=["other columns", "nothing to divide by", "huge"],
)
def test_the_live_view_of_all_nodes(column: Column) -> None:
    """It is without the node whose set is none of ours."""
    assert (
        describe(encode("n1", 1, [one("job", ("cluster", "jobid", "node"), ("lab", "1", "n1"), column)]))
        == []
    )
