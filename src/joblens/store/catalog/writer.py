"""Put heads of records into the tables of the catalog, many at a time."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.store.catalog.listing import COLUMNS, Identity, name_nodes

if TYPE_CHECKING:
    from joblens.record.listed import ListedJob, ListedRecord

NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
_COLUMNS = f"{NAMES}, tags, written, file, place"
_VALUES = ", ".join("?" * (len(COLUMNS) + 4))
_ROWS = 20_000  # after which a transaction ends, so that others do not wait long
_SECONDS = 2.0
_MOST_NAMES = 100_000  # that are remembered
_NAME, _WRITTEN = COLUMNS.index("name"), len(COLUMNS) + 1


class Entry(NamedTuple):
    """A row of the catalog without its number, and rows of other tables that refer to it."""

    row: tuple[Any, ...]
    nodes: list[str] | None  # beside the first
    tags: dict[str, str] | None
    annotations: dict[str, str] | None


def make_entry(record: ListedRecord, file: int, place: int) -> Entry:
    job, used, nodes, tags = record.job, record.used, record.job.nodes, record.job.tags
    several = nodes is not None and (len(nodes) > 1 or nodes[:1] != [job.node])
    row = (
        job.cluster,
        job.id,
        job.start,
        job.end,
        job.name,
        job.user,
        job.node,
        job.source,
        job.state,
        job.exit_code,
        used.duration_seconds,
        used.cpu_seconds,
        record.asked.cores,
        used.memory_peak_bytes,
        used.processes,
        record.verdict,
        _shown_id(job) if job.array_job or job.het_job else job.id,
        _name_nodes(tuple(nodes)) if several and nodes else job.node,
        job.partition,
        job.account,
        json.dumps(tags) if tags else None,
        record.written,
        file,
        place,
    )
    return Entry(row, nodes if several else None, tags, job.annotations)


_name_nodes = lru_cache(1024)(name_nodes)  # jobs of an array run on the same nodes


def _shown_id(job: ListedJob) -> str:
    from joblens.record.report import shown_id

    return shown_id(job)


class Transactions:
    """Transactions of many rows each. Other writers wait for one of them, not for all."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._since = 0.0
        self._changes = 0

    def begin(self) -> None:
        if not self._database.in_transaction:
            self._database.execute("BEGIN IMMEDIATE")
            self._since, self._changes = time.monotonic(), self._database.total_changes

    def commit(self, now: bool = False) -> None:
        """Unless it is still small."""
        large = self._database.total_changes - self._changes > _ROWS
        if self._database.in_transaction and (now or large or time.monotonic() - self._since > _SECONDS):
            self._database.execute("COMMIT")


@contextmanager
def transactions(database: sqlite3.Connection) -> Iterator[Transactions]:
    """End the last one as well. What has failed is rolled back."""
    found = Transactions(database)
    try:
        yield found
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
    found.commit(now=True)


