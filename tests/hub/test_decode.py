"""Batches as arrays: the same numbers as joblens.wire.batch reads, and no trouble with any bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import MalformedError
from joblens.core.model import COUNTER, Column, Key, Rows, Sample, Schema
from joblens.hub import decode as hub_decode
from joblens.hub.decode import (
    Packed,
    choose_keys,
    decode_columns,
    decode_columns_together,
    decode_together,
    unpack,
)
from joblens.wire.batch import Batch, decode
from joblens.wire.frame import MAGIC, read_header
from native_library import load_native

WORDS = st.integers(-(1 << 63), (1 << 63) - 1)
SCHEMA = Schema("s", ("k",), (Column("a", COUNTER, "", 2), Column("b", COUNTER, "", 1, 100)))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_native(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module", params=["C", "NumPy"], autouse=True)
def native(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test with the C library and without it."""
    with pytest.MonkeyPatch.context() as patch:
        found = request.getfixturevalue("library") if request.param == "C" else None
        patch.setattr(hub_decode, "native", found)
        yield


@given(st.lists(st.lists(WORDS, min_size=4, max_size=4), min_size=1, max_size=6))
def test_same_as_the_agent_reads(ticks: list[list[int]]) -> None:
    batch = Batch()
    keys = (("x",), (7,))
    batch.add(Sample(10**18 + n * 10**9, Rows(SCHEMA, keys, row)) for n, row in enumerate(ticks))
    message = batch.encode({"node": "n1", "sequence": 5})
    (found,) = decode_columns(message)
    header, samples = decode(message)
    assert header == read_header(message) == {"node": "n1", "sequence": 5}
    assert (found.schema, found.keys) == (samples[0].rows.schema, keys)
    assert list(found.times) == [sample.time_ns for sample in samples]
    assert (
        found.values.reshape(len(ticks), -1).tolist() == [sample.rows.values for sample in samples] == ticks
    )


def pack_entry(keys: int, rows: list[list[int]]) -> Packed:
    batch = Batch()
    names: tuple[Key, ...] = tuple((number,) for number in range(keys))
    batch.add(Sample(10**18 + n, Rows(SCHEMA, names, row[: 2 * keys])) for n, row in enumerate(rows))
    (found,) = unpack(batch.encode({}))
    return found


@given(
    st.lists(st.lists(WORDS, min_size=8, max_size=8), min_size=1, max_size=4),
    st.sets(st.integers(0, 3), min_size=1).map(sorted),
)
def test_some_keys_of_an_entry(rows: list[list[int]], places: list[int]) -> None:
    """Packed again, it has their numbers and times, as if the others had never been there."""
    chosen = choose_keys(pack_entry(4, rows), places)
    assert chosen.description.keys == tuple((place,) for place in places)
    times, values, wrong = decode_together([chosen], len(rows))
    assert times.tolist() == [[10**18 + n for n in range(len(rows))]]
    expected = [[row[2 * place + column] for row in rows] for place in places for column in (0, 1)]
    assert (values.tolist(), wrong) == (expected, [])


@given(
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=8),
    st.lists(st.lists(WORDS, min_size=8, max_size=8), min_size=2, max_size=4),
    st.integers(1, 40),
)
def test_some_entries_at_a_time(shapes: list[tuple[int, bool]], rows: list[list[int]], at_once: int) -> None:
    """The same numbers as of all at once, by column, and the same places of those that make no sense."""
    entries = [pack_entry(keys, rows) for keys, _ in shapes]
    spoilt = [
        entry._replace(data=entry.data[:12] + b"\x7f" * (len(entry.data) - 12)) if bad else entry
        for entry, (_, bad) in zip(entries, shapes)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub_decode, "_AT_ONCE", at_once)
        times, values, wrong = decode_columns_together(spoilt, len(rows))
    all_times, all_values, all_wrong = decode_together(spoilt, len(rows))
    assert times.tolist() == all_times.tolist()
    assert wrong == all_wrong
    if not wrong:
        by_key = all_values.reshape(-1, 2, len(rows))
        assert values.tolist() == [by_key[:, column].reshape(-1).tolist() for column in (0, 1)]


