"""Columns of many processes, in Python and in C: the same as joblens.capture.processes has, by records."""

from __future__ import annotations

import ctypes
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture.made import make_record
from joblens.capture.columns import NativeReader, PlainReader, basename
from joblens.capture.native_rows import read_rows
from joblens.capture.processes import Merger
from joblens.capture.records import FIELDS, LETTERS, MOST, UNKNOWN, WAIT, Records
from joblens.capture.sets import process_rows, thread_rows
from joblens.collectors.ends.sets import PROCESS_END
from joblens.core import counter_file
from joblens.core.compile_c import NATIVE_SOURCES, build_native, compile_c
from joblens.core.model import ABSENT

Kind = Callable[[], PlainReader | NativeReader]

_SMALL = ("pid", "parent", "child", "start", "thread", "running")
_TEXTS = {"S": 7, "X": 7, "P": 7, "T": 1}
_EDGES = [1 << 31, (1 << 61) + 1, MOST - 1, MOST, (1 << 63) - 1, 1 << 63, UNKNOWN - 1, UNKNOWN]


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Few pids, so that they are reused, and waited for by others; some numbers are unknown or too large."""
    kind = draw(st.sampled_from(sorted(FIELDS)))
    odd = draw(st.sets(st.sampled_from(FIELDS[kind])))
    fields: dict[str, int] = {}
    for name in FIELDS[kind]:
        known = st.integers(0, 4) if name in _SMALL else st.integers(0, 50)
        fields[name] = draw(st.sampled_from(_EDGES) if name in odd else known)
    if kind == WAIT and draw(st.booleans()):  # without children
        fields |= {"own_user": fields["user"], "own_system": fields["system"]}
    texts = draw(st.lists(st.sampled_from(["", "/bin/a", "b c", "é"]), max_size=_TEXTS.get(kind, 0)))
    return make_record(kind, *texts, **fields)


@pytest.fixture(scope="module", params=[PlainReader, NativeReader])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    """The reader in Python, and that in C, built from the source that is tested."""
    if request.param is PlainReader:
        yield PlainReader
        return
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    path = str(tmp_path_factory.mktemp("native") / "_native.abi3.so")
    assert build_native(path) == ""
    spec = spec_from_file_location("_native", path, loader=ExtensionFileLoader("_native", path))
    assert spec is not None
    before, counter_file.native = counter_file.native, module_from_spec(spec)
    yield NativeReader
    counter_file.native = before


def by_columns(kind: Kind, data: bytes, piece: int) -> tuple[Any, ...]:
    reader = kind()
    for at in range(0, len(data), piece):
        reader.take(data[at : at + piece])
    reader.finish()
    found, threads = reader.merge()
    rows = []
    for number, place in enumerate(found.program.tolist()):
        program = found.programs[place]
        key = {name: int(column[number]) for name, column in found.keys.items()}
        rows.append(
            ("c", "j", program.step, "n", *key.values(), basename(program.executable), program.command,
             program.executable, program.folder, program.tags, program.rank, "")
        )  # fmt: skip
    thread_keys = [
        ("c", "j", "n", *(int(column[number]) for column in threads.keys.values()), threads.names[place], "")
        for number, place in enumerate(threads.name.tolist())
    ]
    values = [numpy.stack(it.values, axis=1).ravel().tolist() for it in (found, threads)]
    return tuple(rows), values[0], tuple(thread_keys), values[1], reader.damage


def by_records(data: bytes) -> tuple[Any, ...]:
    job, parsed, merger = ("c", "j", "n"), Records(data), Merger()
    merger.take(parsed)
    found, threads = process_rows(job, merger.processes()), thread_rows(job, merger.threads)
    return found.keys, found.values, threads.keys, threads.values, parsed.damage


@settings(deadline=None)
@given(st.lists(st.one_of(records(), records(), st.binary(max_size=20)), max_size=30), st.integers(1, 9000))
def test_both_have_the_same(kind: Kind, parts: list[bytes], piece: int) -> None:
    """Whatever the records are, what is damaged between them, and in whatever pieces they are read."""
    data = b"".join(parts)
    assert by_columns(kind, data, piece) == by_records(data)


@settings(deadline=None)
@given(st.lists(st.one_of(records(), records(), st.binary(max_size=20)), max_size=30))
def test_the_rows_of_a_short_job(kind: Kind, parts: list[bytes]) -> None:
    """Are the same, too; events are left to the others."""
    if kind is PlainReader:
        pytest.skip("it is the C library that merges")
    data = b"".join(parts)
    found, expected = read_rows(("c", "j", "n"), data), by_records(data)
    has_counts = any(record.kind == "C" and "time" in record.fields for record in Records(data))
    assert found is not None or has_counts
    if found:
        processes, threads, damage = found
        assert (processes.keys, processes.values, threads.keys, threads.values, damage) == expected


# How many places in a row a hash table has taken at most.
_LONGEST_RUN = """
#include "capture_records.c"

static long longest(const Numbers *slots)
{
    long found = 0, run = 0;
    for (size_t slot = 0; slot < slots->count; slot++) {
        run = slots->at[slot] ? run + 1 : 0;
        found = run > found ? run : found;
    }
    return found;
}

