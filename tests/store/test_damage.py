"""Bits that flip on a disk: no number is wrong without a word, and what is lost is written down."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from damage import damage, load_gaps
from joblens.api import Store
from joblens.cli import main
from joblens.collectors.cpu import SCHEMA as CPU
from joblens.core.errors import MalformedError
from joblens.core.model import Rows, Sample
from joblens.store.home import Home
from joblens.store.lake.checksum import check_file
from joblens.store.lake.compact import compact
from joblens.store.lake.lake import Lake

from .made import START, rows_in_lake, store_job, whole

JOBS = ("a", "b", "c")
TIMES = int(os.environ.get("JOBLENS_CRASHES", "40"))


def lake_files(home: Home) -> list[Path]:
    return sorted(home.lake.rglob("*.parquet"))


def values(lake: Lake) -> list[tuple[Any, ...]]:
    files = lake.files("cpu")
    return sorted(lake.query(files, lake.schema(files), "SELECT * FROM {lake}"))


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


def test_no_number_is_wrong_without_a_word(home: Home) -> None:
    """However it is damaged: all rows as they were, or one file is left out, by name."""
    chance = random.Random(11)
    for job in JOBS:
        rows = [Rows(CPU, (("total",),), [chance.randrange(10**9) for _ in CPU.columns]) for _ in range(300)]
        samples = [Sample(int(START + at) * 10**9, it) for at, it in enumerate(rows)]
        Lake(home.lake).save(job, "c1", {1: samples})
    wanted = values(Lake(home.lake))
    (victim,) = (path for path in lake_files(home) if path.name.startswith("b."))
    whole_file = victim.read_bytes()
    left_out = 0
    for _ in range(TIMES):
        victim.write_bytes(damage(whole_file, chance))
        lake = Lake(home.lake)
        found = values(lake)
        if not lake.problems:
            assert found == wanted, "wrong numbers, and nobody says so"
        else:
            left_out += 1
            assert found == [row for row in wanted if "b" not in row]
            assert [str(victim) in problem for problem in lake.problems] == [True]
    assert left_out > 0.9 * TIMES


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


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EMFILE, errno.ENOMEM, errno.ESTALE, errno.EIO])
@pytest.mark.parametrize("command", ["compact", "check"])
def test_a_file_that_cannot_be_read_for_a_while(
    stored: Home, monkeypatch: pytest.MonkeyPatch, command: str, number: int
) -> None:
    """It is not damaged: it is reported once, stays as it is, and is compacted when it can be read again."""
    victim = next(
        path for path in lake_files(stored) if "set=job/" in str(path) and path.name.startswith("b.")
    )
    data = victim.read_bytes()
    with monkeypatch.context() as patch, Store(stored) as store:
        patch.setattr(os, "pread", failing_read(victim, number))
        getattr(store, command)()
        assert store.problems == [f"{victim} cannot be read and is left out: {os.strerror(number)}"]
    assert victim.read_bytes() == data
    assert load_gaps(stored.path) == []
    assert not stored.damaged.exists()
    with Store(stored) as store:
        store.compact()
        assert store.problems == []
    assert len([path for path in lake_files(stored) if "set=job/" in str(path)]) == 1
    assert rows_in_lake(stored) == {job: whole(2) for job in JOBS}


def failing_read(victim: Path, number: int) -> Callable[[int, int, int], bytes]:
    pread, inode = os.pread, victim.stat().st_ino

    def read(file: int, count: int, at: int) -> bytes:
        if os.fstat(file).st_ino == inode:
            raise OSError(number, os.strerror(number))
        return pread(file, count, at)

    return read


def test_a_file_that_is_replaced_while_it_is_read(stored: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server then says ESTALE: the reader lists the files again, and gets all rows."""
    reader = Lake(stored.lake)
    listed = reader.files("job")
    read = failing_read(listed[0], errno.ESTALE)
    compacted: list[int] = []

    def replaced(file: int, count: int, at: int) -> bytes:
        if not compacted:
            compacted.append(0)
            compacted.append(compact(Lake(stored.lake), set))
        return read(file, count, at) if len(compacted) > 1 else pread(file, count, at)

    pread = os.pread
    monkeypatch.setattr(os, "pread", replaced)
    query = "SELECT jobid, count(*) FROM {lake} GROUP BY ALL"
    assert dict(reader.query(listed, {"jobid": "VARCHAR"}, query)) == dict.fromkeys(JOBS, 10)
    assert compacted[1] > 0
    assert reader.problems == []


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


