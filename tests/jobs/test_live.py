"""Lists of live jobs: they are read when they change, and jobs are found by an index."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from joblens.jobs import live_lists
from joblens.jobs.live import add_live, find_live
from joblens.jobs.live_lists import load_all, save_live
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.listing import Identity, JobFilter
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.home import Home, find_home, make_home


def pending(id: str, user: str = "alice", account: str = "") -> BatchJob:
    return BatchJob("fox", id, "slurm", user=user, state="PENDING", submit=1.0, account=account)


def save(home: Home, jobs: list[BatchJob], age: float = 1.0) -> None:
    save_live(home, "h", jobs, time.time())
    when = time.time() - age
    os.utime(home.path / "live" / "h.json", (when, when))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(find_home(tmp_path / "store"))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that have been parsed."""
    names: list[str] = []
    load = live_lists._load

    def noted(path: Path) -> live_lists.Live:
        names.append(path.name)
        return load(path)

    monkeypatch.setattr(live_lists, "_load", noted)
    return names


def test_a_list_is_parsed_once(home: Home, parsed: list[str]) -> None:
    """Until it is replaced; who asks next sees the new one."""
    save(home, [pending("1")])
    for _ in range(3):
        assert [job.id for job in find_live(home, "1", [])] == ["1"]
        assert len(add_live(home, JobFilter(state="PENDING"), [], [])) == 1
    assert parsed == ["h.json"]
    save(home, [pending("2")], age=2.0)
    assert (find_live(home, "1", []), len(find_live(home, "2", []))) == ([], 1)
    assert parsed == ["h.json"] * 2


def test_a_list_that_may_be_replaced_unnoticed(home: Home, parsed: list[str]) -> None:
    """One that is as new as the file system's clock is coarse is read again."""
    save(home, [pending("1")], age=-1.0)
    assert len(load_all(home, [])) == len(load_all(home, [])) == 1
    assert len(parsed) == 2


def test_records_of_pending_jobs_are_not_searched_for(home: Home) -> None:
    """There can be very many, and none of them has one."""
    save(home, [pending("1"), BatchJob("fox", "2", "slurm", state="RUNNING", start=5.0)])
    asked: list[Identity] = []

    def find_stored(identities: Iterable[Identity]) -> list[Identity]:
        asked.extend(identities)
        return []

    for state in ("PENDING", "RUNNING"):
        wanted = JobFilter(state=state)
        assert len(add_live(home, wanted, [], [], find_stored=find_stored)) == 1
    assert asked == [("fox", "2", 5.0)]


def test_problems_are_reported_each_time(home: Home) -> None:
    save(home, [])
    (home.path / "live" / "bad.json").write_text("{")
    os.utime(home.path / "live" / "bad.json", (time.time() - 9, time.time() - 9))
    for _ in range(2):
        problems: list[str] = []
        load_all(home, problems)
        assert len(problems) == 1


@pytest.mark.parametrize(
    ("wanted", "scope", "expected"),
    [
        (JobFilter(state="PENDING"), ALL, {"1", "2", "3"}),
        (JobFilter(state="PENDING", user="bob"), ALL, {"2"}),
        (JobFilter(state="PENDING"), Scope(False, frozenset({"alice"}), frozenset()), {"1"}),
        (JobFilter(state="PENDING", user="bob"), Scope(False, frozenset({"alice"}), frozenset()), set()),
        (JobFilter(state="PENDING"), Scope(False, frozenset({"alice"}), frozenset({"hep"})), {"1", "3"}),
        (JobFilter(state="PENDING", user="eve"), Scope(False, frozenset(), frozenset({"hep"})), {"3"}),
        (JobFilter(state="PENDING"), Scope(False, frozenset(), frozenset()), set()),
    ],
)
def test_jobs_of_users(home: Home, wanted: JobFilter, scope: Scope, expected: set[str]) -> None:
    save(home, [pending("1"), pending("2", "bob"), pending("3", "eve", account="hep")])
    assert {row.id for row in add_live(home, wanted, [], [], scope=scope)} == expected
