"""The catalog: an index of the job records in SQLite, made from them and kept up to date.

It can be thrown away at any time. Numbered migrations bring an older one up; a newer one is left alone.
Where the file cannot be used, the same index is made in memory.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.core.errors import OutsideError, sentence
from joblens.store import records
from joblens.store.catalog import writer
from joblens.store.catalog.heads import Head, load_heads, make_head
from joblens.store.catalog.listing import SEVERAL, Identity, JobFilter, JobRow, name_nodes
from joblens.store.catalog.plan import Term, indexes, make_terms, plan, prefix_term
from joblens.store.catalog.schema import INDEXES, NewerError, migrate
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.catalog.writer import NAMES
from joblens.store.home import Home
from joblens.store.lake.columns import storable

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


class Run(NamedTuple):
    """One of those that an id has had."""

    cluster: str
    id: str
    start: float
    end: float | None
    state: str | None


def _border(end: float, start: float) -> float:
    """Of two runs, with a microsecond for a row at the end of the first, which is also the other's start."""
    return (min(end, start) + start) / 2 + 1e-6


def choose_run(runs: Sequence[Run], number: int) -> Run:
    """Counted from 1. LookupError if there is none."""
    if not 1 <= number <= len(runs):
        have = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        raise LookupError(f"there is no run {number}: this id has {have}")
    return runs[number - 1]


_NEAR = 180.0  # seconds between two runs, whose late and early samples can be mixed
_DIGITS = "0123456789"
_IDENTITY = "cluster, id, start"
_FILE = ", ".join(f"(SELECT {it} FROM files WHERE files.number = file)" for it in ("day", "name"))
_IS_IDENTITY = f"({_IDENTITY}) = (?, ?, ?)"


def _begins_with(text: str) -> Term:
    """A number goes on with no further digit: that would be another number."""
    is_number = text[0] in _DIGITS and text[-1] in _DIGITS
    further = f" AND NOT substr({{0}}, {len(text) + 1}, 1) GLOB '[0-9]'"
    return prefix_term(text, of_both=further if is_number else "")


