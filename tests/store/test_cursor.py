"""Pages of a listing: a cursor names the row after which the next page begins."""

from __future__ import annotations

import base64
import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.core.errors import UsageError
from joblens.record.report import JobRecord
from joblens.store.catalog.choice import open_catalog
from joblens.store.catalog.cursor import is_after, next_cursor, parse_cursor, sort_rows
from joblens.store.catalog.listing import SORTS, JobFilter, JobRow
from joblens.store.catalog.plan import make_terms, plan
from joblens.store.catalog.queries import JobCatalog
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.home import Home
from joblens.store.saving import save_records

from .made import START, new_home, store_job

_SCOPES = [ALL, Scope(False, frozenset({"alice"}), frozenset({"maths"}))]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> JobRecord:
    return store_job(new_home(tmp_path_factory.mktemp("made")), "made", batches=1)


def save(home: Home, made: JobRecord, numbers: range) -> None:
    """Jobs of which many are equal in what they are sorted by, and some figures are unknown."""
    many = []
    for number in numbers:
        job = made.job.replace(
            id=f"j{number}",
            cluster="bear" if number % 5 == 0 else "fox",
            user=("alice", "bob", "carol")[number % 3],
            account="maths" if number % 2 else None,
            name=f"n{number % 4}",
            start=START + number // 6,
            tags={"even": "yes"} if number % 2 == 0 else {},
        )
        known = number % 7 != 0
        used = made.used.replace(
            cpu_seconds=float(number % 4) if known else None,
            memory_peak_bytes=number % 5 if known else None,
            duration_seconds=float(number % 3),
        )
        many.append(made.replace(job=job, used=used))
    save_records(home, many)


def pages(catalog: JobCatalog, wanted: JobFilter, scope: Scope = ALL) -> list[list[JobRow]]:
    found = [catalog.jobs(wanted, scope)]
    while found[-1] and len(found[-1]) == wanted.limit:
        following = wanted._replace(cursor=next_cursor(found[-1], wanted))
        found.append(catalog.jobs(following, scope))
        assert len(found) < 1000
    return found


