from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.api import Store
from joblens.core.errors import MalformedError, OutsideError
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Rows, Sample, Schema
from joblens.store import ingest
from joblens.store.home import Home
from joblens.store.lake.columns import TIME, Table, check, tables
from joblens.store.lake.compact import compact, compact_folder
from joblens.store.lake.folder import JobFile, job_file, list_folder, parse_manifest, remove_replaced
from joblens.store.lake.lake import Lake, select_text, text_column
from joblens.store.maintenance import retain
from joblens.store.reader import LakeReader, Span

from .made import (
    START,
    all_files,
    begin_job,
    grow_old,
    incoming,
    make_facts,
    make_samples,
    rows_by_batch,
    store_job,
    whole,
)

DAY = "set=job/date=2020-01-02"


def sample(values: list[int], columns: tuple[Column, ...], second: int = 0, key: str = "a") -> Sample:
    return Sample(int(START * 1e9) + second * 10**9, Rows(Schema("s", ("k",), columns), ((key,),), values))


def stored(lake: Lake, columns: str = "*") -> list[tuple[object, ...]]:
    files = f"'{lake.path}/set=s/*/*.parquet'"
    return duckdb.connect().execute(f"SELECT {columns} FROM {files} ORDER BY time").fetchall()


# What a value becomes


def test_values_are_stored_exactly(tmp_path: Path) -> None:
    """In base units: whole numbers as such, parts as decimals, unknown as NULL, time in nanoseconds."""
    columns = (
        Column("plain", GAUGE, ""),
        Column("bytes", GAUGE, "", factor=4096),
        Column("ticks", COUNTER, "", divisor=100),
        Column("nanos", COUNTER, "", divisor=10**9),
        Column("thirds", GAUGE, "", divisor=3),
        Column("none", GAUGE, ""),
    )
    lake = Lake(tmp_path)
    lake.save("j", "c1", {1: [sample([7, 3, 12345, 1, 1, ABSENT], columns)]})
    names = "epoch_ns(time), jobid, node, k, plain, bytes, ticks::VARCHAR, nanos::VARCHAR, thirds, none"
    expected = (int(START) * 10**9, "j", "c1", "a", 7, 12288, "123.45", "0.000000001", 1 / 3, None)
    assert stored(lake, names) == [expected]


