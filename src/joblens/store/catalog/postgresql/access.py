"""Changes, creation and removal of the tables, and reading all of them: each with a connection of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from joblens.core.errors import MalformedError
from joblens.store.catalog.postgresql.connection import SCHEMA, connect, sentences
from joblens.store.catalog.postgresql.schema import (
    CHANGE_LOCK,
    LOCK,
    check_version,
    create,
    create_once,
    find_version,
    migrate,
)
from joblens.store.catalog.postgresql.writer import save
from joblens.store.records import parse_record

if TYPE_CHECKING:
    from joblens.record.report import JobRecord
    from joblens.store.catalog.postgresql.connection import Connection
    from joblens.store.database import Database

_AT_ONCE = 500  # records in memory
_SIZES = (
    "SELECT relname, pg_total_relation_size(oid) FROM pg_class "
    "WHERE relnamespace = %s::regnamespace AND relkind = 'r' ORDER BY relname"
)


@contextmanager
def opened(database: Database) -> Iterator[Connection]:
    """Connect to a database whose tables have this version. Raises OutsideError."""
    with connect(database) as connection, sentences(database):
        check_version(database, connection)
        yield connection


def save_in(database: Database, many: Iterable[JobRecord], now: int) -> None:
    """Save records. The first ones create the tables. Raises OutsideError."""
    with connect(database) as connection, sentences(database):
        create_once(database, connection)
        check_version(database, connection)
        save(database, connection, many, now)


@contextmanager
def alone_in(database: Database) -> Iterator[None]:
    """Hold the lock for changes. Raises OutsideError."""
    with connect(database) as connection:
        with sentences(database):
            connection.execute("SELECT pg_advisory_lock(%s)", (CHANGE_LOCK,))
        yield


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


class Created(NamedTuple):
    migrations: int  # that were missing
    problem: str  # why there are no roles, or ""


def init(database: Database) -> Created:
    """Create what is missing; what is there stays. Raises OutsideError."""
    with connect(database) as connection, sentences(database):
        before = find_version(connection)
        problem = create(database, connection)
        return Created(find_version(connection) - before, problem)


def upgrade(database: Database) -> int:
    """Return how many migrations were missing. Raises OutsideError."""
    with connect(database) as connection:
        return migrate(database, connection)


def sizes(database: Database) -> dict[str, int]:
    """Return the bytes of each table with its indexes. Raises OutsideError."""
    with opened(database) as connection:
        return {str(name): int(size) for name, size in connection.execute(_SIZES, (SCHEMA,)).fetchall()}


def drop(database: Database) -> None:
    """Remove all tables of joblens with all records, and nothing else. Raises OutsideError."""
    with connect(database) as connection, sentences(database), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")


def remove_older(database: Database, before: float) -> int:
    """Remove jobs that began before a time. Return how many there were. Raises OutsideError."""
    with opened(database) as connection:
        return connection.execute("DELETE FROM jobs WHERE start < %s", (before,)).rowcount
