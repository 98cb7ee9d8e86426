"""The catalog of a store whose job records are in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from joblens.core.errors import MalformedError, sentence
from joblens.store.catalog.dialect import POSTGRESQL
from joblens.store.catalog.listing import Identity, JobFilter, JobRow
from joblens.store.catalog.postgresql.connection import connect, load_driver, sentences
from joblens.store.catalog.postgresql.schema import check_version, create_once
from joblens.store.catalog.postgresql.writer import as_text, make_rows, save
from joblens.store.catalog.queries import IS_IDENTITY, NAMES, JobCatalog
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.database import Database
from joblens.store.records import parse_record

if TYPE_CHECKING:
    from joblens.record.report import JobRecord
    from joblens.store.catalog.postgresql.connection import Connection

_AT_ONCE = 500  # records in memory


class PostgresCatalog(JobCatalog):
    dialect = POSTGRESQL

    def __init__(self, database: Database, creates: bool = False) -> None:
        super().__init__()
        self.database, self._creates = database, creates
        self.connection = self._connect()

    def _connect(self) -> Connection:
        connection = connect(self.database)
        try:
            with sentences(self.database):
                if self._creates:
                    create_once(self.database, connection)
                check_version(self.database, connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        self.connection.close()

    def __del__(self) -> None:
        """Of the few connections that a server has, none stays with a catalog that was not closed."""
        if "connection" in self.__dict__:
            self.close()

    def prepare(self) -> None:
        """All indexes are there."""

    def forget(self, day: str) -> None:
        """There is nothing to index."""

    def _ask(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        psycopg = load_driver()
        given = [as_text(it) if isinstance(it, str) else it for it in values]
        text = query.replace("%", "%%").replace("?", "%s")
        with sentences(self.database):
            try:
                return self.connection.execute(text, given).fetchall()
            except (psycopg.OperationalError, psycopg.InterfaceError):
                if not self.connection.closed and not self.connection.broken:
                    raise
            self.connection = self._connect()  # the server was restarted
            return self.connection.execute(text, given).fetchall()

    def jobs(self, wanted: JobFilter, scope: Scope = ALL) -> list[JobRow]:
        return [_with_whole_numbers(row) for row in super().jobs(wanted, scope)]

    def report(self, identity: Identity, scope: Scope = ALL) -> JobRecord:
        found = self._select("record::text", IS_IDENTITY, identity, "", scope)
        if not found:
            raise LookupError(f"the record of job {identity[1]} is not there any more")
        record = parse_record(f"{self.database}: job {identity[1]}", found[0][0].encode())
        if not scope.allows(record.job.user, record.job.account):
            raise LookupError(f"the record of job {identity[1]} is not there any more")
        return record

    def remove(self, identities: Collection[Identity]) -> None:
        for identity in sorted(identities):
            self._ask(f"DELETE FROM jobs WHERE {IS_IDENTITY} RETURNING number", identity)

    # Verification

    def check(self) -> None:
        """Read every record, and save those again whose columns differ from it."""
        last: int | None = 0
        while last is not None:
            last = self._check_some(last)

    def _check_some(self, after: int) -> int | None:
        query = f"SELECT number, record::text, {NAMES} FROM jobs WHERE number > ?"
        rows = self._ask(f"{query} ORDER BY number LIMIT {_AT_ONCE}", [after])
        wrong = [record for row in rows if (record := self._find_wrong(row)) is not None]
        save(self.database, self.connection, wrong, 0)
        return int(rows[-1][0]) if rows else None

    def _find_wrong(self, row: Sequence[Any]) -> JobRecord | None:
        """Return the record if its row differs from it."""
        _, text, *columns = row
        where = f"{self.database}: job {columns[1]}"
        try:
            record = parse_record(where, text.encode())
        except MalformedError as error:
            self.problems.append(sentence(error))
            return None
        expected = make_rows(record, 0)
        if expected.identity != tuple(columns[:3]):
            self.problems.append(f"{where}: its record is that of another job")
        elif expected.values[: len(columns)] != tuple(columns):
            self.problems.append(f"{where}: its row differed from its record, and was repaired")
            return record
        return None


def _with_whole_numbers(row: JobRow) -> JobRow:
    """As SQLite has them, which stores integers in the columns of whole amounts."""
    memory, processes = row.memory_peak_bytes, row.processes
    return row._replace(memory_peak_bytes=_whole(memory), processes=_whole(processes))


def _whole(number: float | None) -> float | None:
    return int(number) if number is not None and number.is_integer() else number
