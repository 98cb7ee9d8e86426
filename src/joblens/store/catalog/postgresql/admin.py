"""Creation, upgrade, size and removal of the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from joblens.store.catalog.postgresql.access import opened
from joblens.store.catalog.postgresql.connection import SCHEMA, connect, sentences
from joblens.store.catalog.postgresql.schema import LOCK, create, find_version, migrate

if TYPE_CHECKING:
    from joblens.store.database import Database

_SIZES = (
    "SELECT relname, pg_total_relation_size(oid) FROM pg_class "
    "WHERE relnamespace = %s::regnamespace AND relkind = 'r' ORDER BY relname"
)


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
