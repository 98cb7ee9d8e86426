"""The sink `kafka` against a broker: every row once, whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pytest

from hub.made import encode, seconds, shared_nodes
from hub.series import Series, assert_equal, labels_of, make_labels, of_lake
from joblens.hub.kafka.schema import AVRO
from joblens.hub.sink import Place
from joblens.hub.sinks.kafka import Options, open_sink
from joblens.hub.sinks.lake import LakeSink
from joblens.store.home import find_home, make_home
from waiting import PATIENCE, wait_for

from .broker import Broker, MockBroker
from .made import START, TICKS, Ends, has_topic, make_batch, read_topic, topic_settings, write_segment


def options(address: str, prefix: str, **other: Any) -> Options:
    return Options(brokers=address, prefix=prefix, **other)


def values(address: str, topic: str, isolation: str = "read_committed") -> list[dict[str, Any]]:
    return [json.loads(message.value() or b"") for message in read_topic(address, topic, isolation)]


def test_notes_are_compacted(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """Their topic is created with its settings: else the broker would make it with those of data, and in time
    delete the positions."""
    open_sink(Place("kafka", tmp_path, "h1"), options(broker.address, prefix)).recover(0)
    found = topic_settings(broker.address, f"{prefix}.cursors")
    assert (found["cleanup.policy"], found["segment.ms"]) == ("compact", "600000")


def test_rows_as_json(any_broker: Broker | MockBroker, prefix: str, tmp_path: Path) -> None:
    """One topic per set, one message per row, in base units, the key is the node, unknown is left out."""
    sink = open_sink(Place("kafka", tmp_path, "h1"), options(any_broker.address, prefix))
    sink.recover(0)
    taken = sink.take(write_segment(tmp_path / "journal", 1, [make_batch("n1", 0), make_batch("n2", 0)]))
    assert (taken.rows, taken.values, taken.dropped) == (2 * TICKS * 6, 2 * TICKS * 12, 0)
    found = list(read_topic(any_broker.address, f"{prefix}.cpu"))
    assert Counter(message.key() for message in found) == {b"n1": TICKS * 4, b"n2": TICKS * 4}
    rows = {
        (row["node"], row["time"], row["cpu"]): row
        for row in (json.loads(message.value() or b"") for message in found)
    }
    assert len(rows) == 2 * TICKS * 4
    assert rows["n2", START + 3, 1] == {
        "cluster": "lab", "node": "n2", "set": "cpu", "cpu": 1, "time": START + 3,
        "user_seconds": 0.32, "switches": 33,
    }  # fmt: skip
    jobs = {
        (row["node"], row["jobid"], row["time"]): row for row in values(any_broker.address, f"{prefix}.job")
    }
    assert len(jobs) == 2 * TICKS * 2
    assert jobs["n1", "7", START + 1]["rss_bytes"] == 1024
    assert jobs["n1", "7", START + 1]["x"] == 1
    assert "x" not in jobs["n1", "8", START + 1]


def test_rows_as_avro_on_one_topic(any_broker: Broker | MockBroker, prefix: str, tmp_path: Path) -> None:
    """With Avro's own mark in front, read by another implementation."""
    chosen = options(any_broker.address, prefix, format="avro", one_topic=True)
    sink = open_sink(Place("kafka", tmp_path, "h1"), chosen)
    sink.recover(0)
    sink.take(write_segment(tmp_path / "journal", 1, [make_batch("n1", 0)]))
    found = [message.value() or b"" for message in read_topic(any_broker.address, f"{prefix}.rows")]
    assert {value[:2] for value in found} == {b"\xc3\x01"}
    rows: list[Any] = [fastavro.schemaless_reader(BytesIO(value[10:]), AVRO, None) for value in found]
    assert Counter(row["set"] for row in rows) == {"cpu": TICKS * 4, "job": TICKS * 2}
    (row,) = (row for row in rows if row["labels"].get("cpu") == 1 and row["time"].timestamp() == START + 3)
    assert row["values"] == {"user_seconds": 0.32, "switches": 33}


