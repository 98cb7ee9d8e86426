"""Processes that only capture has recorded: columns give the same as a list of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import joblens
from capture.made import store_captured
from joblens.analysis.captured_only import CapturedOnly
from joblens.analysis.ended import count_processes, find_outside, merge_ended
from joblens.analysis.processes import choose_processes
from joblens.core.errors import OutsideError
from joblens.record.ends import EndedProcess, EndedThread
from joblens.store.end_table import table_of
from joblens.store.home import Home
from joblens.store.lake.lake import Lake
from joblens.store.pending import settle
from store.made import new_home

_TIMES = st.one_of(st.none(), st.sampled_from([0.0, 5.0, 5.25, 7.5, 9.0]))
_NUMBERS = st.one_of(st.none(), st.integers(0, 3))


@st.composite
def ended(draw: st.DrawFn, number: int) -> EndedProcess:
    """Pids are reused, and parents are among them or not."""
    return EndedProcess(
        node=draw(st.sampled_from(["a", "b"])),
        pid=draw(st.integers(1, 250)),
        start=draw(st.sampled_from([0, 1000 + number])),
        parent=draw(st.integers(0, 250)),
        name=draw(st.sampled_from(["cc", "ld", "slurmstepd"])),
        command=draw(st.sampled_from(["cc -c", "joblens agent"])),
        exact=draw(st.integers(0, 1)),
        began_seconds=draw(_TIMES),
        ended_seconds=draw(_TIMES),
        memory_peak_bytes=draw(_NUMBERS),
        user_seconds=draw(_TIMES),
        system_seconds=draw(_TIMES),
        threads=draw(_NUMBERS),
        executable=draw(st.sampled_from(["/bin/cc", "/bin/ld"])),
        programs=draw(_NUMBERS),
        time_slices=draw(_NUMBERS),
        exit_code=draw(_NUMBERS),
        signal=draw(_NUMBERS),
    )


def compare(ends: list[EndedProcess]) -> None:
    only, merged = CapturedOnly(table_of(ends, EndedProcess)), merge_ended([], ends)
    assert only.has_one_row_each
    assert only.as_list() == merged
    for end in (None, 7.0, 8.5):
        assert only.choose(end) == choose_processes(merged, end)
    counts, inexact, _ = count_processes(merged, 9.0)
    assert (only.exact, len(only) - only.exact) == (counts.exact, counts.counted)
    assert only.name_inexact() == inexact
    assert only.find_outside() == find_outside(ends)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_the_same_as_a_list(data: st.DataObject) -> None:
    """Whatever is known of them, and whichever are parents of others."""
    count = data.draw(st.integers(1, 30))
    compare([data.draw(ended(number)) for number in range(count)])


def test_the_same_of_more_than_are_listed() -> None:
    """Those that are not listed are counted with one of the same program."""
    ends = [
        EndedProcess("a", pid, 1000 + pid, pid // 3, name=f"p{pid % 7}", exact=1, began_seconds=5.0 + pid,
                     user_seconds=pid % 13 / 10, system_seconds=0.1)
        for pid in range(1, 700)
    ]  # fmt: skip
    compare(ends)


def test_a_process_with_two_rows_is_not_for_columns() -> None:
    """A start that is unknown says nothing, and another node has another process."""
    row = EndedProcess("a", 7, 70, exact=1)
    for other, expected in ((row, False), (row._replace(node="b"), True), (row._replace(start=71), True)):
        assert CapturedOnly(table_of([row, other], EndedProcess)).has_one_row_each is expected
    unknown = row._replace(start=0)
    assert CapturedOnly(table_of([unknown, unknown], EndedProcess)).has_one_row_each


def captured(path: Path) -> Home:
    """A job whose samples are in the lake."""
    home = new_home(path)
    store_captured(home, "a")
    lake = Lake(home.lake)
    assert settle(lake, home.waiting / "a") + lake.problems == []
    return home


def test_a_table_whose_files_have_changed(tmp_path: Path) -> None:
    """Fewer rows than were counted are an error that says so, for columns and for rows."""
    home = captured(tmp_path / "store")
    with joblens.open(home.path) as store:
        table = store.end_table("a", EndedProcess)
        assert [row.pid for row in table.rows([1, 0, 1])] == [8, 7, 8]
        (path,) = home.path.glob("lake/set=process_end/**/*.parquet")
        duckdb.sql(f"COPY (SELECT * FROM '{path}' LIMIT 1) TO '{path}.less' (FORMAT parquet)")
        Path(f"{path}.less").replace(path)
        with pytest.raises(OutsideError, match="changed meanwhile"):
            table.rows([0, 1, 2])
        with pytest.raises(OutsideError, match="changed meanwhile"):
            table.columns("pid")


@pytest.mark.parametrize("kind", [EndedProcess, EndedThread])
def test_a_table_of_the_lake_has_the_rows(kind: Any, tmp_path: Path) -> None:
    """In the same order, each of its columns, and in whatever order rows are asked for."""
    home = captured(tmp_path / "store")
    with joblens.open(home.path) as store:
        ends, table = store.ends("a", kind), store.end_table("a", kind)
        places = list(reversed(range(len(ends))))
        assert table.rows(places) == [ends[place] for place in places] != []
        for name in kind._fields:
            (one,), (other,) = table.columns(name), table_of(ends, kind).columns(name)
            assert one.astype(str).tolist() == other.astype(str).tolist()
