"""Copying job records from one store to another, between files and databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from joblens.core.errors import OutsideError
from joblens.store import records
from joblens.store.catalog.choice import open_catalog
from joblens.store.catalog.queries import identity_of
from joblens.store.home import Home
from joblens.store.saving import save_records

if TYPE_CHECKING:
    from joblens.record.report import JobRecord

Progress = Callable[[int, int], None]
_AT_ONCE = 500  # records in memory


class Copied(NamedTuple):
    copied: int
    known: int  # that the other store had already
    problems: list[str]


def copy_records(source: Home, target: Home, progress: Progress | None = None) -> Copied:
    """Copy each record that the target does not have, or not as new. Repeated, it copies the rest.

    Raises OutsideError and OSError.
    """
    problems: list[str] = []
    copied = known = 0
    if target.database is not None:
        from joblens.store.catalog.postgresql.admin import init

        init(target.database)
    found = _load_all(source, problems)
    total, catalog = _count(source), open_catalog(target)
    try:
        while some := list(islice(found, _AT_ONCE)):
            there = catalog.written(identity_of(it) for it in some)
            new = [it for it in some if there.get(identity_of(it), -1) < it.written]
            waits = save_records(target, new)
            if waits:
                raise OutsideError(waits)
            copied, known = copied + len(new), known + len(some) - len(new)
            if progress:
                progress(copied + known, max(total, copied + known))
    finally:
        catalog.close()
    return Copied(copied, known, problems + catalog.problems)


def _count(home: Home) -> int:
    catalog = open_catalog(home)
    try:
        return catalog.count()
    finally:
        catalog.close()


def _load_all(home: Home, problems: list[str]) -> Iterator[JobRecord]:
    if home.database is not None:
        from joblens.store.catalog.postgresql.reader import load_all

        yield from load_all(home.database, problems)
        return
    for day, _ in records.list_days(home.records):
        for name in records.list_records(home.records, day):
            yield from records.load_records(home.records / day / name, problems)
