"""Kafka as far as no broker is needed: the forms of a row, the notes on what is known, settings."""

from __future__ import annotations

import json
import re
import struct
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import fastavro
import numpy
import pytest
from fastavro.schema import fingerprint, to_parsing_canonical_form
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import ConfigError, MalformedError
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Rows, Sample, Schema
from joblens.hub.batch_reader import Checker
from joblens.hub.decode import Columns, Description
from joblens.hub.kafka import intake as from_kafka
from joblens.hub.kafka import schema as kafka_schema
from joblens.hub.kafka.client import Notes, load_kafka
from joblens.hub.kafka.dedup import Known
from joblens.hub.kafka.schema import AVRO, Row, avro_frame, avro_rows, json_rows
from joblens.hub.segments import Record
from joblens.hub.sinks.kafka import Form, Options
from joblens.wire.batch import Batch
from joblens.wire.frame import read_header
from joblens.wire.header import BatchId

DOCS = Path(__file__).parent.parent.parent / "docs" / "kafka.md"
SCHEMA = Schema(
    "cpu",
    ("cpu", "name"),
    (
        Column("user_seconds", COUNTER, "", 1, 100),
        Column("memory_bytes", GAUGE, "", 1024),
        Column("n", GAUGE, ""),
    ),
)
WORDS = st.integers(-(1 << 63), (1 << 63) - 1)


def columns(
    values: list[int], keys: Any = ((0, "a"),), schema: Schema = SCHEMA, time_ns: int = 10**18
) -> Columns:
    shaped = numpy.array(values, dtype=numpy.int64).reshape(-1, len(keys), len(schema.columns))
    times = numpy.arange(len(shaped), dtype=numpy.int64) * 1_500_000_000 + time_ns
    return Columns(Description(schema, keys), times, shaped)


def from_avro(row: Row) -> dict[str, Any]:
    found = fastavro.schemaless_reader(BytesIO(row.value), AVRO, None)
    return cast(dict[str, Any], found)


def test_a_row_as_json() -> None:
    found = columns([150, 3, ABSENT, 151, ABSENT, 7, 0, 0, 0, 1, 1, 1], ((0, "a"), (1, "ü\n")))
    rows = list(json_rows(found, "fox", "c1"))
    assert [row.node for row in rows] == ["c1"] * 4
    assert [json.loads(row.value) for row in rows[:3]] == [
        {"cluster": "fox", "node": "c1", "set": "cpu", "cpu": 0, "name": "a", "time": 10**9,
         "user_seconds": 1.5, "memory_bytes": 3072},
        {"cluster": "fox", "node": "c1", "set": "cpu", "cpu": 1, "name": "ü\n", "time": 10**9,
         "user_seconds": 1.51, "n": 7},
        {"cluster": "fox", "node": "c1", "set": "cpu", "cpu": 0, "name": "a", "time": 10**9 + 1.5,
         "user_seconds": 0.0, "memory_bytes": 0, "n": 0},
    ]  # fmt: skip


def test_a_job_says_where_it_is() -> None:
    """A row that names its cluster and node is that one's, by the message's key too."""
    schema = Schema("job", ("cluster", "jobid", "node"), (Column("x", GAUGE, ""),))
    (row,) = json_rows(columns([5], (("owl", "7", "n2"),), schema), "fox", "c1")
    assert row.node == "n2"
    assert json.loads(row.value) == {
        "cluster": "owl", "node": "n2", "set": "job", "jobid": "7", "time": 10**9, "x": 5,
    }  # fmt: skip


