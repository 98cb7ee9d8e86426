"""The catalog in PostgreSQL gives the same answers as the index of files: the tests of that, once more."""

from __future__ import annotations

from pathlib import Path

import pytest

from joblens.store.home import Home
from store.made import new_home
from store.test_catalog import (  # noqa: F401
    scheduled,
    several,
    test_a_store_that_stays_open_sees_new_jobs,
    test_all_of_one_id,
    test_an_id_that_comes_round_again,
    test_filters_and_orders,
    test_filters_of_schedulers,
    test_finding_a_job,
    test_ids_of_schedulers,
    test_unknown_order_is_one_sentence,
)
from store.test_cursor import (  # noqa: F401
    made,
    test_a_cursor_of_another_listing,
    test_jobs_that_arrive_meanwhile,
    test_pages_are_the_listing,
)
from store.test_scope import (  # noqa: F401
    shared,
    test_identities_that_were_guessed,
    test_ids_that_others_have_too,
    test_what_is_listed_and_counted,
)

from .postgresql import Postgres


@pytest.fixture
def home(postgres: Postgres, tmp_path: Path) -> Home:
    """With a database that has no jobs."""
    return new_home(tmp_path / "store")._replace(database=postgres.without_jobs())
