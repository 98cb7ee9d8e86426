from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from joblens.api import Store
from joblens.core.errors import MalformedError
from joblens.store import records
from joblens.store.catalog import heads
from joblens.store.catalog.index import Catalog
from joblens.store.home import Home
from joblens.store.maintenance import check_records

from .made import START, store_job

DAY = "2020-01-02"
JOBS = 20
_TABLES = {
    "jobs": "SELECT * FROM jobs ORDER BY number",
    "tags": "SELECT * FROM tags ORDER BY 1, 2",
    "annotations": "SELECT * FROM annotations ORDER BY 1, 2",
    "job_nodes": "SELECT * FROM job_nodes ORDER BY 1, 2",
    "kinds": "SELECT * FROM kinds ORDER BY 1",
    "names": "SELECT * FROM names ORDER BY 1",
}


@pytest.fixture
def many(home: Home) -> Home:
    """Jobs of all sorts in one file, as an import stores them."""
    made = store_job(home, "first")
    (path,) = home.records.glob("*/*.json")
    path.unlink()
    choice = random.Random(7)
    jobs = []
    for number in range(JOBS):
        facts: dict[str, Any] = {
            "id": f"j{number}",
            "name": f"n{number % 3}",
            "user": f"u{number % 4}",
            "account": choice.choice((None, "a", "b")),
            "start": START + number,
            "node": choice.choice((None, "c1")),
            "nodes": choice.choice((None, [], ["c1"], ["c2"], ["c1", "c2", "c3"])),
            "tags": choice.choice(({}, {"model": "x", "\u00e9": "'"})),
            "annotations": choice.choice((None, {}, {"why": "a\nb"})),
            "array_job": choice.choice((None, "4200")),
            "array_task": str(number),
        }
        used = made.used.replace(cpu_seconds=choice.choice((None, 7, 0.5)))
        jobs.append(made.replace(job=made.job.replace(**facts), used=used, written=1000 + number))
    records.save_records(home.records, jobs)
    return home


def files(home: Home, suffix: str) -> list[Path]:
    return sorted(home.records.glob(f"*/*{suffix}"))


def content(home: Home) -> dict[str, list[Any]]:
    """All that a new catalog has."""
    for path in home.path.glob("catalog.sqlite*"):
        path.unlink()
    catalog = Catalog(home)
    try:
        assert catalog.problems == []
        return {name: catalog.database.execute(query).fetchall() for name, query in _TABLES.items()}
    finally:
        catalog.close()


def test_the_same_catalog_with_heads_and_without(many: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with heads no record is read."""
    with monkeypatch.context() as patched:
        patched.setattr(records, "load_listed", lambda *_: pytest.fail("records are read"))
        with_heads = content(many)
    (path,) = files(many, ".heads")
    path.unlink()
    assert content(many) == with_heads
    assert len(with_heads["jobs"]) == JOBS
    assert all(with_heads.values())


def test_compaction_writes_them(many: Home) -> None:
    store_job(many, "late")
    before = files(many, ".heads")
    assert records.compact_day(many.records, DAY) == 2
    ((path,), (beside,)) = files(many, ".jsonl"), files(many, ".heads")
    assert beside == path.with_suffix(".heads") != before[0]
    assert heads.load_heads(path) == [
        heads.make_head(*it) for some in records.load_listed(path, []) for it in some
    ]
    with Store(many) as store:
        assert store.job("late").job.id == "late"
        assert store.job("j7").job.name == "n1"


def test_deletion_leaves_no_head(many: Home) -> None:
    (before,) = files(many, ".heads")
    orphan = before.with_name("compacted.1-aa.heads")
    orphan.write_bytes(before.read_bytes())
    assert records.remove_records(many.records, [("here", "j7", START + 7)]) == 1
    ((path,), found) = files(many, ".jsonl"), files(many, ".heads")
    assert found == [path.with_suffix(".heads")]
    assert b"j7" not in found[0].read_bytes()
    assert len(content(many)["jobs"]) == JOBS - 1


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "records", "version"])
def test_heads_that_do_not_fit(many: Home, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are ignored: the records are read."""
    ((path,), (beside,)) = files(many, ".jsonl"), files(many, ".heads")
    expected, data = content(many), beside.read_bytes()
    if damage == "records":  # another file of records, with one more that is the same
        path.write_bytes(path.read_bytes() + path.read_bytes().splitlines(keepends=True)[-1])
    elif damage == "version":
        monkeypatch.setattr(heads, "_VERSION", 2)
    else:
        beside.write_bytes({"cut": data[:-9], "bit": data[:90] + b"~" + data[91:], "empty": b""}[damage])
    assert heads.load_heads(path) is None
    found = content(many)
    assert [row[3] for row in found["jobs"]] == [row[3] for row in expected["jobs"]]
    assert found["tags"] == expected["tags"]


def test_heads_of_too_many_are_not_made(many: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not if they are written at once; if their files become one, until they are too many."""
    made: list[int] = []
    make = heads.make_head

    def counted(place: int, record: Any) -> heads.Head:
        made.append(place)
        return make(place, record)

    monkeypatch.setattr(heads, "make_head", counted)
    monkeypatch.setattr(heads, "_MOST", JOBS)
    again = list(records.load_records(files(many, ".jsonl")[0], []))
    records.save_records(many.records, again * 2)
    assert made == []
    assert records.compact_day(many.records, DAY) == 2
    assert len(made) == JOBS + 1
    assert files(many, ".heads") == []


def test_wrong_places(many: Home) -> None:
    """Intact heads of other records of the same size: a job is found by its record nevertheless."""
    ((path,), _) = files(many, ".jsonl"), files(many, ".heads")
    found = heads.load_heads(path)
    assert found is not None
    place = 21
    heads.save_heads(path, [(*head[:place], found[0][place], *head[place + 1 :]) for head in found])
    with Store(many) as store:
        assert store.job("j9").job.id == "j9"
    (problem,) = check_records(many)
    assert problem.endswith("its heads differ from the records, and were removed")
    assert files(many, ".heads") == []
    assert check_records(many) == []


def test_damaged_records_beside_intact_heads(many: Home) -> None:
    """The job is listed, its report says what is wrong, and the check sets the file aside with its heads."""
    (path,) = files(many, ".jsonl")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"folder": "/"', b'"folder": "~"', 1))
    with Store(many) as store:
        assert len(store.jobs()) == JOBS
        with pytest.raises(MalformedError, match="checksum mismatch"):
            store.job("j0")
    (problem,) = check_records(many)
    assert "checksum mismatch" in problem
    (path,) = files(many, ".jsonl")
    assert files(many, ".heads") == [path.with_suffix(".heads")]
    assert len(content(many)["jobs"]) == JOBS - 1


def test_few_records_have_none(home: Home) -> None:
    store_job(home, "a")
    store_job(home, "b")
    assert records.compact_day(home.records, DAY) == 2
    assert files(home, ".heads") == []
