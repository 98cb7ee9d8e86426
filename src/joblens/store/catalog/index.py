"""The catalog: an index of the job records in SQLite, made from them and kept up to date.

It can be thrown away at any time. An older one is replaced; a newer one is left alone.
Where the file cannot be used, the same index is made in memory.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joblens.core.errors import OutsideError, sentence
from joblens.store import records
from joblens.store.catalog import writer
from joblens.store.catalog.dialect import SQLITE
from joblens.store.catalog.heads import Head, load_heads, make_head
from joblens.store.catalog.listing import Identity, JobFilter
from joblens.store.catalog.plan import Term, indexes
from joblens.store.catalog.queries import IS_IDENTITY, NAMES, JobCatalog, identity_of
from joblens.store.catalog.schema import INDEXES, NewerError, migrate
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.home import Home

if TYPE_CHECKING:
    from joblens.record.report import JobRecord

_PATIENCE_SECONDS = 10.0  # for another that is just taking records in
# A folder's time is coarse, and a file server has its own clock: recent changes are read again.
_FRESH_NS = 3_000_000_000
_FRESH_SHARED_NS = 120_000_000_000
_ATTEMPTS = 5  # to find a record that others compact meanwhile
_ANEW = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)  # errors of what is in the file
# While very many records are indexed: larger steps, for all of it can be rebuilt.
_BULK = ("cache_size = -65536", "wal_autocheckpoint = 16384")
_USUAL = ("cache_size = -16384", "wal_autocheckpoint = 1000")
_BULK_DAYS = 8
_FILE = ", ".join(f"(SELECT {it} FROM files WHERE files.number = file)" for it in ("day", "name"))


class Catalog(JobCatalog):
    """The index of the record files."""

    dialect = SQLITE

    def __init__(self, home: Home, progress: Callable[[int, int], None] | None = None) -> None:
        super().__init__()
        self.home = home
        self._progress = progress
        self._refreshed = -math.inf
        self._had_records = False
        # Until a place turns out to be wrong, or all is compared with the records.
        self._trust_heads = True
        self.database = self._open()

    def close(self) -> None:
        self.database.close()

    def prepare(self) -> None:
        """Create all indexes, so that no later question has to."""
        self._prepare(self.database, set(INDEXES))

    def _prepare(self, database: sqlite3.Connection, names: set[str]) -> None:
        """Create indexes. Where that is impossible, questions are answered without, and take longer."""
        for name in sorted((names & INDEXES.keys()) - self._indexes):
            with suppress(sqlite3.OperationalError):
                database.execute(f"CREATE INDEX IF NOT EXISTS {INDEXES[name]}")
            self._indexes.add(name)

    def _page(self, columns: str, wanted: JobFilter, scope: Scope, more: Sequence[Term] = ()) -> list[Any]:
        self._prepare(self.database, indexes(wanted, scope))
        return super()._page(columns, wanted, scope, more)

    def report(self, identity: Identity, scope: Scope = ALL) -> JobRecord:
        """All of it, from its record. LookupError if that was just removed."""
        for _ in range(_ATTEMPTS):
            found = self._select(f"{_FILE}, place", IS_IDENTITY, identity, "", scope)
            if not found:
                break
            ((day, name, place),) = found
            try:
                record = records.load_record(self.home.records / str(day) / str(name), place)
                if identity_of(record) == identity and scope.allows(record.job.user, record.job.account):
                    return record
            except FileNotFoundError:  # compacted since
                pass
            self.forget(day or records.day_of(identity[2]))
        raise LookupError(f"the record of job {identity[1]} is not there any more")

    def forget(self, day: str) -> None:
        """Index a day again, in one transaction: other connections never see the index without the day."""
        self._trust_heads = False
        self._days(must_exist=True)
        changed = records.last_change(self.home.records, day)
        try:
            with writer.transactions(self.database, self._writer) as transactions:
                transactions.begin()
                writer.delete_day(self.database, day)
                if changed is not None:
                    self._take_day(self.database, transactions, day, changed, seen=False)
        except sqlite3.Error:  # it cannot be written
            self.database = self._opened(":memory:")

    def remove(self, identities: Collection[Identity]) -> None:
        """Remove the records of jobs, all versions of them. Raises MalformedError and OSError."""
        records.remove_records(self.home.records, identities)
        for day in sorted({records.day_of(start) for _, _, start in identities}):
            self.forget(day)

    def _ask(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            if not self._path or time.monotonic() - self._refreshed >= self.fresh_seconds:
                self._refresh(self.database)
                self._refreshed = time.monotonic()
            return self.database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            self.database.close()
            self.database = self._reopen(error)
        return self.database.execute(query, values).fetchall()

    def _reopen(self, error: sqlite3.Error) -> sqlite3.Connection:
        """After a query has failed: rebuilt where it is if it is damaged, else in memory."""
        if _is_damage(error) and self._path:
            self._report(f"{self._path}: damaged ({error}); rebuilt from the records")
            _remove(self._path)
            return self._open()
        self._report(
            f"{self.home.path}: the catalog failed ({error}); jobs are read from the records instead"
        )
        return self._opened(":memory:")

    def check(self) -> None:
        """Compare it with the records, and rebuild it if anything differs. Raises OutsideError."""
        self._ask("SELECT 1")  # not if the records are missing
        self._trust_heads = False
        wanted = self._opened(":memory:")
        try:
            if self._path and not _is_same(self.database, wanted):
                self.database.close()
                self.database = self._reopen(sqlite3.DatabaseError("it differs from the records"))
        except sqlite3.Error as error:
            self.database.close()
            self.database = self._reopen(error)
        finally:
            wanted.close()

    # Opening

    def _open(self) -> sqlite3.Connection:
        self._path = ""
        try:
            path = str(self.home.catalog)
        except OutsideError as error:
            self._report(f"{error}; jobs are read from the records instead")
            return self._opened(":memory:")
        for _ in range(2):
            try:
                database = self._opened(path)
                self._path = path
                return database
            except NewerError as error:
                self._report(f"{path}: {error}; it is left alone, and jobs are read from the records instead")
                break
            except sqlite3.Error as error:
                if not _is_damage(error):
                    self._report(f"{path}: {error}; jobs are read from the records instead")
                    break
                self._report(f"{path}: damaged ({error}); rebuilt from the records")
                _remove(path)
        return self._opened(":memory:")

    def _opened(self, path: str) -> sqlite3.Connection:
        if path != ":memory:":
            with suppress(OSError):  # for its owner only; what SQLite puts beside it is as it is
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        database = sqlite3.connect(path, timeout=_PATIENCE_SECONDS, isolation_level=None)
        self._writer = writer.Writer(database)
        try:
            migrate(database)
            if path != ":memory:":
                database.execute("PRAGMA journal_mode = WAL")
                # It can be rebuilt: it need only be consistent.
                database.execute("PRAGMA synchronous = NORMAL")
            self._refresh(database)
            self._indexes: set[str] = set()
            self._prepare(database, {"start", "array"})
        except BaseException:
            database.close()
            raise
        return database

    # Keeping it up to date

    def _refresh(self, database: sqlite3.Connection) -> None:
        """Index the records that were added since the last time."""
        known = dict(database.execute("SELECT day, changed FROM days").fetchall())
        self._had_records = self._had_records or bool(known)
        days = self._days(must_exist=self._had_records)
        new = [(day, changed) for day, changed in days if known.get(day) != changed]
        gone = known.keys() - {day for day, _ in days}
        if not new and not gone:
            return
        with (
            _bulk(database, len(new) > _BULK_DAYS),
            writer.transactions(database, self._writer) as transactions,
        ):
            for number, (day, changed) in enumerate(new, 1):
                self._take_day(database, transactions, day, changed, day in known)
                if self._progress:
                    self._progress(number, len(new))
            for day in gone:
                transactions.begin()
                writer.delete_day(database, day)

    def _days(self, must_exist: bool) -> list[tuple[str, int]]:
        """Raises OutsideError: a store that is not mounted is not a store without jobs."""
        try:
            return records.list_days(self.home.records, must_exist)
        except OSError as error:
            problem = f"the job records cannot be read: {sentence(error)}; is their file system mounted?"
            raise OutsideError(problem) from None

    def _take_day(
        self,
        database: sqlite3.Connection,
        transactions: writer.Transactions,
        day: str,
        changed: int,
        seen: bool,
    ) -> None:
        settled = time.time_ns() - changed >= (_FRESH_SHARED_NS if self.home.shared else _FRESH_NS)
        names = set(records.list_records(self.home.records, day))
        if seen and not settled and writer.whole_files(database, day) == names:
            return
        transactions.begin()
        done = writer.whole_files(database, day)  # another may have been faster
        # What vanishes while it is read has been compacted: then there is another file that has it.
        # Of two files with the same record, the one that stays is indexed last.
        while new := sorted(names - done, key=lambda name: (name.endswith(".jsonl"), name)):
            whole = [self._take_file(database, day, name) for name in new]
            settled = settled and all(whole)
            done.update(new)
            names = set(records.list_records(self.home.records, day))
        writer.delete_files(database, day, names)
        database.execute("REPLACE INTO days VALUES (?, ?)", (day, changed if settled else 0))
        transactions.commit()

    def _take_file(self, database: sqlite3.Connection, day: str, name: str) -> bool:
        """Return False if it must be read again the next time."""
        problems: list[str] = []
        number = writer.file_number(database, day, name)
        try:
            for heads in self._load_heads(self.home.records / day / name, problems):
                self._writer.insert(heads, number)
            if not problems:
                writer.mark_whole(database, number)
        except FileNotFoundError:
            return False
        except OSError as error:
            problems.append(sentence(error))
        self._report(*problems)
        return not problems

    def _load_heads(self, path: Path, problems: list[str]) -> Iterator[list[Head]]:
        """Yield those of a file of records, some at a time. Raises FileNotFoundError."""
        heads = load_heads(path) if self._trust_heads else None
        if heads is not None:
            yield heads
            return
        for some in records.load_listed(path, problems):
            yield [make_head(place, record) for place, record in some]

    def _report(self, *problems: str) -> None:
        self.problems += [problem for problem in problems if problem not in self.problems]


def _is_same(one: sqlite3.Connection, other: sqlite3.Connection) -> bool:
    """Compare what a listing shows; the file of a record may differ if there are several."""
    jobs = f"SELECT {NAMES}, tags, written FROM jobs ORDER BY id, cluster, start"
    linked = "SELECT cluster, id, start, {0}.* FROM {0} JOIN jobs ON number = job ORDER BY 2, 1, 3, 5"
    queries = (
        jobs,
        linked.format("tags"),
        linked.format("annotations"),
        linked.format("job_nodes"),
        "PRAGMA integrity_check",
    )
    return all(
        left[:3] + left[4:] == right[:3] + right[4:] if query.startswith("SELECT cluster") else left == right
        for query in queries
        for left, right in zip_longest(one.execute(query), other.execute(query), fillvalue=())
    )


def _is_damage(error: sqlite3.Error) -> bool:
    """And not a full disk or a lock. An error without a code is one of ours."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _ANEW


def _remove(path: str) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)


@contextmanager
def _bulk(database: sqlite3.Connection, large: bool) -> Iterator[None]:
    """Set it up for very many rows. These have no cycles: the garbage collector would search in vain."""
    if not large:
        yield
        return
    import gc

    enabled = gc.isenabled()
    gc.disable()
    for setting in _BULK:
        database.execute(f"PRAGMA {setting}")
    try:
        yield
    finally:
        for setting in _USUAL:
            database.execute(f"PRAGMA {setting}")
        if enabled:
            gc.enable()
