"""From rows of the table of jobs to their records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from joblens.core.errors import MalformedError
from joblens.store.catalog.postgresql.access import opened
from joblens.store.records import parse_record

if TYPE_CHECKING:
    from joblens.record.report import JobRecord
    from joblens.store.database import Database

_AT_ONCE = 500  # records in memory


def load_all(database: Database, problems: list[str]) -> Iterator[JobRecord]:
    """Yield all records, some at a time. What cannot be read is added to `problems`. Raises OutsideError."""
    query = f"SELECT number, id, record::text FROM jobs WHERE number > %s ORDER BY number LIMIT {_AT_ONCE}"
    last = 0
    with opened(database) as connection:
        while rows := connection.execute(query, (last,)).fetchall():
            last = rows[-1][0]
            for _, id, text in rows:
                try:
                    yield parse_record(f"{database}: job {id}", text.encode())
                except MalformedError as error:
                    problems.append(str(error))