@pytest.mark.parametrize("form", ["json", "avro"])
def test_jobs_users_and_nodes_are_kept_apart(
    any_broker: Broker | MockBroker, prefix: str, tmp_path: Path, form: str
) -> None:
    """Every value is under its own cluster, node and job, as in the lake; also where columns are others."""
    nodes = shared_nodes(seconds(0, 5))
    batches = [encode(node, 1, *made) for node, made in nodes.items()]
    segment = write_segment(tmp_path / "journal", 1, batches, seconds(0, 1)[0])
    lake = LakeSink("h1", make_home(find_home(tmp_path / "store")))
    sink = open_sink(Place("kafka", tmp_path, "h1"), options(any_broker.address, prefix, format=form))
    sink.recover(0)
    assert sink.take(segment).rows == lake.take(segment).rows
    labels = labels_of(sample for samples, _ in nodes.values() for sample in samples)
    rows = [
        row
        for set_name in labels
        for message in read_topic(any_broker.address, f"{prefix}.{set_name}")
        for row in [read_row(message.value() or b"", form)]
    ]
    found: Series = {}
    for row in sorted(rows, key=lambda row: row["time"]):
        named = {name: row.pop(name) for name in labels[row["set"]] & row.keys()}
        at, set_name = round(row.pop("time") * 1000), row.pop("set")
        for name, value in row.items():
            found.setdefault(make_labels(f"{set_name}_{name}", named), []).append((at, float(value)))
    assert_equal(found, of_lake(lake.lake, labels))
    jobs = Counter((row["node"], row["jobid"]) for row in rows_of(found, "job_processes"))
    assert jobs == {("n1", "17"): 1, ("n1", "18"): 1, ("n1", "19"): 1, ("n2", "17"): 1}
    cores = Counter(row["node"] for row in rows_of(found, "cpu_switches"))
    assert cores == {"n1": 2, "n2": 5}
    assert [row["node"] for row in rows_of(found, "load_queued")] == ["n2"]
    assert [row["node"] for row in rows_of(found, "load_free_bytes")] == ["n1"]


def rows_of(found: Series, name: str) -> list[dict[str, str]]:
    return [dict(labels) for labels in found if ("__name__", name) in labels]


def read_row(value: bytes, form: str) -> dict[str, Any]:
    """Flat, whatever the form."""
    if form == "json":
        return dict(json.loads(value))
    row: Any = fastavro.schemaless_reader(BytesIO(value[10:]), AVRO, None)
    named = {name: row[name] for name in ("cluster", "node", "set")}
    return {**named, "time": row["time"].timestamp(), **row["labels"], **row["values"]}


def test_done_again(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """A segment that is taken again, by the same process or by another, is there once."""
    batches = [make_batch("n1", number) for number in range(5)]
    segment = write_segment(tmp_path / "journal", 3, batches)
    for _ in range(2):
        sink = open_sink(Place("kafka", tmp_path, "h1"), options(broker.address, prefix))
        sink.recover(0)
        for _ in range(2):
            sink.take(segment)
    assert len(values(broker.address, f"{prefix}.cpu")) == 5 * TICKS * 4


def test_two_hubs(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """While one has a transaction under way, another that starts reads its own note, though that is newer."""
    segment = write_segment(tmp_path / "journal", 1, [make_batch("n1", 0)])
    first, second = (
        open_sink(Place("kafka", tmp_path, hub), options(broker.address, prefix)) for hub in ("h1", "h2")
    )
    first.recover(0)
    second.recover(0)
    first.producer.begin_transaction()
    first.producer.produce(f"{prefix}.cursors", b'{"segment": 9, "records": 9}', "h1-kafka", 0)
    first.producer.flush(PATIENCE)
    second.take(segment)
    again = open_sink(Place("kafka", tmp_path, "h2"), options(broker.address, prefix))
    import threading

    threading.Timer(1.0, first.producer.abort_transaction).start()
    again.recover(0)
    again.take(segment)
    assert len(values(broker.address, f"{prefix}.cpu")) == TICKS * 4


def test_console_consumer(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """Kafka's own console consumer prints the rows and their keys."""
    sink = open_sink(Place("kafka", tmp_path, "h1"), options(broker.address, prefix))
    sink.recover(0)
    sink.take(write_segment(tmp_path / "journal", 1, [make_batch("n1", 0)]))
    words = ["--bootstrap-server", broker.address, "--topic", f"{prefix}.cpu", "--from-beginning"]
    words += ["--isolation-level", "read_committed", "--max-messages", str(TICKS * 4)]
    printed = broker.run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", *words, "--property", "print.key=true"
    )
    lines = [line.partition("\t") for line in printed.splitlines()]
    assert [(key, json.loads(value)["node"]) for key, _, value in lines] == [("n1", "n1")] * TICKS * 4


@contextmanager
def running_sink(home: Path, chosen: Options) -> Iterator[subprocess.Popen[bytes]]:
    """The process that the hub starts for it."""
    told = {"name": "kafka", "home": str(home), "hub": "h1", "type": "kafka", "options": chosen._asdict()}
    with (home / "said").open("a") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "joblens.hub.sink"], stdin=subprocess.PIPE, stdout=said, stderr=said
        )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(told).encode() + b"\n")
        process.stdin.flush()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("one_topic", "kills"), [(False, 4), (True, 2)])