def record_files(home: Home) -> list[Path]:
    return sorted(home.records.rglob("*.json*"))


def listed(store: Store) -> list[tuple[Any, ...]]:
    return sorted((it["id"], it["state"], it["cpu_seconds"], it["verdict"]) for it in store.jobs(limit=0))


def report_of(store: Store, job: str) -> Any:
    """Or which job is named: a listing does not read all of a record."""
    try:
        return store.job(job)
    except MalformedError as error:
        return re.search(r"\((job .*?)\)", str(error))[1]  # type: ignore[index]


@pytest.mark.parametrize("many", [False, True], ids=["one each", "one file"])
def test_records(stored: Home, many: bool) -> None:
    """Fifty times: a listing and reports as they were, or a job is named and the others are there."""
    with Store(stored) as store:
        if many:
            store.compact()
        wanted, reports = listed(store), {job: store.job(job) for job in JOBS}
    chance = random.Random(12)
    victim = record_files(stored)[-1]
    data = victim.read_bytes()
    named = 0
    for _ in range(50):
        victim.write_bytes(damage(data, chance))
        stored.catalog.unlink()
        with Store(stored) as store:
            found = listed(store)
            problems = store.problems
            assert set(found) <= set(wanted)
            for job, *_ in found:
                assert report_of(store, job) in (reports[job], f"job {job}")
        if found != wanted:
            named += 1
            lost = {job for job, *_ in wanted} - {job for job, *_ in found}
            assert len(lost) == 1 or many, "a cut file loses all behind the cut"
            assert all(str(victim) in problem for problem in problems)
            assert problems
    assert named > 30


def test_a_damaged_record_is_set_aside(stored: Home) -> None:
    """By `db check`: the others in its file stay, the file is kept, and the gap names the job."""
    with Store(stored) as store:
        store.compact()
    (victim,) = record_files(stored)
    first, second, third = victim.read_bytes().splitlines(keepends=True)
    job = json.loads(second)["job"]["id"]
    damaged = first + second.replace(b'"exit_code": 0', b'"exit_code": 1') + third
    victim.write_bytes(damaged)
    with Store(stored) as store:
        store.check()
        assert any(f"(job {job}): checksum mismatch; it is kept as" in it for it in store.problems)
    (gap,) = load_gaps(stored.path)
    assert (gap["kind"], gap["jobs"]) == ("record", [f"job {job}"])
    assert (stored.damaged / f"records.2020-01-02.{victim.name}").read_bytes() == damaged
    with Store(stored) as store:
        assert {it["id"] for it in store.jobs()} == set(JOBS) - {job}
        store.check()
        assert store.problems == []
    assert len(load_gaps(stored.path)) == 1


def test_the_catalog(stored: Home) -> None:
    """Fifty times: after `db check` a listing is as the records have it, wherever its file was damaged."""
    with Store(stored) as store:
        wanted = listed(store)
    sqlite3.connect(stored.catalog).execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    data, chance = stored.catalog.read_bytes(), random.Random(13)
    rebuilt = 0
    for _ in range(50):
        for suffix in ("-wal", "-shm"):
            Path(f"{stored.catalog}{suffix}").unlink(missing_ok=True)
        stored.catalog.write_bytes(damage(data, chance))
        with Store(stored) as store:
            store.check()
            assert listed(store) == wanted
            rebuilt += any("rebuilt from the records" in it for it in store.problems)
    assert rebuilt > 5


def test_db_check(stored: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """All is well, or exit code 1 and the file by name."""
    monkeypatch.setenv("JOBLENS_HOME", str(stored.path))
    assert main(["db", "check"]) == 0
    assert "no problems" in capsys.readouterr().err
    victim = lake_files(stored)[0]
    victim.write_bytes(victim.read_bytes()[:-1])
    assert main(["db", "check"]) == 1
    assert f"{victim} is damaged (it is cut off)" in capsys.readouterr().err
    assert main(["db", "check"]) == 0