@pytest.mark.parametrize(
    ("few", "entries"),
    [(0, 0), (50_000, 0), (50_000, 50_000)],
    ids=["by the order", "by a condition", "by the order as far as the page should reach"],
)
def test_pages_are_the_listing(
    home: Home, made: JobRecord, few: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every order and filter, in each way to answer: each job once, and in the order of the whole."""
    monkeypatch.setattr("joblens.store.catalog.plan._FEW", few)
    monkeypatch.setattr("joblens.store.catalog.plan._MANY_ENTRIES", entries)
    save(home, made, range(60))
    catalog = open_catalog(home)
    filters: list[dict[str, Any]] = [{}, {"user": "bob", "name": "n*"}, {"tags": (("even", "yes"),)}]
    for sort, reverse, scope, more in product(SORTS, (False, True), _SCOPES, filters):
        wanted = JobFilter(sort=sort, reverse=reverse, limit=0, **more)
        whole = catalog.jobs(wanted, scope)
        assert whole == sort_rows(whole[::-1], wanted)
        found = pages(catalog, wanted._replace(limit=11), scope)
        assert [row for page in found for row in page] == whole, wanted
        assert len(pages(catalog, wanted._replace(limit=1000), scope)) == 1


@pytest.mark.parametrize("sort", SORTS)
def test_jobs_that_arrive_meanwhile(home: Home, made: JobRecord, sort: str) -> None:
    """They move no other job to another page: all that were there at the beginning are listed once."""
    save(home, made, range(0, 60, 2))
    catalog = open_catalog(home)
    wanted = JobFilter(sort=sort, limit=4)
    before = {row.id for row in catalog.jobs(wanted._replace(limit=0))}
    page = catalog.jobs(wanted)
    ids = [row.id for row in page]
    for number in range(1, 60, 2):
        if len(page) < wanted.limit:
            break
        cursor = next_cursor(page, wanted)
        save(home, made, range(number, number + 1))
        page = catalog.jobs(wanted._replace(cursor=cursor))
        ids += [row.id for row in page]
    assert len(ids) == len(set(ids))
    assert before <= set(ids)


def test_a_cursor_of_another_listing(home: Home, made: JobRecord) -> None:
    """One sentence, instead of a page that begins anywhere."""
    save(home, made, range(9))
    catalog = open_catalog(home)
    cursor = next_cursor(catalog.jobs(JobFilter(limit=3)), JobFilter(limit=3))
    for other in (JobFilter(sort="cpu"), JobFilter(reverse=True)):
        with pytest.raises(UsageError, match="sorted differently"):
            catalog.jobs(other._replace(cursor=cursor))


_PLACE = ["start", False, 1.0, 1.0, "a", "b", 0.0]


@pytest.mark.parametrize(
    "place",
    [
        [], {}, None, 7, _PLACE[:-1], [*_PLACE, 1], ["start", False, "x", 1.0, "a", "b", 0.0],
        ["start", False, True, 1.0, "a", "b", 0.0], ["start", False, 1.0, 1.0, 7, "b", 0.0],
        ["start", False, 2**63, 1.0, "a", "b", 0.0], ["start", False, 1.0, [1], "a", "b", 0.0],
        ["start", False, 1.0, 1.0, "a", None, 0.0], ["start", False, 1.0, 1.0, "\ud800", "b", 0.0],
        ["start", False, float("inf"), 1.0, "a", "b", 0.0], ["start", False, 1.0, 1.0, "a", "b", None],
    ],
)  # fmt: skip
def test_a_cursor_that_was_made_up(place: Any) -> None:
    """Of whatever parts, it is a UsageError and never an error of the database."""
    text = base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")
    with pytest.raises(UsageError, match="is not one that a listing returned"):
        parse_cursor(JobFilter(cursor=text))


@given(st.text() | st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_any_text_as_a_cursor(text: str) -> None:
    with pytest.raises(UsageError):
        parse_cursor(JobFilter(cursor=text))
    with pytest.raises(UsageError):
        list(plan(JobFilter(cursor=text), make_terms(JobFilter()), lambda *_: 0))


_VALUES = st.none() | st.sampled_from([0.0, 1.0, 2.0])
_ROWS = st.builds(
    JobRow,
    st.sampled_from(["fox", "bear"]),
    st.sampled_from(["1", "10", "2", "é"]),
    _VALUES,
    cpu_seconds=_VALUES,
    user=st.sampled_from(["", "a", "b"]),
)


@given(st.lists(_ROWS, max_size=8), st.sampled_from(["start", "cpu", "user"]), st.booleans())
def test_live_rows_have_the_same_order(rows: list[JobRow], sort: str, reverse: bool) -> None:
    """Of jobs that wait or run, exactly those that are sorted behind a row come after its cursor."""
    wanted = JobFilter(sort=sort, reverse=reverse, limit=1)
    ordered = sort_rows({row[:3]: row for row in rows}.values(), wanted)
    for number, row in enumerate(ordered):
        cursor = parse_cursor(wanted._replace(cursor=next_cursor([row], wanted)))
        assert cursor is not None
        assert [is_after(it, cursor, wanted) for it in ordered] == [
            place > number for place in range(len(ordered))
        ]


def test_the_same_page_has_the_same_cursor() -> None:
    """Unless durations of running jobs grow with time."""
    rows = [JobRow("fox", "1", 1.0, duration_seconds=2.0)]
    wanted = JobFilter(limit=1)
    assert next_cursor(rows, wanted, 100.0) == next_cursor(rows, wanted, 200.0)
    wanted = JobFilter(limit=1, sort="duration")
    cursor = parse_cursor(wanted._replace(cursor=next_cursor(rows, wanted, 100.0)))
    assert cursor is not None
    assert cursor.now == 100.0
