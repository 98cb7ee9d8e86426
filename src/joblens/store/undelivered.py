"""Records that wait, as files, for a database that could not be reached or changed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.core.errors import OutsideError, sentence
from joblens.core.files import make_folder
from joblens.store import records
from joblens.store.home import Home

if TYPE_CHECKING:
    from joblens.record.report import JobRecord


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
