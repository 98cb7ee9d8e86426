"""Single changes of the database, each with a connection of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from joblens.store.catalog.postgresql.connection import connect, sentences
from joblens.store.catalog.postgresql.schema import CHANGE_LOCK, check_version, create_once
from joblens.store.catalog.postgresql.writer import save

if TYPE_CHECKING:
    from joblens.record.report import JobRecord
    from joblens.store.catalog.postgresql.connection import Connection
    from joblens.store.database import Database


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
