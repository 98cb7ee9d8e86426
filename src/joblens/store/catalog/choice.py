"""The one place where it is decided which catalog a store has."""

from __future__ import annotations

from collections.abc import Callable

from joblens.store.catalog.queries import JobCatalog
from joblens.store.home import Home


def open_catalog(
    home: Home, progress: Callable[[int, int], None] | None = None, *, creates: bool = False
) -> JobCatalog:
    """Open the index of the record files, or the database that has the records. Raises OutsideError.

    `creates`: the tables of an empty database, for a caller that is going to save records.
    """
    if home.database is not None:
        from joblens.store.catalog.postgresql.catalog import PostgresCatalog
        from joblens.store.saving import deliver

        problems = deliver(home)
        catalog = PostgresCatalog(home.database, creates)
        catalog.problems += problems
        return catalog
    from joblens.store.catalog.index import Catalog

    return Catalog(home, progress)
