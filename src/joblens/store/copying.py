"""Copying job records from one store to another, between files and databases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from joblens.core.errors import OutsideError
from joblens.store import records
from joblens.store.catalog.choice import open_catalog
from joblens.store.catalog.queries import JobCatalog, identity_of
from joblens.store.database import Database
from joblens.store.home import Home
from joblens.store.saving import save_records

if TYPE_CHECKING:
    from joblens.record.report import JobRecord

# A store, or a database of another one: records that wait in the folder of a store are not for it.
Place = Home | Database
Progress = Callable[[int, int], None]
_AT_ONCE = 500  # records in memory


class Copied(NamedTuple):
    copied: int
    known: int  # that the other store had already
    problems: list[str]


def database_of(place: Place) -> Database | None:
    return place if isinstance(place, Database) else place.database


def copy_records(source: Place, target: Place, progress: Progress | None = None) -> Copied:
    """Copy each record that the target does not have, or not as new. Repeated, it copies the rest.

    Raises OutsideError and OSError.
    """
    problems: list[str] = []
    copied = known = 0
    if (database := database_of(target)) is not None:
        from joblens.store.catalog.postgresql.access import init

        init(database)
    found = _load_all(source, problems)
    total, catalog = _count(source), _open(target)
    try:
        while some := list(islice(found, _AT_ONCE)):
            there = catalog.written(identity_of(it) for it in some)
            new = [it for it in some if there.get(identity_of(it), -1) < it.written]
            _save(target, new)
            copied, known = copied + len(new), known + len(some) - len(new)
            if progress:
                progress(copied + known, max(total, copied + known))
    finally:
        catalog.close()
    return Copied(copied, known, problems + catalog.problems)


def _open(place: Place) -> JobCatalog:
    if isinstance(place, Home):
        return open_catalog(place)
    from joblens.store.catalog.postgresql.catalog import PostgresCatalog

    return PostgresCatalog(place)


def _save(target: Place, many: list[JobRecord]) -> None:
    if isinstance(target, Home):
        if waits := save_records(target, many):
            raise OutsideError(waits)
        return
    from joblens.store.catalog.postgresql.access import save_in

    save_in(target, many, time.time_ns())


def _count(place: Place) -> int:
    catalog = _open(place)
    try:
        return catalog.count()
    finally:
        catalog.close()


def _load_all(place: Place, problems: list[str]) -> Iterator[JobRecord]:
    if isinstance(place, Home) and place.database is None:
        for day, _ in records.list_days(place.records):
            for name in records.list_records(place.records, day):
                yield from records.load_records(place.records / day / name, problems)
    elif (database := database_of(place)) is not None:
        from joblens.store.catalog.postgresql.access import load_all

        yield from load_all(database, problems)
