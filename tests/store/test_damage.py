"""Bits that flip on a disk: no number is wrong without a word, and what is lost is written down."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from joblens.api import Store
from joblens.store.checksum import check_file
from joblens.store.compact import compact
from joblens.store.damage import load_gaps
from joblens.store.home import Home
from joblens.store.lake import Lake

from .made import rows_in_lake, store_job, whole

JOBS = ("a", "b", "c")


def lake_files(home: Home) -> list[Path]:
    return sorted(home.lake.rglob("*.parquet"))


def damage(data: bytes, chance: random.Random) -> bytes:
    """A bit flipped, or cut off, or a block of zeros, as file systems leave them after a power failure."""
    changed = bytearray(data)
    kind, at = chance.choice(("flip", "flip", "flip", "cut", "zeros")), chance.randrange(len(data))
    if kind == "flip":
        changed[at] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del changed[at:]
    else:
        changed[at : at + 512] = bytes(len(changed[at : at + 512]))
    return bytes(changed)


def values(lake: Lake) -> list[tuple[Any, ...]]:
    columns = {"time": "TIMESTAMP_NS", "jobid": "VARCHAR", "processes": "BIGINT", "threads": "BIGINT"}
    columns |= {"cpu_seconds": "DOUBLE", "memory_bytes": "BIGINT"}
    return sorted(lake.query(lake.files("job"), columns, "SELECT * FROM {lake}"))


@pytest.fixture
def stored(home: Home) -> Home:
    for job in JOBS:
        store_job(home, job)
    return home


def test_other_programs_read_the_files(stored: Home) -> None:
    """The checksum is metadata of Parquet's own kind."""
    for path in lake_files(stored):
        found = pyarrow.parquet.read_metadata(path).metadata[b"joblens_crc32"]
        assert len(found) == 8
        assert check_file(path) == ""
        assert pyarrow.parquet.read_table(path).num_rows == 10


def test_no_number_is_wrong_without_a_word(stored: Home) -> None:
    """A hundred times: all rows as they were, or one file is left out, by name."""
    chance, wanted = random.Random(11), values(Lake(stored.lake))
    victim = next(
        path for path in lake_files(stored) if "set=job/" in str(path) and path.name.startswith("b.")
    )
    whole_file = victim.read_bytes()
    left_out = 0
    for _ in range(100):
        victim.write_bytes(damage(whole_file, chance))
        lake = Lake(stored.lake)
        found = values(lake)
        if victim.read_bytes() == whole_file or not lake.problems:
            assert found == wanted
        else:
            left_out += 1
            assert found == [row for row in wanted if row[1] != "b"]
            assert [str(victim) in problem for problem in lake.problems] == [True]
    assert left_out > 90


def test_what_is_lost_is_written_down(stored: Home) -> None:
    """Compaction does not put damaged rows into a new file: the old one is kept, and named once in a gap."""
    victim = next(
        path for path in lake_files(stored) if "set=job/" in str(path) and path.name.startswith("b.")
    )
    data = bytearray(victim.read_bytes())
    data[100] ^= 4
    victim.write_bytes(data)
    lake = Lake(stored.lake)
    compact(lake, set)
    (problem,) = lake.problems
    assert "checksum mismatch" in problem
    (gap,) = load_gaps(stored.path)
    assert (gap["set"], gap["date"], gap["file"]) == ("job", "2020-01-02", victim.name)
    assert (gap["made_of"], gap["rows"], gap["first_node"]) == ([victim.name], 10, "c1")
    assert gap["from"].startswith("2020-01-02 00:00:00")
    kept = stored.damaged / f"job.2020-01-02.{victim.name}"
    assert kept.read_bytes() == data
    later = Lake(stored.lake)
    compact(later, set)
    assert later.problems == []
    assert len(load_gaps(stored.path)) == 1
    assert rows_in_lake(stored) == {job: whole(2) for job in JOBS if job != "b"}


def test_a_compacted_file_that_is_damaged(stored: Home) -> None:
    """The gap names all that it was made of, and none of that comes back."""
    made_of = [path.name for path in lake_files(stored) if "set=job/" in str(path)]
    with Store(stored) as store:
        store.compact()
    (victim,) = (path for path in lake_files(stored) if "set=job/" in str(path))
    victim.write_bytes(victim.read_bytes()[:-200])
    store_job(stored, "d")
    with Store(stored) as store:
        store.compact()
        assert len(store.problems) == 1
    (gap,) = load_gaps(stored.path)
    assert gap["made_of"] == made_of
    assert rows_in_lake(stored) == {"d": whole(2)}


def test_files_of_an_older_joblens(stored: Home) -> None:
    """They have no checksum, and are read as before."""
    for path in lake_files(stored):
        path.write_bytes(path.read_bytes().replace(b"joblens_crc32", b"other_program"))
        assert check_file(path) == ""
    assert rows_in_lake(stored) == {job: whole(2) for job in JOBS}