class Writer:
    """Inserts entries. It knows the names of jobs that are there already."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._names: set[str] = set()

    def insert(self, entries: Sequence[Entry]) -> None:
        """Of several records of a job the one that was written last is valid; of equal ones, the last."""
        database = self._database
        fresh = _newest(entries)
        ((first,),) = database.execute("SELECT coalesce(max(number), 0) + 1 FROM jobs")
        database.execute("SAVEPOINT fresh")
        before = database.total_changes
        # SQLite numbers them from there on.
        insert = f"INSERT OR IGNORE INTO jobs ({_COLUMNS}) VALUES ({_VALUES})"
        database.executemany(insert, [entry.row for entry in fresh])
        numbered = list(enumerate(fresh, first))
        if database.total_changes - before < len(fresh):  # some are there already
            database.execute("ROLLBACK TO fresh")
            numbered = list(_changed(database, numbered))
            replace = f"REPLACE INTO jobs (number, {_COLUMNS}) VALUES (?, {_VALUES})"
            database.executemany(replace, [(number, *entry.row) for number, entry in numbered])
        database.execute("RELEASE fresh")
        self._link(numbered)

    def _link(self, numbered: Iterable[tuple[int, Entry]]) -> None:
        nodes: list[tuple[int, str]] = []
        tags: list[tuple[int, str, str]] = []
        annotations: list[tuple[int, str, str]] = []
        names: set[str] = set()
        for number, (row, others, its_tags, its_annotations) in numbered:
            names.add(row[_NAME])
            if others:
                nodes += [(number, node) for node in others]
            if its_tags:
                tags += [(number, name, value) for name, value in its_tags.items()]
            if its_annotations:
                annotations += [(number, name, value) for name, value in its_annotations.items()]
        self._database.executemany("INSERT OR IGNORE INTO job_nodes VALUES (?, ?)", nodes)
        self._database.executemany("INSERT INTO tags VALUES (?, ?, ?)", tags)
        self._database.executemany("INSERT INTO annotations VALUES (?, ?, ?)", annotations)
        new = zip(sorted(names - self._names))
        self._database.executemany("INSERT OR IGNORE INTO names VALUES (?)", new)
        self._names = self._names | names if len(self._names) < _MOST_NAMES else names


def _newest(entries: Sequence[Entry]) -> Sequence[Entry]:
    newest: dict[Identity, Entry] = {}
    for entry in entries:
        known = newest.setdefault(entry.row[:3], entry)
        if known.row[_WRITTEN] <= entry.row[_WRITTEN]:
            newest[entry.row[:3]] = entry
    return list(newest.values())


def _changed(
    database: sqlite3.Connection, numbered: Iterable[tuple[int, Entry]]
) -> Iterator[tuple[int, Entry]]:
    """Yield those that are new or replace an older record, with the number that the job has."""
    query = "SELECT number, written FROM jobs WHERE (cluster, id, start) = (?, ?, ?)"
    for number, entry in numbered:
        known = database.execute(query, entry.row[:3]).fetchone()
        if known is None:
            yield number, entry
        elif known[1] <= entry.row[_WRITTEN]:
            _unlink(database, "= ?", (known[0],))
            yield known[0], entry


def _unlink(database: sqlite3.Connection, jobs: str, values: tuple[Any, ...]) -> None:
    for table in ("tags", "annotations", "job_nodes"):
        database.execute(f"DELETE FROM {table} WHERE job {jobs}", values)


def file_number(database: sqlite3.Connection, day: str, name: str) -> int:
    """Return the number of a file of records, a new one if it has none."""
    database.execute("INSERT OR IGNORE INTO files (day, name) VALUES (?, ?)", (day, name))
    found = database.execute("SELECT number FROM files WHERE (day, name) = (?, ?)", (day, name)).fetchone()
    return int(found[0])


def mark_whole(database: sqlite3.Connection, number: int) -> None:
    """Note that all of a file could be read, so that it need not be read again."""
    database.execute("UPDATE files SET whole = 1 WHERE number = ?", (number,))


def whole_files(database: sqlite3.Connection, day: str) -> set[str]:
    return {name for (name,) in database.execute("SELECT name FROM files WHERE day = ? AND whole", (day,))}


def delete_files(database: sqlite3.Connection, day: str, kept: Collection[str]) -> None:
    """Forget all files but these, unless a job refers to them."""
    known = database.execute("SELECT number, name FROM files WHERE day = ?", (day,)).fetchall()
    unused = "NOT EXISTS (SELECT 1 FROM jobs WHERE file = files.number)"
    gone = [(number,) for number, name in known if name not in kept]
    database.executemany(f"DELETE FROM files WHERE number = ? AND {unused}", gone)


def delete_day(database: sqlite3.Connection, day: str) -> None:
    jobs = "file IN (SELECT number FROM files WHERE day = ?)"
    _unlink(database, f"IN (SELECT number FROM jobs WHERE {jobs})", (day,))
    database.execute(f"DELETE FROM jobs WHERE {jobs}", (day,))
    for table in ("days", "files"):
        database.execute(f"DELETE FROM {table} WHERE day = ?", (day,))
