from __future__ import annotations

import zlib
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import MalformedError
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Rows, Sample, Schema
from joblens.wire.batch import Batch, decode
from joblens.wire.frame import MAGIC

WORDS = st.integers(ABSENT, 2**63 - 1)


@st.composite
def sets(draw: st.DrawFn) -> list[Sample]:
    """Some sets over some ticks, each with its own columns and keys."""
    samples = []
    for number in range(draw(st.integers(0, 3))):
        columns = tuple(
            Column(f"c{n}", draw(st.sampled_from([COUNTER, GAUGE])), "")
            for n in range(draw(st.integers(1, 4)))
        )
        schema = Schema(f"set{number}", ("a", "b"), columns)
        keys = tuple(draw(st.lists(st.tuples(st.text(), st.integers()), max_size=3)))
        size = len(keys) * len(columns)
        for tick in range(draw(st.integers(1, 4))):
            values = draw(st.lists(WORDS, min_size=size, max_size=size))
            samples.append(Sample(tick * 10**9, Rows(schema, keys, values)))
    return samples


@given(sets())
def test_round_trip(samples: list[Sample]) -> None:
    """What goes into a batch comes out of it, number by number."""
    batch = Batch()
    batch.add(samples)
    header, found = decode(batch.encode({"node": "c1", "sequence": 7}))
    assert header == {"node": "c1", "sequence": 7}
    assert found == samples


def test_a_batch_is_new_after_encoding() -> None:
    """Nothing is sent twice."""
    batch = Batch()
    batch.add([Sample(1, Rows(Schema("s", (), (Column("c", COUNTER, ""),)), ((),), [5]))])
    batch.encode({})
    assert decode(batch.encode({})) == ({}, [])


def test_unsigned_numbers_keep_their_bits() -> None:
    """The kernel prints some negative amounts as unsigned 64-bit numbers."""
    schema = Schema("s", (), (Column("c", GAUGE, ""), Column("d", GAUGE, "")))
    batch = Batch()
    batch.add([Sample(1, Rows(schema, ((),), [2**64 - 3, 4]))])
    assert decode(batch.encode({}))[1][0].rows.values == [-3, 4]


def test_slow_counters_cost_little() -> None:
    """Ten ticks of 200 counters of which a tenth moves take less than a byte per value."""
    schema = Schema("s", (), tuple(Column(f"counter_{n}", COUNTER, "") for n in range(200)))
    keys = ((),)
    batch, empty = Batch(), Batch()
    for tick in range(10):
        values = [10**9 + n * 12345 + (tick * 17 if n % 10 == 0 else 0) for n in range(200)]
        sample = Sample(tick, Rows(schema, keys, values))
        batch.add([sample])
        if tick == 0:
            empty.add([sample])
    assert len(batch.encode({})) - len(empty.encode({})) < 9 * 200


@given(st.binary())
def test_any_message(data: bytes) -> None:
    """Whatever arrives, it is a batch or a MalformedError."""
    for message in (data, MAGIC + data, MAGIC + section(data), MAGIC + section(b"{}") + 2 * section(data)):
        with suppress(MalformedError):  # b"{}" is a batch without sets
            decode(message)


def section(data: bytes) -> bytes:
    packed = zlib.compress(data)
    return len(packed).to_bytes(4, "little") + packed


@given(sets(), st.data())
def test_damaged_messages(samples: list[Sample], data: st.DataObject) -> None:
    """A message of which a section was changed is refused or decoded, never another exception."""
    batch = Batch()
    batch.add(samples)
    message = batch.encode({"node": "c1"})
    sections, at = [], len(MAGIC)
    while at < len(message):
        length = int.from_bytes(message[at : at + 4], "little")
        sections.append(zlib.decompress(message[at + 4 : at + 4 + length]))
        at += 4 + length
    which = data.draw(st.integers(0, len(sections) - 1))
    body = bytearray(sections[which])
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = data.draw(st.integers(0, 255))
    sections[which] = bytes(body)
    with suppress(MalformedError):
        decode(MAGIC + b"".join(map(section, sections)))


def test_every_batch_can_be_read_alone() -> None:
    """Descriptions are made only once, but stand in every message."""
    schema = Schema("s", (), tuple(Column(f"column_{n}", COUNTER, "") for n in range(100)))
    batch, messages = Batch(), []
    for tick in range(2):
        batch.add([Sample(tick, Rows(schema, ((),), [tick] * 100))])
        messages.append(batch.encode({}))
    assert [decode(message)[1][0].rows.values for message in messages] == [[0] * 100, [1] * 100]