def test_exact_time() -> None:
    (row,) = json_rows(columns([1, 1, 1], time_ns=1_700_000_000_123_456_789), "fox", "c1")
    assert b'"time":1700000000.123456789,' in row.value


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=4), st.text(max_size=3), WORDS)
def test_both_forms_say_the_same(ticks: list[tuple[int, int, int]], name: str, core: int) -> None:
    """JSON by Python's reader and Avro by fastavro, and both what the column says."""
    found = columns([value for tick in ticks for value in tick], ((core, name),))
    as_json, as_avro = list(json_rows(found, "fox", "c1")), list(avro_rows(found, "fox", "c1"))
    assert len(as_json) == len(as_avro) == len(ticks)
    for tick, left, right in zip(ticks, as_json, as_avro):
        expected = {
            column.name: column.in_base_units(value)
            for column, value in zip(SCHEMA.columns, tick)
            if value != ABSENT
        }
        plain = json.loads(left.value)
        assert {key: plain[key] for key in plain if key in ("user_seconds", "memory_bytes", "n")} == expected
        packed = from_avro(right)
        assert packed["values"] == pytest.approx(expected)
        assert all(packed["values"][key] == value for key, value in expected.items() if abs(value) < 1 << 53)
        assert packed["labels"] == {"cpu": core, "name": plain["name"]}
        assert (packed["cluster"], packed["node"], packed["set"]) == ("fox", "c1", "cpu")
        assert packed["time"].timestamp() == plain["time"]


NAMES = st.text(max_size=4) | st.sampled_from(["cluster", "node", "set", "time", "jobid"])
FACTORS = st.integers(-3, 3) | st.integers()


@given(st.data())
def test_any_schema(data: st.DataObject) -> None:
    """Whatever a batch describes: rows that can be read, or one kind of error."""
    labels = tuple(data.draw(st.lists(NAMES, max_size=3)))
    described = data.draw(st.lists(st.tuples(NAMES, FACTORS, FACTORS), min_size=0, max_size=3))
    schema = Schema(data.draw(NAMES), labels, tuple(Column(n, GAUGE, "", f, d) for n, f, d in described))
    part = st.one_of(st.text(max_size=3), st.integers(), st.booleans(), st.none(), st.floats())
    key = tuple(data.draw(part) for _ in range(data.draw(st.sampled_from([len(labels)] * 3 + [1]))))
    found = columns([1] * len(described), (key,), schema) if described else columns([], (key,), SCHEMA)
    for encode, read in ((json_rows, lambda row: json.loads(row.value)), (avro_rows, from_avro)):
        try:
            rows = list(encode(found, "fox", "c1"))
        except MalformedError:
            continue
        assert all(read(row)["set"] == found.schema.set.encode("utf-8", "replace").decode() for row in rows)


def test_avro_fingerprint() -> None:
    """As another implementation makes it, of the schema that is documented."""
    canonical = to_parsing_canonical_form(AVRO)
    assert canonical == kafka_schema._CANONICAL
    expected = fingerprint(canonical, "CRC-64-AVRO")
    assert avro_frame(0) == b"\xc3\x01" + bytes.fromhex(expected)
    assert avro_frame(258) == struct.pack(">bI", 0, 258)


def test_documented_schema() -> None:
    (text,) = re.findall(r"```json\n(\{\n.*?\n\})\n```", DOCS.read_text(), re.S)
    assert json.loads(text) == AVRO


def test_documented_settings() -> None:
    for table in (Options._fields, from_kafka.Options._fields):
        for name in table:
            assert re.search(rf"^{name} = ", DOCS.read_text(), re.M), name


def form(**options: Any) -> Form:
    chosen = Options(**options)
    return Form(load_kafka(chosen.brokers, chosen.prefix, chosen.options), chosen)


def make_record(schema: Schema, keys: Any, values: list[int], **head: Any) -> Record:
    batch = Batch()
    batch.add([Sample(10**18, Rows(schema, keys, values))])
    header: Any = {"cluster": "fox", "node": "c1", "boot": "b", "sequence": 1, **head}
    return Record(10**18, batch.encode(header))


@pytest.mark.parametrize("name", ["cursors", "batches", "seen", "a/b", "", "ü", "x" * 300])
def test_a_set_cannot_take_a_topic(name: str) -> None:
    """Its name comes from outside, and those topics are how nothing is repeated."""
    schema = Schema(name, (), (Column("x", GAUGE, ""),))
    (message,) = form().messages(make_record(schema, ((),), [1])).messages
    assert message.topic == "joblens.other"
    assert json.loads(message.value)["set"] == name


