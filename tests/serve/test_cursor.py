"""Pages of a listing: each job once, whatever the order and the size of a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.api.lookup import list_jobs
from joblens.api.store import Store
from joblens.serve.cursor import Cursor, parse_cursor, render_cursor
from joblens.serve.errors import ApiError
from joblens.store import records
from joblens.store.catalog.listing import SORTS, JobFilter

from .serving import START, make_job


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(tmp_path_factory.mktemp("store")) as it:
        jobs = [make_job(str(n), "alice", START + n // 7, name=f"n{n % 3}") for n in range(60)]
        never = [make_job(f"w{n}", "alice", START + 3, node=None, nodes=[]) for n in range(3)]
        for job in never:
            job.job.end, job.used.duration_seconds = job.job.start, 0.0
        records.save_records(it.home.records, [*jobs, *never])
        yield it


def pages(store: Store, wanted: JobFilter) -> Iterator[list[str]]:
    cursor: Cursor | None = Cursor()
    while cursor is not None:
        found = list_jobs(store, cursor.apply(wanted), [])
        yield [row.id for row in found[cursor.skip : cursor.skip + wanted.limit]]
        following = cursor.after(wanted, found)
        cursor = None if following is None else parse_cursor(render_cursor(following))


@given(st.sampled_from(sorted(SORTS)), st.booleans(), st.integers(1, 80))
def test_all_jobs_once(store: Store, sort: str, reverse: bool, limit: int) -> None:
    """The pages together are the whole listing, in its order."""
    wanted = JobFilter(sort=sort, reverse=reverse, limit=limit)
    found = list(pages(store, wanted))
    whole = [row.id for row in list_jobs(store, wanted._replace(limit=0), [])]
    assert [id for page in found for id in page] == whole
    assert all(len(page) == limit for page in found[:-1])


def test_new_jobs_do_not_shift_pages() -> None:
    """By start time, a page begins where the one before ended."""
    wanted = JobFilter(limit=10)
    assert Cursor(2, START).apply(wanted).until == START
    assert Cursor(2, START).apply(wanted._replace(reverse=True)).since == START
    assert Cursor(2, START).apply(wanted._replace(until=START - 5)).until == START - 5


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_what_is_no_cursor(text: str) -> None:
    """Any text is a cursor or refused."""
    with suppress(ApiError):
        assert 0 <= parse_cursor(text).skip <= 100_000


@pytest.mark.parametrize("cursor", [Cursor(-1), Cursor(10**6), Cursor(1, "x")])  # type: ignore[arg-type]
def test_far_away(cursor: Cursor) -> None:
    """A cursor that no answer has had is refused."""
    with pytest.raises(ApiError):
        parse_cursor(render_cursor(cursor))
