from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from joblens.api import Store
from joblens.core.errors import MalformedError, OutsideError, UsageError
from joblens.store import records
from joblens.store.catalog.choice import open_catalog
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import SORTS, JobFilter
from joblens.store.catalog.plan import make_terms, plan
from joblens.store.catalog.schema import INDEXES, TABLES, VERSION, migrate
from joblens.store.home import Home, find_home, make_home
from joblens.store.saving import save_record

from .made import START, store_job

DAY = "2020-01-02"


def listed(home: Home, **filters: Any) -> list[str]:
    with Store(home) as store:
        assert store.problems == []
        return [job.id for job in store.jobs(**filters)]


@pytest.fixture
def several(home: Home) -> Home:
    """Four jobs, by hand, so that every figure is known."""
    made = store_job(home, "a1", name="train-1", user="alice", tags={"model": "x", "run": "1"})
    for number, (job, name, user, state, cpu, tags) in enumerate(
        [
            ("a2", "train-2", "bob", "FAILED", 50.0, {"model": "x"}),
            ("b1", "t[1]", "bob", "COMPLETED", None, {"model": "y"}),
            ("b2", "Test", "alice", "UNKNOWN", 5.0, {}),
        ],
        1,
    ):
        facts = {"id": job, "name": name, "user": user, "state": state, "tags": tags, "exit_code": number}
        job_part = made.job.replace(**facts, start=START + number * 3600)
        used = made.used.replace(cpu_seconds=cpu, memory_peak_bytes=100 - number)
        save_record(home, made.replace(job=job_part, used=used))
    return home


