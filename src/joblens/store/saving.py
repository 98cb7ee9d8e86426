"""Saving, changing and removing job records, wherever the store has them: in files, or in a database.

While a database cannot be reached or changed, records are saved as files in the folder `undelivered` of the
store. They are delivered with the next record that is saved, or when the store is next opened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.core.errors import OutsideError, sentence
from joblens.core.files import make_folder, size_of
from joblens.store import records
from joblens.store.home import Home

if TYPE_CHECKING:
    from joblens.record.report import JobRecord
    from joblens.store.catalog.listing import Identity
    from joblens.store.database import Database


def save_record(home: Home, record: JobRecord) -> str:
    """Save one, durable on return. Return why it has to wait for the database, or "". Raises OSError."""
    if home.database is None:
        records.save_record(home.records, record)
        return ""
    return _save(home, home.database, [record])


def save_records(home: Home, many: Iterable[JobRecord]) -> str:
    """Many at once. The same."""
    if home.database is None:
        records.save_records(home.records, many)
        return ""
    return _save(home, home.database, list(many))


def _save(home: Home, database: Database, many: list[JobRecord]) -> str:
    from joblens.store.catalog.postgresql.access import save_in
    from joblens.store.catalog.postgresql.connection import UnavailableError
    from joblens.store.edits import apply_edits

    now = time.time_ns()
    for record in many:
        apply_edits(home.path, record)
    try:
        save_in(database, many, now)
    except UnavailableError as error:
        return keep(home, many, now, error)
    deliver(home)
    return ""


def remove_record(home: Home, identity: Identity) -> None:
    """Remove all versions of the record of a job. Raises OutsideError and OSError."""
    from joblens.store.catalog.choice import open_catalog

    catalog = open_catalog(home)
    try:
        catalog.remove([identity])
    finally:
        catalog.close()


@contextmanager
def changing(home: Home) -> Iterator[None]:
    """One change of a record at a time: none of two that are merged is lost. Raises OutsideError."""
    if home.database is None:
        with records.alone(home.records):
            yield
        return
    from joblens.store.catalog.postgresql.access import alone_in

    with alone_in(home.database):
        yield


def drop_records(home: Home) -> None:
    """Remove all records, also those that wait for the database. Raises OutsideError and OSError."""
    import shutil

    if home.database is not None:
        from joblens.store.catalog.postgresql.access import drop

        drop(home.database)
        with suppress(FileNotFoundError):
            shutil.rmtree(home.undelivered)
        return
    for day, _ in records.list_days(home.records):
        shutil.rmtree(home.records / day)


def record_sizes(home: Home) -> dict[str, int]:
    """Return the bytes of tables, or of the files and their index. Raises OutsideError."""
    if home.database is not None:
        from joblens.store.catalog.postgresql.access import sizes

        return sizes(home.database)
    files = [path for path in home.records.rglob("*") if path.is_file()]
    index = [path for path in home.catalog.parent.glob(home.catalog.name + "*") if path.is_file()]
    return {"records": sum(map(size_of, files)), "index": sum(map(size_of, index))}


def keep(home: Home, many: list[JobRecord], now: int, why: Exception) -> str:
    """Save records as files. Return why they wait. Raises OSError."""
    make_folder(home.undelivered)
    for record in many:
        record.written = record.written or now
    records.save_records(home.undelivered, many)
    jobs = f"job {many[0].job.shown_id}" if len(many) == 1 else f"{len(many)} jobs"
    return f"the record of {jobs} waits in {home.undelivered}: {sentence(why)}"


def deliver(home: Home) -> list[str]:
    """Save the records that wait in the database. Return what could not be delivered, a sentence each."""
    files = _list(home)
    if not files or home.database is None:
        return []
    from joblens.store.catalog.postgresql.access import save_in

    problems: list[str] = []
    for path in files:
        try:
            damaged: list[str] = []
            save_in(home.database, records.load_records(path, damaged), 0)
            problems += [f"{it}; it stays there" for it in damaged]
            if not damaged:
                records.remove_file(path)
        except FileNotFoundError:  # another has delivered it
            continue
        except (OutsideError, OSError) as error:  # the next one would fail as well
            problems.append(f"{len(files)} files of records wait in {home.undelivered}: {sentence(error)}")
            break
    for folder in {path.parent for path in files}:
        with suppress(OSError):  # there are others
            os.rmdir(folder)
    return problems


def count_waiting(home: Home) -> int:
    """Return the number of files that wait for the database of the store."""
    return len(_list(home)) if home.database is not None else 0


def _list(home: Home) -> list[Path]:
    return [
        home.undelivered / day / name
        for day, _ in records.list_days(home.undelivered)
        for name in records.list_records(home.undelivered, day)
    ]