long longest_run(PyObject *capsule, int of_texts)
{
    Merger *merger = PyCapsule_GetPointer(capsule, "records");
    return longest(of_texts ? &merger->text_slots : &merger->pid_slots);
}
"""
_MANY = 3000


def _are_low(products: Any) -> Any:
    """Return where a hash with a known key is low: all of those would be in one place of a table."""
    return numpy.flatnonzero((products ^ products >> numpy.uint64(32)) % (1 << 16) < 256)[:_MANY]


def _chosen_pids() -> list[int]:
    numbers = numpy.arange(1, 1 << 21, dtype=numpy.uint64)
    return [int(it) + 1 for it in _are_low(numbers * numpy.uint64(0x9E3779B97F4A7C15))]


def _chosen_texts() -> list[str]:
    numbers = numpy.arange(1 << 21)[:, None]
    letters = (ord("a") + (numbers >> numpy.arange(0, 28, 4) & 15)).astype(numpy.uint8)
    texts = numpy.hstack([letters, numpy.zeros((len(letters), 1), dtype=numpy.uint8)])
    products = (texts.view("<u8").ravel() ^ numpy.uint64(0xCBF29CE484222325 ^ 8)) * numpy.uint64(
        0x9E3779B97F4A7C15
    )
    return [bytes(letters[it]).decode() for it in _are_low(products ^ products >> numpy.uint64(29))]


def test_chosen_pids_and_texts_are_spread(tmp_path: Path) -> None:
    """Chosen records cannot make the tables in C slow: their hash has a random key."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    source, library = tmp_path / "run.c", str(tmp_path / "run.so")
    source.write_text(_LONGEST_RUN)
    headers = [sysconfig.get_paths()["include"], os.path.dirname(NATIVE_SOURCES[0])]
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", *(f"-I{path}" for path in headers)]
    assert compile_c([str(source)], library, flags) == ""
    native = ctypes.PyDLL(library)
    for name in ("joblens_new_records", "joblens_take_records"):
        getattr(native, name).restype = ctypes.py_object
        getattr(native, name).argtypes = [ctypes.py_object] * 2
    native.longest_run.argtypes = [ctypes.py_object, ctypes.c_int]
    capsule = native.joblens_new_records(None, (bytes(len(FIELDS[kind]) for kind in LETTERS),))
    pids, texts = _chosen_pids(), _chosen_texts()
    assert len(pids) == len(texts) == _MANY
    data = b"".join(make_record("S", text, time=1, pid=pid, start=1) for pid, text in zip(pids, texts))
    native.joblens_take_records(None, (capsule, data, True))
    for of_texts in (0, 1):
        assert 0 < native.longest_run(capsule, of_texts) < _MANY // 10


def test_processes_of_a_debugger_are_counted_once(kind: Kind) -> None:
    """It waits for them first, and their parents do then; a pid that is used again is another process."""
    ends = {"status": 0, "user": 50, "system": 7, "peak_kib": 9}
    own = {"own_user": 50, "own_system": 7}
    data = b"".join(
        [
            make_record("S", "/bin/strace", time=1, pid=7, start=3, parent=1),
            make_record("S", "/bin/sh", time=2, pid=8, start=4, parent=7),
            make_record("W", time=5, pid=7, start=3, parent=1, child=9, **ends),
            make_record("W", time=6, pid=8, start=4, parent=7, child=9, **ends, **own),
            make_record("W", time=9, pid=8, start=4, parent=7, child=9, **{**ends, "user": 51}, **own),
        ]
    )
    rows, values, *_ = by_columns(kind, data, 100)
    width = len(values) // len(rows)
    place = [column.name for column in PROCESS_END.columns].index("user_seconds")
    found = [(row[4], values[width * number + place]) for number, row in enumerate(rows)]
    assert sorted(found) == [(7, ABSENT), (8, ABSENT), (9, 50), (9, 50)]
    assert by_columns(kind, data, 100) == by_records(data)


def test_a_thread_that_is_about_to_end_is_counted_once(kind: Kind) -> None:
    """Its process ends before it does, and lists it as one that runs; a tid that is used again is another."""

    def thread(time: int, tid: int, start: int, running: int) -> bytes:
        return make_record(
            "T", "work", time=time, pid=7, start=3, thread=tid, thread_start=start, running=running
        )

    ends = [thread(50, 8, 40, 0), thread(50, 9, 40, 0), thread(60, 8, 39, 1), thread(60, 9, 55, 1)]
    data = b"".join([make_record("S", "/bin/a", time=1, pid=7, start=3, parent=1), *ends])
    _, _, threads, *_ = by_columns(kind, data, 100)
    assert [key[5] for key in threads] == [8, 9, 9]
    assert by_columns(kind, data, 100) == by_records(data)


def test_numbers_beyond_any_kernel_are_absent(kind: Kind) -> None:
    """As in the rows of a few processes."""
    data = make_record("E", **{**dict.fromkeys(FIELDS["E"], (1 << 62) + 7), "pid": 7, "time": 5, "start": 3})
    (row,), values, *_ = by_columns(kind, data, 99)
    assert row[4:6] == (7, 3)
    assert values.count(ABSENT) > 10


def test_fields_of_an_earlier_version(kind: Kind) -> None:
    """A record with fewer fields has the others unknown."""
    data = make_record("F", time=5, pid=7, start=3, parent=1, group=7, session=7, uid=9)
    short = bytearray(make_record("E", time=9, pid=7, start=3, status=0, user=4, system=5))
    import struct
    import zlib

    count = 7
    rest = struct.pack("<HcB", 12 + 8 * count, b"E", count) + bytes(short[12 : 12 + 8 * count])
    data += b"JLC1" + struct.pack("<I", zlib.adler32(rest)) + rest
    assert by_columns(kind, data, 10_000) == by_records(data)