def test_numbers_that_are_too_large(tmp_path: Path) -> None:
    """Where 64 bits are not enough for the exact value, it is stored as near as a DOUBLE comes."""
    columns = (Column("b", GAUGE, "", factor=4096), Column("s", COUNTER, "", divisor=100))
    lake = Lake(tmp_path)
    lake.save("j", "c1", {1: [sample([2**62, 2**62], columns), sample([1, 1], columns, second=1)]})
    assert stored(lake, "b, s") == [(2.0**74, 2**62 / 100), (4096.0, 0.01)]


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Labels, jobs and nodes of any letters are stored; what is no UTF-8 has question marks."""
    odd = "a\0b\n\"'\ud800ü"
    lake = Lake(tmp_path)
    lake.save(odd, odd, {1: [sample([1], (Column("v", GAUGE, ""),), key=odd)]})
    assert stored(lake, "jobid, node, k") == [("a\0b\n\"'?ü",) * 3]


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/b", "..", "a'b", "\ud800", "x" * 300])
def test_hostile_names_stay_inside(name: str, home: Home) -> None:
    """No id, node, user, tag or set leads to a file outside the store."""
    facts = make_facts(name, node=name, user=name, name=name, cluster=name, tags={name: name})
    schema = Schema(name, (), (Column("v", GAUGE, ""),))
    Lake(home.lake).save(name, name, {1: [Sample(int(START * 1e9), Rows(schema, ((),), [1]))]})
    others = {key: facts[key] for key in ("node", "user", "name", "cluster", "tags")}
    store_job(home, name if name.isprintable() else "odd", **others)
    outside = [path for path in home.path.parent.rglob("*") if home.path not in (path, *path.parents)]
    assert outside == []
    with Store(home) as store:
        assert store.problems == []
        assert store.job("last")["used"]["processes"] == 1
        assert len(store.jobs(tags=((name, name),))) == 1


# What cannot be stored

WORDS = st.one_of(st.integers(-(2**70), 2**70), st.text(max_size=3), st.none(), st.booleans())
ODD_ROWS = st.builds(
    lambda labels, columns, keys, value: Rows(
        Schema("s", tuple(labels), tuple(columns)),
        tuple(map(tuple, keys)),
        [value] * len(keys) * len(columns),
    ),
    st.lists(st.sampled_from(["a", "A", "time", "", "b c", "jobid", 'q"']), max_size=2),
    st.lists(
        st.builds(
            Column,
            st.sampled_from(["a", "v", "", "time", "value", "w'"]),
            st.just(GAUGE),
            st.just(""),
            st.sampled_from([1, 0, -1, 512, 2**62]),
            st.sampled_from([1, 0, -1, 3, 100, 10**9]),
        ),
        max_size=2,
    ),
    st.lists(st.lists(WORDS, max_size=2), max_size=2),
    st.integers(ABSENT, 2**63 - 1),
)


@given(st.lists(st.builds(Sample, st.integers(-(2**63), 2**63 - 1), ODD_ROWS), max_size=3))
def test_nonsense_is_refused_or_stored(samples: list[Sample]) -> None:
    """Whatever a batch holds is either called malformed or can be written and read."""
    try:
        check(samples)
    except MalformedError:
        return
    connection = duckdb.connect()
    for part in tables(samples, "j", "c"):
        connection.register("part", part.columns)
        assert connection.execute(f"SELECT {part.select} FROM part").fetchall()


# Schemas that change


def test_files_of_different_times_side_by_side(home: Home) -> None:
    """Columns that came later, went, or changed their type or scale are read together, also compacted."""
    old = (Column("v", COUNTER, "", divisor=100), Column("gone", GAUGE, ""), Column("w", GAUGE, ""))
    new = (
        Column("v", COUNTER, "", divisor=1000),
        Column("come", GAUGE, ""),
        Column("w", GAUGE, "", divisor=3),
    )
    huge = (Column("v", COUNTER, "", divisor=100),)
    lake = Lake(home.lake)
    lake.save("j", "c1", {1: [sample([150, 1, 3], old)]})
    lake.save("j", "c1", {2: [sample([2500, 2, 9], new, second=1)]})
    lake.save("j", "c1", {3: [sample([10**18], huge, second=2)]})
    span, names = Span("j", START, START + 10), ("v", "gone", "come", "w", "never")
    before = LakeReader(lake).series(span, "s", names, 1000)
    assert before.last == {
        "v": [1.5, 2.5, 1e16],
        "gone": [1.0, None, None],
        "come": [None, 2.0, None],
        "w": [3.0, 3.0, None],
    }
    assert compact(lake, set) == 3
    assert LakeReader(lake).series(span, "s", names, 1000) == before
    lake.save("j", "c1", {4: [sample([350, 3, 6], old, second=3)]})
    assert LakeReader(lake).series(span, "s", ("v",), 1000).last == {"v": [1.5, 2.5, 1e16, 3.5]}
    assert compact(lake, set) == 2
    assert LakeReader(lake).series(span, "s", ("v",), 1000).last == {"v": [1.5, 2.5, 1e16, 3.5]}


def test_a_number_that_became_text(home: Home) -> None:
    """Even then the old values are read, and what is no number is unknown."""
    lake = Lake(home.lake)
    lake.save("j", "c1", {1: [sample([7], (Column("v", GAUGE, ""),))]})
    folder = home.lake / "set=s" / "date=2020-01-02"
    text = f"SELECT make_timestamp_ns({int(START) + 1}000000000) AS time, 'j' AS jobid, 'x' AS v"
    duckdb.connect().execute(f"COPY ({text}) TO '{folder}/j.2-2.parquet' (FORMAT parquet)")
    assert LakeReader(lake).series(Span("j", START, START + 9), "s", ("v",), 9).last == {"v": [7.0, None]}


def test_processes_of_old_files(home: Home) -> None:
    """Where a column that reports use was not stored yet, its figure is unknown and the others are there."""
    store_job(home, "j1")
    (path,) = home.lake.glob("set=process/*/j1*.parquet")
    old = path.read_bytes()
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE t AS FROM '{path}'")
    connection.execute("ALTER TABLE t DROP threads; ALTER TABLE t DROP command")
    connection.execute(f"COPY t TO '{path}' (FORMAT parquet)")
    assert path.read_bytes() != old
    (process,) = LakeReader(Lake(home.lake)).processes(Span("j1", START, START + 30))
    assert (process.threads, process.command, process.pid) == (None, "", 100)
    assert process.user_seconds == 2.0


# Compaction and retention


def test_compaction_changes_no_answer(home: Home) -> None:
    """Series, processes and sample times are the same before and after, and after another one."""
    jobs = ["j1", "j2", "j3"]
    for job in jobs:
        store_job(home, job)

    def answers() -> list[object]:
        with Store(home) as store:
            return [(store.series(job), store.processes(job)) for job in jobs]

    before = answers()
    with Store(home) as store:
        assert store.compact() == 3 + 3 + 3  # sets job and process, records
        assert store.compact() == 0
    assert answers() == before
    assert rows_by_batch(home) == {job: whole(2) for job in jobs}


def test_compacted_files_are_compacted_again(home: Home) -> None:
    """What came since joins what is compacted; what was replaced goes after the time of grace."""
    for number in range(6):
        store_job(home, f"j{number}")
        if number % 2:
            Store(home).compact()
            grow_old(home.lake)
    assert rows_by_batch(home) == {f"j{number}": whole(2) for number in range(6)}
    Store(home).compact()
    names = [path.name for path in (home.lake / DAY).iterdir()]
    assert len(names) == 2, names
    assert rows_by_batch(home) == {f"j{number}": whole(2) for number in range(6)}


def test_replaced_files_come_not_back_to_life(home: Home) -> None:
    """Compacted twice within the hour, all that was replaced goes at once and nothing counts twice."""
    for number in range(4):
        store_job(home, f"j{number}")
        Store(home).compact()
    assert rows_by_batch(home) == {f"j{number}": whole(2) for number in range(4)}
    grow_old(home.lake)
    for _ in range(2):
        remove_replaced(home.lake / DAY, (home.lake / DAY).stat().st_mtime + 10_000)
        assert rows_by_batch(home) == {f"j{number}": whole(2) for number in range(4)}
    assert len(list((home.lake / DAY).iterdir())) == 2


def test_a_running_job_is_left_alone(home: Home) -> None:
    """Samples of a job that is on its way are not compacted, for they may be written anew."""
    for job in ("j1", "j2"):
        store_job(home, job)
    facts = make_facts("running")
    folder = begin_job(home, facts)
    Lake(home.lake).save("running", "c1", {n: make_samples(facts, n) for n in (1, 2)})
    with Store(home) as store:
        store.compact()
        assert store.running() == ["running"]
    assert (home.lake / DAY / "running.1-2.parquet") in list_folder(home.lake / DAY).files
    ingest.save_samples(Lake(home.lake), incoming(folder, facts, None))
    assert rows_by_batch(home) == {job: whole(2) for job in ("j1", "j2", "running")}


def test_of_two_who_compact_one_wins(home: Home) -> None:
    """Both have read the same files; the second finds the next number taken and leaves nothing behind."""
    for job in ("j1", "j2"):
        store_job(home, job)
    lake, folder = Lake(home.lake), home.lake / DAY
    other: list[int] = []

    def meanwhile() -> set[str]:
        """Asked for between listing and writing."""
        other.append(compact_folder(Lake(home.lake), folder, set))
        return set()

    assert compact_folder(lake, folder, meanwhile) == 0
    assert other == [2]
    assert len(list(folder.glob("compacted-*"))) == 1
    assert rows_by_batch(home) == {job: whole(2) for job in ("j1", "j2")}


def test_files_that_go_further(home: Home) -> None:
    """Of two attempts at the same job the one with more batches counts, before and after compaction."""
    facts, lake = make_facts("j1"), Lake(home.lake)
    lake.save("j1", "c1", {1: make_samples(facts, 1)})
    lake.save("j1", "c1", {n: make_samples(facts, n) for n in (1, 2)})
    lake.save("j1", "c1", {1: make_samples(facts, 1)})
    assert rows_by_batch(home) == {"j1": whole(2)}
    store_job(home, "j2")
    compact(lake, set)
    lake.save("j1", "c1", {n: make_samples(facts, n) for n in (1, 2, 3)})
    assert rows_by_batch(home) == {"j1": whole(2), "j2": whole(2)}


def test_retention(home: Home) -> None:
    """`db retain --days N` removes samples and jobs of older days, and no other."""
    day = 86_400
    for number in range(5):
        store_job(home, f"j{number}", start=START + number * day)
    with Store(home) as store:
        store.compact()
        assert len(store.jobs()) == 5
        assert retain(home, 2, now=START + 4 * day + 60) == 2 * 2 + 2
        assert sorted(job.id for job in store.jobs()) == ["j2", "j3", "j4"]
        assert store.jobs(tags=(("a", "b"),)) == []
    assert set(rows_by_batch(home)) == {"j2", "j3", "j4"}
    assert retain(home, 10**9) == 0


# Damage

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
    "zeroed inside": lambda data: data[:100] + bytes(len(data) - 300) + data[-200:],
    "text": lambda data: b"this is no Parquet file\n" * 100,
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_parquet(kind: str, home: Home) -> None:
    """It is named when it is read and when it is set aside; all other samples are read and compacted."""
    for job in ("j1", "j2", "j3"):
        store_job(home, job)
    path = home.lake / DAY / "j2.1-2.parquet"
    path.write_bytes(DAMAGES[kind](path.read_bytes()))
    with Store(home) as store:
        assert store.series("j1").times
        assert not store.series("j2").times
        assert store.job("j2")["job"]["state"] == "COMPLETED"
        assert store.compact() > 0
        assert len(store.series("j3").times) == 10
        read, compacted = store.problems
    assert read.startswith(f"{path} is damaged and left out: ")
    assert compacted.startswith(f"{path} is damaged (")
    assert "\n" not in read + compacted
    assert (home.damaged / "job.2020-01-02.j2.1-2.parquet").exists()


def test_randomly_damaged_parquet(home: Home) -> None:
    """Wherever bytes are wrong, reading gives an answer or one sentence, and the next file is read."""
    for job in ("j1", "j2"):
        store_job(home, job)
    path = home.lake / "set=process" / "date=2020-01-02" / "j1.1-2.parquet"
    data = path.read_bytes()
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    lake = Lake(home.lake)
    for number in range(150):
        wrong = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            wrong[chance.randrange(len(data))] = chance.randrange(256)
        path.unlink()
        path = path.with_name(f"j1.1-{number}.parquet")  # files are never changed, and DuckDB remembers them
        path.write_bytes(wrong)
        lake.problems.clear()
        LakeReader(lake).processes(Span("j1", START, START + 30))
        assert len(lake.problems) <= 1
        assert len(LakeReader(lake).processes(Span("j2", START, START + 30))) == 1


def test_after_an_internal_error(home: Home) -> None:
    """DuckDB refuses all that comes after one of its own errors, so a new connection is made."""
    store_job(home, "j1")
    lake = Lake(home.lake)
    connection = lake.connection

    def ask(files: list[Path]) -> int:
        if lake.connection is connection:
            raise duckdb.InternalException("a pointer was NULL")
        return len(files)

    assert lake.attempt(lake.files("job"), ask, 0) == 1
    assert lake.problems == []


MANIFESTS = {
    "garbage": b"\0\1\2",
    "empty": b"",
    "a list": b"[]",
    "paths": b'{"file": "compacted-00000009-ab.parquet", "replaces": ["../../x"]}',
    "a path": b'{"file": "../../x", "replaces": []}',
    "numbers": b'{"file": 7, "replaces": [1]}',
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_damaged_manifest(kind: str, home: Home) -> None:
    """One sentence; what is not compacted is read, compaction goes on, and nothing is removed for it."""
    for job in ("j1", "j2"):
        store_job(home, job)
    victim = home.path / "x"
    victim.write_text("keep")
    (home.lake / DAY / "00000009.manifest").write_bytes(MANIFESTS[kind])
    orphan = home.lake / DAY / "compacted-00000009-ab.parquet"
    orphan.write_bytes((home.lake / DAY / "j1.1-2.parquet").read_bytes())
    with Store(home) as store:
        assert len(store.series("j1").times) == 10
        grow_old(home.lake)
        assert store.compact() > 0
        (problem,) = store.problems
    assert problem.startswith(f"{home.lake / DAY / '00000009.manifest'}: not a manifest")
    assert rows_by_batch_of(home) == {"j1", "j2"}
    assert (victim.read_text(), orphan.exists()) == ("keep", True)


def rows_by_batch_of(home: Home) -> set[str]:
    lake = Lake(home.lake)
    rows = lake.query(
        lake.files("job"), {"jobid": "VARCHAR"}, "SELECT jobid, count(*) FROM {lake} GROUP BY 1"
    )
    assert {count for _, count in rows} == {10}
    return {str(job) for job, _ in rows}


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_any_manifest(data: bytes) -> None:
    """Whatever stands there, it is a manifest or a MalformedError."""
    with pytest.raises(MalformedError):
        parse_manifest("00000001.manifest", data)


@given(st.text(st.characters()), st.integers(0, 10**17), st.integers(0, 10**17))
def test_names_of_files(job: str, first: int, last: int) -> None:
    """A name says which batches of which job are inside, and only names that say so count."""
    from joblens.store.location import safe_name

    file = JobFile(safe_name(job), first, last)
    assert job_file(file.name) == file
    assert job_file(job) is None or JobFile.name.fget(job_file(job)) == job  # type: ignore[attr-defined]


def test_foreign_files_do_not_matter(home: Home) -> None:
    """What somebody else has put into the folders is neither read nor removed."""
    for job in ("j1", "j2"):
        store_job(home, job)
    foreign = {"x.parquet", "j1.x-y.parquet", "a[b]*.1-2.parquet", "README", "compacted-1.parquet"}
    for name in foreign:
        (home.lake / DAY / name).write_text("not ours")
    with Store(home) as store:
        assert store.compact() == 6
        assert store.series("j1").times
        assert store.problems == []
    assert foreign <= set(all_files(home.lake / DAY))


def test_files_that_do_not_go_together(home: Home) -> None:
    """Where each can be read but not all at once, that is an error with its reason."""
    store_job(home, "j1")
    store_job(home, "j2")
    lake = Lake(home.lake)

    def ask(files: list[Path]) -> int:
        if len(files) > 1:
            raise duckdb.IOException("too many open files")
        return 1

    with pytest.raises(OutsideError, match="cannot be read or put together: too many open files"):
        lake.attempt(lake.files("job"), ask, 0)
    assert lake.problems == []


@pytest.mark.parametrize("times", [1, 10_000])
@pytest.mark.parametrize("text", ["n1", "", 'it\'s "x" \\ %', "é", "a\0b", "line\nbreak"])
def test_a_text_that_all_rows_have(tmp_path: Path, text: str, times: int) -> None:
    """It is stored as it is, in few and in many rows, beside columns whose texts differ."""
    texts = {"node": [text], "device": ["sda", text]}
    columns: dict[str, Any] = {TIME: numpy.arange(3 * times)}
    columns[text_column("node")] = numpy.tile(numpy.array([0, 0, 0], dtype=numpy.int32), times)
    columns[text_column("device")] = numpy.tile(numpy.array([1, 0, 1], dtype=numpy.int32), times)
    selected = ", ".join(f"{select_text(name)} AS {name}" for name in texts)
    table = Table(f"make_timestamp_ns({TIME}) AS {TIME}, {selected}", columns, ())
    lake = Lake(tmp_path)
    lake.save_tables("s", "2026-11-17", "hub~ab.1-1.parquet", [table], ordered=True, texts=texts)
    assert stored(lake, "node, device") == [(text, text), (text, "sda"), (text, text)] * times