def test_for_its_owner_only(tmp_path: Path) -> None:
    """Also in a folder that was there, and that others may look into."""
    before = os.umask(0)
    try:
        (tmp_path / "open").mkdir(0o755)
        home = make_home(find_home(tmp_path / "open", mounts=""))._replace(shared=False)
        with Store(home) as store:
            store.jobs()
            found = {path.name: path.stat().st_mode for path in home.path.iterdir()}
    finally:
        os.umask(before)
    assert "catalog.sqlite-wal" in found
    assert not {name: mode for name, mode in found.items() if stat.S_IMODE(mode) & 0o077}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["b2", "b1", "a2", "a1"]),
        ({"reverse": True}, ["a1", "a2", "b1", "b2"]),
        ({"limit": 2}, ["b2", "b1"]),
        ({"limit": 0}, ["b2", "b1", "a2", "a1"]),
        ({"limit": 1 << 70}, ["b2", "b1", "a2", "a1"]),
        ({"user": "bob"}, ["b1", "a2"]),
        ({"name": "train*"}, ["a2", "a1"]),
        ({"name": "train-?"}, ["a2", "a1"]),
        ({"name": "t[1]"}, ["b1"]),
        ({"name": "test"}, []),
        ({"state": "FAILED"}, ["a2"]),
        ({"exit_code": 0}, ["a1"]),
        ({"exit_code": 2, "user": "bob"}, ["b1"]),
        ({"exit_code": 2, "sort": "cpu", "user": "carol"}, []),
        ({"exit_code": 1 << 70}, []),
        ({"since": START + 3600}, ["b2", "b1", "a2"]),
        ({"until": START + 3600}, ["a2", "a1"]),
        ({"tags": (("model", "x"),)}, ["a2", "a1"]),
        ({"tags": (("model", "x"), ("run", "1"))}, ["a1"]),
        ({"sort": "cpu"}, ["a2", "a1", "b2", "b1"]),
        ({"sort": "cpu", "reverse": True}, ["b2", "a1", "a2", "b1"]),
        ({"sort": "memory", "limit": 1}, ["a1"]),
        ({"sort": "name"}, ["b2", "b1", "a1", "a2"]),
        ({"sort": "user"}, ["b2", "a1", "b1", "a2"]),
        ({"user": "\udce9", "name": "'; DROP TABLE jobs; --"}, []),
    ],
)
def test_filters_and_orders(several: Home, filters: dict[str, Any], expected: list[str]) -> None:
    """Jobs are chosen by user, name, state, time and tags; sorted; unknown figures come last."""
    assert listed(several, **filters) == expected


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("sort", SORTS)
def test_the_first_are_found_without_sorting(sort: str, reverse: bool) -> None:
    """By an index of the order if every condition holds for very many jobs, else by that of a condition."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    migrate(database)
    for index in INDEXES.values():
        database.execute(f"CREATE INDEX {index}")

    def explain(count: int, which: int = -1, /, **filters: Any) -> str:
        wanted = JobFilter(sort=sort, reverse=reverse, **filters)
        return "".join(
            row[3] + "; "
            for query in list(plan(wanted, make_terms(wanted), lambda *_: count))[which]
            for row in database.execute(
                f"EXPLAIN QUERY PLAN SELECT * FROM jobs WHERE {query.condition or 1} {query.order}",
                query.values,
            )
        )

    for filters in ({}, {"user": "alice"}, {"node": "c1", "tags": (("a", "b"),), "name": "x*"}):
        found = explain(1 << 40, **filters)
        assert f"jobs USING INDEX jobs_by_{sort}" in found or (sort == "start" and "jobs_by_user" in found)
        assert "FOR ORDER BY" not in found, "at most the last terms are sorted, among equals"
    for name, value in {
        "user": "alice", "account": "a", "state": "FAILED", "partition": "p", "cluster": "c", "since": START,
    }.items():  # fmt: skip
        index = {"user": "user", "since": "start"}.get(name, "kind")
        assert f"USING INDEX jobs_by_{index} (" in explain(7, **{name: value})
    assert "job_nodes_by_node (node=?)" in explain(7, node="c1")
    assert "tags_by_value (name=? AND value=?)" in explain(7, tags=(("a", "b"),))
    assert "jobs_by_shown_id (shown_id>? AND shown_id<?)" in explain(7, array="4200")
    assert "SCAN jobs;" not in explain(7, name="*x*")
    ahead = explain(7, 0, account="a")
    assert f"jobs USING INDEX jobs_by_{sort} (" in ahead
    assert "FOR ORDER BY" not in ahead


def test_the_newest_is_found_without_a_search(several: Home) -> None:
    """`last` reads the end of the index of times, also where another index contains all that is asked for."""
    catalog = Catalog(several)
    catalog.prepare()
    asked: list[str] = []
    catalog.database.set_trace_callback(asked.append)
    (newest,) = catalog.find("last")
    catalog.database.set_trace_callback(None)
    assert newest[1] == listed(several)[0]
    (query,) = [it for it in asked if "ORDER BY" in it]
    assert "jobs_by_start" in catalog.database.execute(f"EXPLAIN QUERY PLAN {query}").fetchone()[3]
    catalog.close()


def test_names_that_begin_with_a_text_are_a_range(several: Home) -> None:
    """They are counted in the index of jobs: matches cost time, and other names do not."""
    plans: list[str] = []

    def count(query: str, values: Sequence[Any]) -> int:
        plans.extend(row[3] for row in catalog.database.execute(f"EXPLAIN QUERY PLAN {query}", values))
        return 0

    catalog = Catalog(several)
    catalog.prepare()
    wanted = JobFilter(name="train*")
    list(plan(wanted, make_terms(wanted), count))
    assert [it for it in plans if "jobs_by_name (name>? AND name<?)" in it]
    assert not [it for it in plans if "names" in it]
    catalog.close()


def test_unknown_order_is_one_sentence(home: Home) -> None:
    """A way to sort that there is not is named, with those that there are."""
    with pytest.raises(UsageError, match="sorted by start, duration, cpu"):
        open_catalog(home).jobs(JobFilter(sort="x; DROP TABLE jobs"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a1", ["a1"]),
        ("last", ["b2"]),
        ("a", ["a2", "a1"]),
        ("zz", []),
        ("", []),
        ("\U0010ffff", []),
        ("a\ud7ff", []),
        ("\udce9", []),
        ("%", []),
    ],
)
def test_finding_a_job(several: Home, text: str, expected: list[str]) -> None:
    """By its id, by how that begins, or as the last one; whatever was typed."""
    assert [identity[1] for identity in open_catalog(several).find(text)] == expected


def test_an_id_that_comes_round_again(home: Home) -> None:
    """Of two jobs with the same id the newer one is meant, and both are listed."""
    store_job(home, "7", name="old")
    store_job(home, "7", name="new", start=START + 86_400)
    store_job(home, "77")
    with Store(home) as store:
        assert store.job("7")["job"]["name"] == "new"
        assert len(store.jobs()) == 3


@pytest.fixture
def scheduled(home: Home) -> Home:
    """Jobs as schedulers number them, in two clusters, one of them put back into the queue."""
    made = store_job(home, "r1")
    nodes = ["c1", "c2", "c3"]
    for number, facts in enumerate(
        [
            {"id": "4207", "array_job": "4200", "array_task": "7", "partition": "gpu", "nodes": nodes},
            {"id": "4301", "het_job": "4300", "het_offset": "1", "account": "physics", "nodes": ["c10"]},
            {"id": "4242", "nodes": ["c2"]},
            {"id": "4242", "nodes": ["c2"], "state": "TIMEOUT"},
            {"id": "4242", "cluster": "other", "nodes": ["c\n1", "x,[y"]},
        ],
        1,
    ):
        job = made.job.replace(**{"node": facts["nodes"][0], **facts, "start": START + number})
        save_record(home, made.replace(job=job))
    return home


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4200_7", [("here", "4207", 1)]),
        ("4207", [("here", "4207", 1)]),
        ("4300+1", [("here", "4301", 2)]),
        ("4242", [("other", "4242", 5)]),
        ("4242@here", [("here", "4242", 4)]),
        ("4200_7@here", [("here", "4207", 1)]),
        ("4242@nowhere", []),
        ("@", []),
        ("4200_", [("here", "4207", 1)]),
        ("4200", [("here", "4207", 1)]),
        ("420", []),
        ("42", []),
        ("4", []),
    ],
)
def test_ids_of_schedulers(scheduled: Home, text: str, expected: list[tuple[str, str, float]]) -> None:
    """As people write them, with the cluster where that is needed; of several the newest.

    A number that nobody has is not the beginning of another one: that would be someone else's job.
    """
    found = [(cluster, job, start - START) for cluster, job, start in open_catalog(scheduled).find(text)]
    assert found == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"partition": "gpu"}, ["4200_7"]),
        ({"account": "physics"}, ["4300+1"]),
        ({"cluster": "other"}, ["4242"]),
        ({"node": "c2"}, ["4242", "4242", "4200_7"]),
        ({"node": "c10"}, ["4300+1"]),
        ({"node": "x,[y"}, ["4242"]),
        ({"node": "c2\n"}, []),
        ({"state": "TIMEOUT"}, ["4242"]),
        ({"array": "4200"}, ["4200_7"]),
        ({"array": "420"}, []),
    ],
)
def test_filters_of_schedulers(scheduled: Home, filters: dict[str, Any], expected: list[str]) -> None:
    """By partition, account, cluster and each of the nodes."""
    with Store(scheduled) as store:
        found = store.jobs(**filters)
        assert [job["shown_id"] for job in found] == expected
        assert {job["nodes"] for job in store.jobs(partition="gpu")} == {"c[1-3]"}


def test_all_of_one_id(scheduled: Home) -> None:
    """The oldest first, and each can be had by its number."""
    with Store(scheduled) as store:
        assert [run.start - START for run in store.runs("4242")] == [3, 4, 5]
        assert [run.start - START for run in store.runs("4242@here")] == [3, 4]
        assert [run.start - START for run in store.runs("last")] == [5], "of its own cluster"
        assert [run.id for run in store.runs("4200_")] == ["4207"]
        assert store.runs("42") == [], "it could be any of them"
        assert [store.job("4242", run)["job"]["start"] - START for run in (1, 2, 3)] == [3, 4, 5]
        assert store.job("4242@here", 2) == store.job("4242@here")
        for wrong in (0, 4, -1):
            with pytest.raises(LookupError, match="this id has 3 runs"):
                store.job("4242", wrong)


def test_a_store_that_stays_open_sees_new_jobs(home: Home) -> None:
    """As a notebook does."""
    with Store(home) as store:
        assert store.jobs() == []
        store_job(home, "j1")
        assert [job["id"] for job in store.jobs()] == ["j1"]
        assert store.job("last")["job"]["id"] == "j1"


def test_jobs_are_seen_while_records_are_compacted(home: Home) -> None:
    """A catalog that knows none of the files yet misses no job when they vanish while it reads them."""
    for number in range(3):
        store_job(home, f"j{number}")

    class Slow(Catalog):
        """Somebody compacts just after it has listed the files."""

        def _take_file(self, database: sqlite3.Connection, day: str, name: str) -> bool:
            records.compact_day(home.records, DAY)
            return super()._take_file(database, day, name)

    catalog = Slow(home)
    assert catalog.database.execute("SELECT count(*) FROM jobs").fetchall() == [(3,)]
    assert catalog.problems == []


def test_records_that_are_compacted_since(home: Home) -> None:
    """The catalog knows where a record stands: when that has changed, it is found again."""
    for number in range(3):
        store_job(home, f"j{number}", name=f"n{number}")
    with Store(home) as store:
        assert store.job("j1")["job"]["name"] == "n1"
        assert records.compact_day(home.records, DAY) == 3
        assert [store.job(f"j{number}")["job"]["name"] for number in range(3)] == ["n0", "n1", "n2"]
        store_job(home, "late")
        records.compact_day(home.records, DAY)
        assert [store.job(f"j{number}")["job"]["name"] for number in range(3)] == ["n0", "n1", "n2"]
        assert store.problems == []


def test_a_catalog_that_is_wrong_about_places(home: Home) -> None:
    """Of another file or another place in it, which can be a record too: it is made anew for that day."""
    for number in range(3):
        store_job(home, f"j{number}", name=f"n{number}")
    records.compact_day(home.records, DAY)
    for change in ("place = 0", "file = 'compacted.0-0.jsonl'"):
        with Store(home) as store:
            assert isinstance(store._catalog, Catalog)
            store._catalog.database.execute(f"UPDATE jobs SET {change}")
            assert store.job("j2")["job"]["name"] == "n2"
            assert len(store.jobs()) == 3


def test_a_day_that_is_indexed_again(home: Home) -> None:
    """Other connections see its jobs all the time."""
    for number in range(3):
        store_job(home, f"j{number}")
    reading, repairing = Catalog(home), Catalog(home)
    (identity,) = repairing.find("j1")
    assert reading.count() == 3
    reading.fresh_seconds = repairing.fresh_seconds = 1e9
    records.compact_day(home.records, DAY)
    seen: list[int] = []
    repairing.database.set_trace_callback(lambda _: seen.append(reading.count()))
    assert repairing.report(identity).job.id == "j1"
    repairing.database.set_trace_callback(None)
    assert set(seen) == {3}
    reading.close()
    repairing.close()


@pytest.mark.parametrize("instead", ["nothing", "file"])
def test_records_that_cannot_be_read(home: Home, instead: str) -> None:
    """A store whose file system is not mounted is an error, and not a store without jobs; the index stays."""
    store_job(home, "j1")
    catalog = Catalog(home)
    (identity,) = catalog.find("j1")
    away = home.records.rename(home.path / "away")
    if instead == "file":
        home.records.touch()
    for read in (catalog.count, catalog.check, lambda: catalog.report(identity), lambda: Catalog(home)):
        with pytest.raises(OutsideError, match="the job records cannot be read: .*records"):
            read()
    assert catalog.database.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
    home.records.unlink(missing_ok=True)
    away.rename(home.records)
    assert (catalog.count(), catalog.problems) == (1, [])
    catalog.close()


def test_a_job_that_is_just_being_removed(home: Home) -> None:
    """Between the question which jobs there are and that for its report: one sentence."""
    store_job(home, "j1")
    catalog = Catalog(home)
    (identity,) = catalog.find("j1")
    shutil.rmtree(home.records / DAY)
    with pytest.raises(LookupError, match="the record of job j1 is not there any more"):
        catalog.report(identity)


def test_damage_that_only_a_report_would_show(home: Home) -> None:
    """Such a job is listed; who wants to see all of it is told what is wrong, and other jobs are shown."""
    made = store_job(home, "j1")
    made.job.id = "j2"
    made.timeline[0].cores = "many"  # type: ignore[assignment]
    path = save_record(home, made)
    with Store(home) as store:
        assert {job["id"] for job in store.jobs()} == {"j1", "j2"}
        assert store.job("j1")["timeline"]
        with pytest.raises(
            MalformedError, match=rf"{path}: not a job's record \(job j2\): timeline\[0\].cores: Expected"
        ):
            store.job("j2")


# Versions


def schema(database: sqlite3.Connection) -> list[Any]:
    return database.execute(
        "SELECT type, name, replace(sql, 'IF NOT EXISTS ', '') FROM sqlite_master ORDER BY name"
    ).fetchall()


@pytest.mark.parametrize("version", range(VERSION + 1))
def test_older_versions(version: int, home: Home) -> None:
    """A catalog of any older version is replaced: it has the jobs whose records are there."""
    store_job(home, "j1")
    database = sqlite3.connect(home.catalog, isolation_level=None)
    if version == VERSION:
        database.executescript(TABLES)
    elif version:
        database.executescript(
            "CREATE TABLE jobs (id TEXT PRIMARY KEY, day TEXT) WITHOUT ROWID; CREATE TABLE other (job TEXT);"
            "CREATE INDEX jobs_by_day ON jobs (day);"
            "CREATE TABLE days (day TEXT PRIMARY KEY, changed INTEGER);"
            "INSERT INTO jobs VALUES ('j1', ''), ('removed', '')"
        )
        database.execute("INSERT INTO days VALUES (?, ?)", (DAY, (home.records / DAY).stat().st_mtime_ns))
    database.execute(f"PRAGMA user_version = {version}")
    database.close()
    store_job(home, "j2", start=START + 60)
    assert listed(home) == ["j2", "j1"]
    with Store(home) as store:
        assert store.job("j1")["job"]["name"] == "made"
        store._catalog.prepare()
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    migrate(fresh)
    for index in INDEXES.values():
        fresh.execute(f"CREATE INDEX IF NOT EXISTS {index}")
    assert schema(sqlite3.connect(home.catalog)) == schema(fresh)


def test_a_newer_catalog(home: Home) -> None:
    """It is left as it is, which is said in one sentence, and jobs are read from the records."""
    store_job(home, "j1")
    database = sqlite3.connect(home.catalog)
    database.execute("CREATE TABLE future (x)")
    database.execute("PRAGMA user_version = 99")
    database.close()
    before = home.catalog.read_bytes()
    with Store(home) as store:
        assert [job["id"] for job in store.jobs()] == ["j1"]
        (problem,) = store.problems
    assert problem.startswith(f"{home.catalog}: made by a newer joblens (version 99, ")
    assert home.catalog.read_bytes() == before


# Damage


def break_garbage(path: Path) -> None:
    path.write_bytes(b"this is no database, whatever its name says\n" * 200)


def break_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9000])


def break_page(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


def break_tables(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("DROP TABLE days")
    database.execute("ALTER TABLE jobs RENAME TO sboj")
    database.close()


@pytest.mark.parametrize("harm", [break_garbage, break_cut, break_page, break_tables])
def test_damaged_catalog(harm: Any, home: Home) -> None:
    """One sentence, all jobs are there, and the next time there is nothing to say."""
    made = store_job(home, "j0", batches=1)
    for number in range(1, 30):
        save_record(home, made.replace(job=made.job.replace(id=f"j{number}")))
    with Store(home) as store:
        assert len(store.jobs(limit=0)) == 30
    harm(home.catalog)
    with Store(home) as store:
        assert len(store.jobs(limit=0)) == 30
        assert store.job("j7")["job"]["id"] == "j7"
        (problem,) = store.problems
    assert str(home.path) in problem
    with Store(home) as store:
        assert len(store.jobs(limit=0)) == 30
        assert store.problems == []


def test_catalog_that_breaks_while_it_is_used(home: Home) -> None:
    """A question that its file cannot answer any more is answered from the records."""
    store_job(home, "j1")
    with Store(home) as store:
        other = sqlite3.connect(home.catalog)
        other.execute("DROP TABLE jobs")
        other.close()
        assert [job["id"] for job in store.jobs()] == ["j1"]
        assert "rebuilt from the records" in store.problems[0]


def test_catalog_that_another_holds(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever for a process that has locked it and does not go on."""
    store_job(home, "j1")
    Store(home).close()
    store_job(home, "j2")
    monkeypatch.setattr("joblens.store.catalog.index._PATIENCE_SECONDS", 0.1)
    other = sqlite3.connect(home.catalog, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with Store(home) as store:
        assert len(store.jobs()) == 2
        (problem,) = store.problems
    assert problem == f"{home.catalog}: database is locked; jobs are read from the records instead"
    other.close()


def test_a_folder_in_its_place(home: Home) -> None:
    """A catalog that cannot be opened is one sentence."""
    store_job(home, "j1")
    home.catalog.mkdir()
    with Store(home) as store:
        assert len(store.jobs()) == 1
        (problem,) = store.problems
    assert "jobs are read from the records instead" in problem


def test_an_index_that_another_keeps_up_to_date(home: Home) -> None:
    """With `fresh_seconds` a catalog compares nothing itself, and shows what another one has indexed."""
    reading = Catalog(home)
    reading.fresh_seconds = 1e9
    assert reading.count() == 0
    store_job(home, "a")
    assert reading.count() == 0
    refreshing = Catalog(home)
    assert (refreshing.count(), reading.count()) == (1, 1)
    (found,) = reading.find("a")
    for path in home.records.glob("*/*.json"):
        path.unlink()
    with pytest.raises(LookupError):
        reading.report(found)  # a file that is gone is noticed at once
    reading.close()
    refreshing.close()