class Catalog:
    def __init__(self, home: Home, progress: Callable[[int, int], None] | None = None) -> None:
        self.home, self._progress = home, progress
        self.problems: list[str] = []
        # For which new records are not looked for again; another connection to the same file indexes them.
        self.fresh_seconds = 0.0
        self._refreshed = -math.inf
        self._had_records = False
        # Until a place turns out to be wrong, or all is compared with the records.
        self._trust_heads = True
        self.database = self._open()

    def close(self) -> None:
        self.database.close()

    # Asking. Each question is restricted to a scope: jobs outside of it do not exist for it.

    def jobs(self, wanted: JobFilter, scope: Scope = ALL) -> list[JobRow]:
        """Return one page, or all if there is no limit. Raises UsageError."""
        rows = self._page(f"{NAMES}, tags", wanted, scope)
        return [_listed(row) for row in rows]

    def shown_ids(self, wanted: JobFilter, scope: Scope = ALL) -> set[str]:
        """Return the ids as people write them, without the rest of the rows. Raises UsageError."""
        return {str(row[0]) for row in self._page("shown_id", wanted, scope)}

    def _page(self, columns: str, wanted: JobFilter, scope: Scope, more: Sequence[Term] = ()) -> list[Any]:
        def count(query: str, values: Sequence[Any]) -> int:
            return int(self._ask(query, values)[0][0])

        self._prepare(self.database, indexes(wanted, scope))
        found: list[Any] = []
        for query in plan(wanted, [*more, *make_terms(wanted, scope)], count):
            where = f"WHERE {query.condition}" if query.condition else ""
            found += self._ask(f"SELECT {columns} FROM jobs {where} {query.order}", query.values)
            if 0 < wanted.limit <= len(found):
                return found[: wanted.limit]
        return found

    def prepare(self) -> None:
        """Create all indexes, so that no later question has to."""
        self._prepare(self.database, set(INDEXES))

    def _prepare(self, database: sqlite3.Connection, names: set[str]) -> None:
        """Create indexes. Where that is impossible, questions are answered without, and take longer."""
        for name in sorted((names & INDEXES.keys()) - self._indexes):
            with suppress(sqlite3.OperationalError):
                database.execute(f"CREATE INDEX IF NOT EXISTS {INDEXES[name]}")
            self._indexes.add(name)

    def count(self, scope: Scope = ALL) -> int:
        return int(self._select("count(*)", "", (), "", scope)[0][0])

    def find(self, text: str, scope: Scope = ALL) -> list[Identity]:
        """Jobs with that id, or else whose id begins so, the newest first; `last` is the newest of all.

        An id can be written as the scheduler shows it, 4200_7 and 4300+1, and with its cluster: 4242@lab.
        4242 is the beginning of 4242_7 and of 4242.server, and not of 42420.
        """
        found = [] if text == "last" else self._with_id(text, scope)[-1:]
        return [(run.cluster, run.id, run.start) for run in found] or self._without_id(text, scope)

    def _without_id(self, text: str, scope: Scope) -> list[Identity]:
        """Return the jobs that are meant by something else than a whole id."""
        if text == "last":
            return self._page(_IDENTITY, JobFilter(limit=1), scope)
        if not text:
            return []
        return self._page(_IDENTITY, JobFilter(limit=20), scope, [_begins_with(storable(text))])

    def name_of(self, identity: Identity, scope: Scope = ALL) -> str:
        found = self._select("shown_id", _IS_IDENTITY, identity, "", scope)
        return str(found[0][0]) if found else identity[1]

    def runs(self, text: str, scope: Scope = ALL) -> list[Run]:
        """All with the id of the job that is meant, the oldest first; nothing if it could be several jobs."""
        found = self._with_id(text, scope)
        if not found and len(meant := self._without_id(text, scope)) == 1:
            cluster, id, _ = meant[0]
            found = self._with_id(f"{id}@{cluster}", scope)
        return found

    def _with_id(self, text: str, scope: Scope) -> list[Run]:
        """Return the runs with this id: jobs are requeued, ids are reused, and clusters have their own."""
        columns, oldest = f'{_IDENTITY}, "end", state', "ORDER BY start, id"
        # A separate index serves this condition: most jobs have only one id.
        either = "(id = ? OR (shown_id = ? AND shown_id != id))"
        found = self._select(columns, either, [storable(text)] * 2, oldest, scope)
        name, at, cluster = text.rpartition("@")
        if not found and at:
            values = [storable(name), storable(name), storable(cluster)]
            found = self._select(columns, f"{either} AND +cluster = ?", values, oldest, scope)
        return [Run(*row) for row in found]

    def borders(self, identity: Identity, last: float) -> tuple[float, float]:
        """Return the moments halfway to the runs with this id before and after it, which ended `last`.

        A row in between belongs to this run. Where no other run is near, they are infinite.
        """
        cluster, id, start = identity
        columns, named = 'start, coalesce("end", start)', "id = ? AND +cluster = ?"
        runs = self._select(columns, named, [id, cluster], "ORDER BY start", ALL)
        ends = [end for begin, end in runs if begin < start < end + _NEAR]
        starts = [begin for begin, _ in runs if start < begin < last + _NEAR]
        return (
            _border(ends[-1], start) if ends else -math.inf,
            _border(last, starts[0]) if starts else math.inf,
        )

    def written(self, identities: Iterable[Identity], scope: Scope = ALL) -> dict[Identity, int]:
        """Return when their records were written, for those that are known."""
        self._ask("SELECT 1")  # indexes new records
        allowed, more = scope.condition()
        query = f"SELECT written FROM jobs WHERE {_IS_IDENTITY} AND {allowed}"
        found: dict[Identity, int] = {}
        for identity in identities:
            row = self.database.execute(query, [*identity, *more]).fetchone()
            if row:
                found[identity] = int(row[0])
        return found

    def report(self, identity: Identity, scope: Scope = ALL) -> JobRecord:
        """All of it, from its record. LookupError if somebody has just removed that."""
        for _ in range(_ATTEMPTS):
            found = self._select(f"{_FILE}, place", _IS_IDENTITY, identity, "", scope)
            if not found:
                break
            ((day, name, place),) = found
            try:
                record = records.load_record(self.home.records / str(day) / str(name), place)
                if _identity(record) == identity and scope.allows(record.job.user, record.job.account):
                    return record
            except FileNotFoundError:  # compacted since
                pass
            self.forget(day or records.day_of(identity[2]))
        raise LookupError(f"the record of job {identity[1]} is not there any more")

    def _select(
        self, columns: str, condition: str, values: Sequence[Any], order: str, scope: Scope
    ) -> list[Any]:
        allowed, more = scope.condition(by_index=not condition)
        conditions = " AND ".join(filter(None, (condition, "" if scope.everything else allowed)))
        where = f"WHERE {conditions}" if conditions else ""
        return self._ask(f"SELECT {columns} FROM jobs {where} {order}", [*values, *more])

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
        while new := sorted(names - done, key=_compacted_last):
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


def _listed(row: Sequence[Any]) -> JobRow:
    """Make a row of a listing from one of the catalog."""
    found = JobRow._make((*row[:-1], json.loads(row[-1]) if row[-1] else {}))
    if found.nodes and SEVERAL in found.nodes:
        return found._replace(nodes=name_nodes(found.nodes.split(SEVERAL)))
    return found


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


def _compacted_last(name: str) -> tuple[bool, str]:
    """Sort so that of two files with the same record, the one that stays is indexed last."""
    return name.endswith(".jsonl"), name


def _identity(record: JobRecord) -> Identity:
    return record.job.cluster, record.job.id, record.job.start