def test_killed_again_and_again(
    broker: Broker, prefix: str, tmp_path: Path, one_topic: bool, kills: int
) -> None:
    """kill -9 in the middle of a transaction: each row once for those who read finished ones."""
    chosen = options(broker.address, prefix, one_topic=one_topic, transaction_bytes=300_000)
    journal, nodes = tmp_path / "journal", [f"n{number}" for number in range(8)]
    topic = f"{prefix}.rows" if one_topic else f"{prefix}.cpu"
    cursor = tmp_path / "cursors" / "kafka.json"
    sent = last = 0

    def write() -> None:
        nonlocal sent, last
        last += 1
        batches = [make_batch(node, n, 64) for n in range(sent, sent + 5) for node in nodes]
        write_segment(journal, last, batches)
        sent += 5

    def is_done() -> bool:
        return cursor.exists() and json.loads(cursor.read_bytes())["segment"] == last

    def in_flight() -> int:
        found = ends.unfinished()
        if not found and is_done():  # its transactions were shorter than the pauses between these calls
            write()
        return found

    for _ in range(kills + 2):
        write()
    ends = Ends(broker.address, topic)
    for _ in range(kills):
        with running_sink(tmp_path, chosen) as process:
            wait_for("the end of the one before", lambda: not ends.unfinished())
            wait_for("a transaction in flight", in_flight)
            assert process.poll() is None
    ends.close()
    with running_sink(tmp_path, chosen):
        wait_for("the last segment", is_done)
    rows = [row for row in values(broker.address, topic) if row["set"] == "cpu"]
    expected = Counter(
        (node, START + tick, core) for node in nodes for tick in range(sent * TICKS) for core in range(64)
    )
    assert Counter((row["node"], row["time"], row["cpu"]) for row in rows) == expected
    # And the kills did hit: those who read everything see more.
    assert len(values(broker.address, topic, "read_uncommitted")) > len(rows)


def test_broker_away(broker: Broker, prefix: str, tmp_path: Path) -> None:
    """The sink says so once, and catches up when the broker is back."""
    chosen, journal = options(broker.address, prefix), tmp_path / "journal"
    with running_sink(tmp_path, chosen) as process:
        write_segment(journal, 1, [make_batch("n1", 0)])
        wait_for("the first rows", lambda: has_topic(broker.address, f"{prefix}.cpu"))
        broker.stop()
        try:
            for number in range(1, 4):
                write_segment(journal, number + 1, [make_batch("n1", number)])
        finally:
            broker.start()
        cursor = tmp_path / "cursors" / "kafka.json"
        wait_for(
            "the last segment", lambda: cursor.exists() and json.loads(cursor.read_bytes())["segment"] == 4
        )
        assert process.poll() is None
    assert len(values(broker.address, f"{prefix}.cpu")) == 4 * TICKS * 4
