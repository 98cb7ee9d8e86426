"""Rows of EPMT's CSV and words of secrets: C finds what Python finds."""

from __future__ import annotations

import io
import re
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core import counter_file, secrets
from joblens.importers.epmt import process_data
from joblens.importers.epmt.lake_rows import command_lines
from joblens.importers.epmt.process_data import Chunk, read_chunks
from native_library import load_native

from .epmt_files import csv_text, process

PROCESSES = [
    process(1),
    process(2, {}, {}, {}, args="a\\b,c\nd"),
    process(-3, {"usertime": -5}, args="é" * 9, tags="", hostname=""),
]
HEAD, *GOOD = csv_text(PROCESSES).splitlines()
ROW = GOOD[0].split(",")
ODD = [
    "", "#x", HEAD, "\\", GOOD[0] + ",1", GOOD[0][:-1] + "x", GOOD[0] + "9" * 18, GOOD[0] + "\r",
    GOOD[0] + "\\", ",".join([*ROW[:-1], ""]), ",".join([*ROW[:5], "", *ROW[6:]]),
    ",".join(["a\\xb", *ROW[1:]]), ",".join(["a\0\1\rb", *ROW[1:]]), ",".join([*ROW[:-1], " 7"]),
    ",".join([*ROW[:-1], "-"]), "," * (len(ROW) - 1), ",".join([*ROW[:-1], "0" * 30 + "7"]),
    ",".join([*ROW[:-1], "-" + "0" * 30 + "7"]),
]  # fmt: skip
LINES = st.lists(
    st.sampled_from([line.encode() for line in (*GOOD, *GOOD, *ODD)] + [b"\xff\xe2," + GOOD[0].encode()[9:]])
    | st.binary(max_size=9),
    max_size=12,
)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    return load_native(tmp_path_factory.mktemp("native"))


def read_all(data: bytes, native: ModuleType | None) -> tuple[list[Any], list[tuple[str, str]]]:
    """Return the columns of all chunks, and what is broken."""
    broken: list[tuple[str, str]] = []
    before, counter_file.native = counter_file.native, native
    try:
        files = iter([("a.csv", "c1", io.BytesIO(data)), ("b.csv", "c2", io.BytesIO(data))])
        chunks = list(read_chunks(files, {}, lambda *it: broken.append(it)))
    finally:
        counter_file.native = before
    return [_plain(chunk) for chunk in chunks], sorted(broken)


def _plain(chunk: Chunk) -> list[Any]:
    arrays = {
        **chunk.numbers,
        **chunk.metrics,
        **{f"thread {it}": a for it, a in chunk.thread_numbers.items()},
    }
    columns = {name: values.tolist() for name, values in arrays.items()}
    return [chunk.texts, columns, chunk.first.tolist(), chunk.threads.tolist(), chunk.said.tolist()]


def _joined(chunks: list[Any]) -> list[Any]:
    """Return one entry for each process, with its threads."""
    found = []
    for texts, columns, first, threads, said in chunks:
        for number, (begin, count) in enumerate(zip(first, threads)):
            own = {name: cells[number] for name, cells in texts.items()}
            values = {
                name: cells[number] if name in process_data.NUMBERS else cells[begin : begin + count]
                for name, cells in columns.items()
            }
            found.append((own, values, count, said[number]))
    return found


@given(LINES, st.sampled_from([1, 3, 1000]), st.sampled_from([300, 1 << 20]), st.booleans())
def test_rows_in_c_are_those_of_python(
    native: ModuleType, lines: list[bytes], most: int, piece: int, is_cut: bool
) -> None:
    data = b"\n".join([b"# e:1", HEAD.encode(), *lines]) + (b"" if is_cut else b"\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_data, "_CHUNK_ROWS", most)
        patch.setattr(process_data, "_PIECE", piece)
        # Rows that are left out count until their block is parsed: chunks may begin at other processes.
        (fast, wrong), (slow, wrong_too) = read_all(data, native), read_all(data, None)
        assert (_joined(fast), wrong) == (_joined(slow), wrong_too)


CELLS = st.text("0179-+ \t\n", max_size=4) | st.builds(
    "{2}{0}{1}".format,
    st.sampled_from(["", "0", "0" * 30, "0" * 5000]),
    st.integers(0, 1 << 64),
    st.sampled_from(["", "-"]),
)


@given(st.lists(CELLS, min_size=1))
def test_numbers_of_a_block_are_numbers(cells: list[str]) -> None:
    """Cells are accepted together if each of them is: a sign or a blank alone is not 0."""
    are_numbers = all(map(process_data._is_number, cells))
    try:
        found = process_data._numbers(cells).tolist()
    except ValueError:
        assert not are_numbers
    else:
        assert are_numbers
        assert found == [int(re.sub("(?<![0-9])0+(?=[0-9])", "", cell)) for cell in cells]


SECRETS = st.sampled_from(["pass", "PaSSword=x", "k", "ey", "\\", ",", "://", "é", "tok", "en 7", "-c a.c"])


@given(st.lists(st.lists(SECRETS).map("".join), min_size=2, max_size=9))
def test_secrets_are_masked_in_rows_of_c(native: ModuleType, arguments: list[str]) -> None:
    """Those that C finds while it reads the rows are all that have one, also where characters are escaped."""
    data = csv_text([process(pid, args=text) for pid, text in enumerate(arguments, 1)]).encode()
    masked = []
    for library in (native, None):
        before, counter_file.native = counter_file.native, library
        try:
            found = read_chunks(iter([("a.csv", "c1", io.BytesIO(data))]), {}, lambda *it: None)
            masked.append([command for chunk in found for command in command_lines(chunk)])
        finally:
            counter_file.native = before
    expected = [secrets.mask_secret(f"gcc {text}" if text else "gcc") for text in arguments]
    assert masked == [expected, expected]


def test_most_rows_are_parsed_in_c(native: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last process of a piece, and those with a line that Python has to look at."""
    taken: list[str] = []
    add_process = process_data._Rows.add_process

    def note(rows: Any, name: str, texts: list[str], numbers: str) -> None:
        taken.append(numbers)
        add_process(rows, name, texts, numbers)

    monkeypatch.setattr(process_data._Rows, "add_process", note)
    data = csv_text([process(pid, {}, {}, args="a\\,b") for pid in range(1, 101)]).encode()
    ((texts, columns, *_),), broken = read_all(data, native)
    assert (len(taken), broken, columns["pid"]) == (2, [], 2 * list(range(1, 101)))
    assert set(texts["args"]) == {"a\\,b"}
    with pytest.raises(ValueError, match="outside"):
        native.parse_rows(b"1\n", 3, 9, b"p", 1, b"")


@given(
    st.lists(st.lists(st.sampled_from(["pass", "PWD", "Key", "k", "ey", "://", "é", "tokens"])).map("".join))
)
def test_words_of_secrets(native: ModuleType, texts: list[str]) -> None:
    data = "".join(text + "\0" for text in texts).encode()
    expected = [number for number, text in enumerate(texts) if secrets._may_have_secret(text)]
    assert native.find_words(data, secrets.HINTS_IN_C) == expected
