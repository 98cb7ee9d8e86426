"""From rows of the table of jobs to their records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from joblens.core.errors import MalformedError
from joblens.store.catalog.postgresql.access import opened
from joblens.store.records import parse_record

if TYPE_CHECKING:
    from joblens.record.report import JobRecord
    from joblens.store.database import Database

_AT_ONCE = 500  # records in memory


def parse_stored(where: str, text: str, tags: str | None, notes: str | None) -> JobRecord:
    """The database sorts the names in an object: they come back in the order that they had.

    Raises MalformedError.
    """
    record = parse_record(where, text.encode())
    job = record.job
    job.tags = _in_order(job.tags, tags)
    job.annotations = _in_order(job.annotations, notes)
    job.environment = dict(sorted(job.environment.items())) if job.environment else job.environment
    record.restore_order()
    return record


def _in_order(found: dict[str, str] | None, text: str | None) -> dict[str, str] | None:
    """Return the texts in the order of the column that has them as they were saved."""
    saved = json.loads(text) if text else {}
    return saved if saved == found else found


def load_all(database: Database, problems: list[str]) -> Iterator[JobRecord]:
    """Yield all records, some at a time. What cannot be read is added to `problems`. Raises OutsideError."""
    columns = "number, id, record::text, tags, annotations"
    query = f"SELECT {columns} FROM jobs WHERE number > %s ORDER BY number LIMIT {_AT_ONCE}"
    last = 0
    with opened(database) as connection:
        while rows := connection.execute(query, (last,)).fetchall():
            last = rows[-1][0]
            for _, id, *stored in rows:
                try:
                    yield parse_stored(f"{database}: job {id}", *stored)
                except MalformedError as error:
                    problems.append(str(error))