def test_entries_without_the_header() -> None:
    """A header that cannot be read does not matter; a section that is missing does."""
    batch = Batch()
    batch.add(Sample(n, Rows(SCHEMA, (("x",),), [n, n * n])) for n in range(5))
    message = batch.encode({"node": "n1"})
    damaged = message[:10] + b"????" + message[14:]
    assert unpack(damaged) == unpack(message)
    for broken in (message[:-1], message[:8], b"JLB1", b""):
        with pytest.raises(MalformedError):
            unpack(broken)


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    for begin in (b"", b"JLB1"):
        with pytest.raises(MalformedError):
            read_header(begin + data)
        with suppress(MalformedError):
            assert decode_columns(begin + data) == []


@given(st.data())
def test_damaged(data: st.DataObject) -> None:
    """One byte changed: the same error as any, or other numbers, and nothing else."""
    batch = Batch()
    batch.add(Sample(n, Rows(SCHEMA, (("x",),), [n, n * n])) for n in range(5))
    message = bytearray(batch.encode({"node": "n1"}))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    for read in (decode_columns, unpack):
        with suppress(MalformedError):
            read(bytes(message))


def test_many_small_parts_that_become_large() -> None:
    """What does not change takes little of a message, but room where it is read: bounded for all of it."""
    keys: tuple[Key, ...] = tuple((number,) for number in range(1000))
    batch = Batch()
    batch.add(Sample(tick, Rows(SCHEMA, keys, [0] * 2000)) for tick in range(500))
    message = batch.encode({"node": "n1"})
    end = len(MAGIC) + 4 + int.from_bytes(message[len(MAGIC) :][:4], "little")
    assert len(unpack(message[:end] + message[end:] * 2)) == 2
    with pytest.raises(MalformedError, match="too many numbers"):
        unpack(message[:end] + message[end:] * 40)  # 8 MB each


@given(st.lists(st.lists(WORDS, min_size=6, max_size=6), min_size=1, max_size=5), st.data())
def test_same_with_and_without_the_library(
    library: ModuleType, rows: list[list[int]], data: st.DataObject
) -> None:
    """The same entries of a batch of two sets, or none if it is malformed, whichever byte is changed."""
    batch = Batch()
    for name, keys in (("s", (("x",), (7,), ("",))), ("t", (("x",),))):
        schema = SCHEMA._replace(set=name)
        batch.add(Sample(n, Rows(schema, keys, row[: 2 * len(keys)])) for n, row in enumerate(rows))
    message = bytearray(batch.encode({"node": "n1"}))
    if data.draw(st.booleans()):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del message[data.draw(st.integers(0, len(message) - 1)) :]
    found: list[list[tuple[object, ...]] | None] = []
    for native in (library, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hub_decode, "native", native)
            try:
                found.append([entry[1:] for entry in unpack(bytes(message))])
            except MalformedError:
                found.append(None)
    assert found[0] == found[1]


def test_library_reads_batches(library: ModuleType) -> None:
    """A batch like those of agents is not left to Python, nor is a malformed one taken."""
    batch = Batch()
    batch.add(Sample(n, Rows(SCHEMA, (("x",),), [n, n * n])) for n in range(5))
    message = batch.encode({"node": "n1"})

    def read(message: bytes, room: int = 1 << 20, rows_room: int = 1 << 20) -> list[Packed] | None:
        known = hub_decode.descriptions.get
        found: list[Packed] | None = library.unpack_sections(
            message, len(MAGIC), known, hub_decode._describe, hub_decode._make, room, rows_room
        )
        return found

    (entry,) = unpack(message)
    assert read(message) == [entry]
    assert type(entry) is Packed
    assert read(message, room=len(entry.data)) is None
    assert read(message, rows_room=5 * entry.description.row_bytes) == [entry]
    assert read(message, rows_room=5 * entry.description.row_bytes - 1) is None
    for end in range(len(message)):
        header = len(MAGIC) + 4 + int.from_bytes(message[len(MAGIC) :][:4], "little")
        assert read(message[:end]) == ([] if end == header else None)
    assert read(message + bytes(4)) is None
    assert library.decode_rows([entry.data], 2, 5)[2] == []
    for data, columns, ticks in (
        (entry.data[:-1], 2, 5),
        (entry.data, 3, 5),
        (entry.data, 2, 4),
        (b"", 2, 5),
    ):
        with pytest.raises(ValueError, match="do not match"):
            library.decode_rows([data], columns, ticks)
