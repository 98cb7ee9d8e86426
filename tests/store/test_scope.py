"""Whose jobs a reader sees: the policy in Python and in SQL, and every question that the catalog answers."""

from __future__ import annotations

import inspect
import re
import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from joblens.store.catalog.choice import open_catalog
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import JobFilter
from joblens.store.catalog.queries import JobCatalog
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.home import Home
from joblens.store.lake.columns import storable
from joblens.store.saving import save_record

from .made import START, store_job

_NAMES = st.sampled_from(
    ["", "alice", "bob", "ALICE", "alice ", "physics", "é", "?", "\udce9", "a\0b", "%", "'"]
)
_SETS = st.frozensets(_NAMES | st.text(max_size=3), max_size=4)


@given(
    st.builds(Scope, st.booleans(), _SETS, _SETS),
    _NAMES | st.none() | st.text(max_size=3),
    _NAMES | st.none() | st.text(max_size=3),
)
@example(Scope(False, frozenset({""}), frozenset({""})), "", "")
@example(Scope(False, frozenset({"\udce9"}), frozenset()), "?", None)
def test_the_policy_is_the_same_in_sql(scope: Scope, user: str | None, account: str | None) -> None:
    """For any names, also for empty ones and for those that are not Unicode."""
    user, account = (None if it is None else storable(it) for it in (user, account))
    condition, values = scope.condition()
    database = sqlite3.connect(":memory:")
    row = "SELECT ? AS user, ? AS account"
    found = database.execute(f"SELECT 1 FROM ({row}) WHERE {condition}", [user, account, *values]).fetchall()
    database.close()
    assert bool(found) == scope.allows(user, account)


@given(_SETS, _SETS)
def test_no_name_is_no_one(users: frozenset[str], accounts: frozenset[str]) -> None:
    """A job whose user and account are unknown is shown only to those who see everything."""
    for unknown in ("", None):
        assert not Scope(False, users, accounts).allows(unknown, unknown)
        assert ALL.allows(unknown, unknown)


OWN = Scope(False, frozenset({"alice"}), frozenset())
MANAGER = Scope(False, frozenset({"carol"}), frozenset({"physics", "maths"}))
NO_ONE = Scope(False, frozenset(), frozenset())


@pytest.fixture
def shared(home: Home) -> Home:
    """Jobs of three users; 4242 was bob's, then alice's, then bob's again, in two clusters."""
    made = store_job(home, "1", user="alice", tags={"model": "x"})
    for number, (id, user, account, cluster) in enumerate(
        [
            ("4242", "bob", "physics", "here"),
            ("4242", "alice", "chemistry", "here"),
            ("4242", "bob", "physics", "there"),
            ("5001.a", "alice", "", "here"),
            ("5001.b", "bob", "maths", "here"),
            ("5001.c", "", "", "here"),
        ],
        1,
    ):
        facts = {"id": id, "user": user, "account": account, "cluster": cluster, "tags": {}}
        job = made.job.replace(**facts, start=START + number)
        save_record(home, made.replace(job=job))
    return home


@pytest.mark.parametrize(
    ("scope", "starts"),
    [(ALL, [6, 5, 4, 3, 2, 1, 0]), (OWN, [4, 2, 0]), (MANAGER, [5, 3, 1]), (NO_ONE, [])],
)
def test_what_is_listed_and_counted(shared: Home, scope: Scope, starts: list[int]) -> None:
    """Only jobs of the scope, whatever is asked for."""
    catalog = open_catalog(shared)
    assert [(row.start or 0) - START for row in catalog.jobs(JobFilter(), scope)] == starts
    assert [(row.start or 0) - START for row in catalog.jobs(JobFilter(limit=1), scope)] == starts[:1]
    assert catalog.count(scope) == len(starts)
    assert [start - START for _, _, start in catalog.find("last", scope)] == starts[:1]


def test_ids_that_others_have_too(shared: Home) -> None:
    """Prefixes, runs of a reused id and their numbers are those of the scope's jobs alone."""
    catalog = open_catalog(shared)
    assert [it[1] for it in catalog.find("5001", OWN)] == ["5001.a"]
    assert [it[1] for it in catalog.find("5001", MANAGER)] == ["5001.b"]
    assert len(catalog.find("5001")) == 3
    assert [run.start - START for run in catalog.runs("4242", OWN)] == [2]
    assert [run.start - START for run in catalog.runs("4242", MANAGER)] == [1, 3]
    assert [run.start - START for run in catalog.runs("5001", OWN)] == [4], "the only one that begins so"
    assert catalog.runs("4242@there", OWN) == []
    assert catalog.runs("4242", NO_ONE) == []
    assert catalog.find("4242", NO_ONE) == []


def test_identities_that_were_guessed(shared: Home) -> None:
    """Another's job and one that does not exist give the same answers."""
    catalog = open_catalog(shared)
    real, none = ("here", "4242", START + 1), ("here", "4242", START + 99)
    assert catalog.report(real).job.user == "bob"
    answers = []
    for identity in (real, none):
        with pytest.raises(LookupError) as error:
            catalog.report(identity, OWN)
        answers.append((str(error.value), catalog.name_of(identity, OWN), catalog.written([identity], OWN)))
    assert answers[0] == answers[1]


def test_a_record_that_says_another_owner(shared: Home) -> None:
    """A catalog that is wrong about the owner shows the job to no one but the owner."""
    catalog = Catalog(shared)
    catalog.database.execute("UPDATE jobs SET user = 'alice' WHERE start = ?", (START + 1,))
    with pytest.raises(LookupError):
        catalog.report(("here", "4242", START + 1), OWN)


def test_every_question_takes_a_scope() -> None:
    """A method that reads jobs and cannot be restricted would be a way around the policy."""
    # The borders of a run narrow which rows are read for a job that the viewer may see.
    others = ("borders", "close", "check", "forget", "prepare", "remove")
    questions = [
        getattr(JobCatalog, name)
        for name in vars(JobCatalog)
        if not name.startswith("_") and name not in others
    ]
    assert len(questions) >= 7
    assert all("scope" in inspect.signature(it).parameters for it in questions)


@pytest.mark.parametrize("scope", [ALL, OWN, MANAGER])
@pytest.mark.parametrize("id", ["4242", "4242@fox", "9"])
def test_a_job_is_found_by_its_id(home: Home, scope: Scope, id: str) -> None:
    """Not by a search through all jobs of a user, an account or a cluster."""
    catalog = Catalog(home)
    plans: list[str] = []
    ask = catalog._ask

    def explain(query: str, values: Sequence[Any] = ()) -> list[Any]:
        plans.extend(row[3] for row in catalog.database.execute(f"EXPLAIN QUERY PLAN {query}", values))
        return ask(query, values)

    catalog._ask = explain  # type: ignore[method-assign]
    catalog._with_id(id, scope)
    searches = [plan for plan in plans if plan.startswith(("SEARCH", "SCAN"))]
    assert searches
    assert [it for it in searches if not re.search(r"USING (COVERING )?INDEX jobs_by_(shown_)?id ", it)] == []
    catalog.close()
