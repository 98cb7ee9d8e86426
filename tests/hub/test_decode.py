"""Batches as arrays: the same numbers as joblens.agent.batch reads, and no trouble with any bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.batch import Batch, decode
from joblens.agent.frame import MAGIC, read_header
from joblens.errors import MalformedError
from joblens.hub.decode import decode_columns, unpack
from joblens.model import COUNTER, Column, Key, Rows, Sample, Schema

WORDS = st.integers(-(1 << 63), (1 << 63) - 1)
SCHEMA = Schema("s", ("k",), (Column("a", COUNTER, "", 2), Column("b", COUNTER, "", 1, 100)))


@given(st.lists(st.lists(WORDS, min_size=4, max_size=4), min_size=1, max_size=6))
def test_same_as_the_agent_reads(ticks: list[list[int]]) -> None:
    batch = Batch()
    keys = (("x",), (7,))
    batch.add(Sample(10**18 + n * 10**9, Rows(SCHEMA, keys, row)) for n, row in enumerate(ticks))
    message = batch.encode({"node": "n1", "sequence": 5})
    header, (found,) = decode_columns(message)
    _, samples = decode(message)
    assert header == read_header(message) == {"node": "n1", "sequence": 5}
    assert (found.schema, found.keys) == (samples[0].rows.schema, keys)
    assert list(found.times) == [sample.time_ns for sample in samples]
    assert (
        found.values.reshape(len(ticks), -1).tolist() == [sample.rows.values for sample in samples] == ticks
    )


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    for begin in (b"", b"JLB1"):
        for read in (decode_columns, read_header):
            with pytest.raises(MalformedError):
                read(begin + data)


@given(st.data())
def test_damaged(data: st.DataObject) -> None:
    """One byte changed: the same error as any, or other numbers, and nothing else."""
    batch = Batch()
    batch.add(Sample(n, Rows(SCHEMA, (("x",),), [n, n * n])) for n in range(5))
    message = bytearray(batch.encode({"node": "n1"}))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_columns(bytes(message))
    except MalformedError:
        return


def test_many_small_parts_that_become_large() -> None:
    """What does not change takes little of a message, but room where it is read: bounded for all of it."""
    keys: tuple[Key, ...] = tuple((number,) for number in range(1000))
    batch = Batch()
    batch.add(Sample(tick, Rows(SCHEMA, keys, [0] * 2000)) for tick in range(500))
    message = batch.encode({"node": "n1"})
    end = len(MAGIC) + 4 + int.from_bytes(message[len(MAGIC) :][:4], "little")
    assert len(unpack(message[:end] + message[end:] * 2)[1]) == 2
    with pytest.raises(MalformedError, match="more numbers"):
        unpack(message[:end] + message[end:] * 40)  # 8 MB each