def test_rows_that_are_too_large() -> None:
    """They are left out and counted, the others not."""
    record = make_record(SCHEMA, ((0, "a"), (1, "b" * 1000)), [1] * 6)
    found = form(message_bytes=500).messages(record)
    assert [json.loads(message.value)["cpu"] for message in found.messages] == [0]
    assert (found.taken.rows, found.taken.values, found.taken.dropped) == (1, 3, 1)
    assert "message_bytes" in found.taken.problems[0]


@given(st.binary(max_size=60), st.sampled_from(["json", "avro", "batch"]))
def test_garbage_in_the_journal(data: bytes, kind: str) -> None:
    """A batch that cannot be read is counted, and holds up nothing."""
    found = form(format=kind).messages(Record(1, b"JLB1" + data))
    assert found.messages == []
    assert found.taken.dropped == 1


def test_rows_of_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nodes prove who they are, no message has the key of a node that did not send it."""
    schema = Schema("job", ("jobid", "node"), (Column("x", GAUGE, ""),))
    record = make_record(schema, (("1", "c1"), ("2", "c2")), [1, 2])
    assert [message.key for message in form().messages(record).messages] == ["c1", "c2"]
    monkeypatch.setattr(Checker, "own_rows_only", True)
    found = form().messages(record)
    assert ([message.key for message in found.messages], found.taken.dropped) == (["c1"], 1)


def test_batches_as_they_came() -> None:
    record = make_record(SCHEMA, ((0, "a"),), [1, 2, 3], node="c7")
    (message,) = form(format="batch").messages(record).messages
    assert (message.topic, message.key, message.value) == ("joblens.batches", "c7", record.batch)
    assert read_header(message.value)["node"] == "c7"


def test_wrong_settings() -> None:
    with pytest.raises(ConfigError, match="json, avro or batch"):
        form(format="xml")
    with pytest.raises(ConfigError, match="unknown setting hub.kafka.broker"):
        from_kafka.check_options({"broker": "x"})
    with pytest.raises(ConfigError, match=r"hub\.kafka\.group is 1"):
        from_kafka.check_options({"group": 1})


class Written(Notes):
    """Notes as others have written them."""

    def __init__(self, values: dict[str, bytes]) -> None:
        self.values = values

    def read(self) -> set[str]:
        return set(self.values)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), max_size=60))
def test_what_one_hub_knows_the_next_one_knows(batches: list[tuple[str, int]]) -> None:
    notes: dict[str, bytes] = {}
    for number, (node, sequence) in enumerate(batches):
        known = Known(Written(notes), "g")
        known.refresh()
        batch = BatchId("fox", node, "b", sequence)
        assert (batch in known) == ((node, sequence) in batches[:number])
        known.add(batch)
        notes.update(known.changes())
        known.written()
        assert list(known.changes()) == []
    other = Known(Written(notes), "another group")
    assert not any(BatchId("fox", node, "b", sequence) in other for node, sequence in batches)


def test_boots_are_bounded() -> None:
    known = Known(Written({}), "g")
    for boot in range(20):
        known.add(BatchId("fox", "c1", f"b{boot}", 1))
    assert [f"b{boot}" for boot in range(20) if BatchId("fox", "c1", f"b{boot}", 1) in known] == [
        f"b{boot}" for boot in range(12, 20)
    ]


@given(
    st.binary(max_size=40)
    | st.sampled_from([b"[]", b'{"b": 1}', b'{"b": [[3, 1]]}', b'{"b": [[1, 2, 3, 4]]}'])
)
def test_a_note_that_is_none(note: bytes) -> None:
    known = Known(Written({'["g", "fox", "c1"]': note}), "g")
    try:
        assert BatchId("fox", "c1", "b", 1) not in known
    except MalformedError:
        return
    assert json.loads(note) in ({}, {"b": []}) or isinstance(json.loads(note), dict)
