"""Put heads of records into the tables of the catalog, many at a time."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

from joblens.store.catalog.heads import Head
from joblens.store.catalog.listing import COLUMNS, KIND, SEVERAL, Identity
from joblens.store.catalog.queries import NAMES

_COLUMNS = f"{NAMES}, written, place, kind, file, tags"
_VALUES = ", ".join("?" * (len(COLUMNS) + 5))
_ROWS = 20_000  # after which a transaction ends, so that others do not wait long
_SECONDS = 2.0
_MOST_KEPT = 100_000  # names and kinds that are remembered
_MANY = 100  # records
_WRITTEN, _TAGS, _ANNOTATIONS = len(COLUMNS), len(COLUMNS) + 2, len(COLUMNS) + 3  # places in a head
_NAME, _NODE, _NODES = map(COLUMNS.index, ("name", "node", "nodes"))
_kind_of = itemgetter(*map(COLUMNS.index, KIND))
_KIND_KNOWN = "SELECT number FROM kinds WHERE " + " AND ".join(f"{name} IS ?" for name in KIND)
_KIND_NEW = f"INSERT INTO kinds ({', '.join(KIND)}, number) VALUES ({', '.join('?' * len(KIND))}, ?)"
Row = tuple[Any, ...]
Kind = tuple[str, str | None, str | None, str | None, str]


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
def transactions(database: sqlite3.Connection, writer: Writer) -> Iterator[Transactions]:
    """End the last one as well. What has failed is rolled back."""
    found = Transactions(database)
    try:
        yield found
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        writer.forget()
        raise
    found.commit(now=True)


class Writer:
    """Inserts records. It knows the names and kinds of jobs that are there already."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.forget()

    def forget(self) -> None:
        """After a rollback what is known may not be there."""
        self._names: set[str] = set()
        self._kinds: dict[Kind, int] = {}
        self._all_kinds: bool | None = None  # whether these are all; others can add the same ones again

    def insert(self, heads: Sequence[Head], file: int) -> None:
        """Of several records of a job the one that was written last is valid; of equal ones, the last."""
        database = self._database
        rows = self._make_rows(heads, file)
        ((first,),) = database.execute("SELECT coalesce(max(number), 0) + 1 FROM jobs")
        database.execute("SAVEPOINT fresh")
        before = database.total_changes
        # SQLite numbers them from there on.
        database.executemany(f"INSERT OR IGNORE INTO jobs ({_COLUMNS}) VALUES ({_VALUES})", rows)
        if database.total_changes - before == len(rows):
            numbered: Iterable[tuple[int, Head]] = enumerate(heads, first)
        else:  # some are there already, or twice among these
            database.execute("ROLLBACK TO fresh")
            numbers = dict(_changed(database, rows, first))
            replace = f"REPLACE INTO jobs (number, {_COLUMNS}) VALUES (?, {_VALUES})"
            database.executemany(replace, [(number, *rows[place]) for place, number in numbers.items()])
            numbered = [(number, heads[place]) for place, number in numbers.items()]
        database.execute("RELEASE fresh")
        self._link(numbered)

    def _make_rows(self, heads: Sequence[Head], file: int) -> list[Row]:
        if len(heads) > _MANY and self._all_kinds is None:
            self._load_kinds()
        if len(self._kinds) > _MOST_KEPT:
            self._kinds, self._all_kinds = {}, False
        rows: list[Row] = []
        new_kinds: dict[Kind, int] = {}
        for head in heads:
            key = _kind_of(head)
            kind = self._kinds.get(key) or self._find_kind(key, new_kinds)
            tags = json.dumps(head[_TAGS]) if head[_TAGS] else None
            rows.append((*head[:_TAGS], kind, file, tags))
        self._database.executemany(_KIND_NEW, [(*key, it) for key, it in new_kinds.items()])
        self._add_names({head[_NAME] for head in heads} - self._names)
        return rows

    def _find_kind(self, key: Kind, new: dict[Kind, int]) -> int:
        """Return the number of a kind; if there is none, the next one, and add it to the new ones."""
        known = None if self._all_kinds else self._database.execute(_KIND_KNOWN, key).fetchone()
        if known is None and not new:
            ((new[key],),) = self._database.execute("SELECT coalesce(max(number), 0) + 1 FROM kinds")
        elif known is None:
            new[key] = next(reversed(new.values())) + 1
        self._kinds[key] = number = int(known[0]) if known else new[key]
        return number

    def _load_kinds(self) -> None:
        """Load them all at once before very many records."""
        found = self._database.execute(f"SELECT {', '.join(KIND)}, number FROM kinds LIMIT {_MOST_KEPT}")
        self._kinds = {row[:-1]: row[-1] for row in found}
        self._all_kinds = len(self._kinds) < _MOST_KEPT

    def _add_names(self, new: set[str]) -> None:
        self._database.executemany("INSERT OR IGNORE INTO names VALUES (?)", zip(sorted(new)))
        if len(self._names) > _MOST_KEPT:
            self._names.clear()
        self._names |= new

    def _link(self, numbered: Iterable[tuple[int, Head]]) -> None:
        """Add the nodes of jobs that have others than the first, tags and annotations."""
        nodes: list[tuple[int, str]] = []
        tags: list[tuple[int, str, str]] = []
        annotations: list[tuple[int, str, str]] = []
        for number, head in numbered:
            if head[_NODES] and head[_NODES] != head[_NODE]:
                nodes += [(number, node) for node in head[_NODES].split(SEVERAL)]
            if head[_TAGS]:
                tags += [(number, *pair) for pair in head[_TAGS].items()]
            if head[_ANNOTATIONS]:
                annotations += [(number, *pair) for pair in head[_ANNOTATIONS].items()]
        self._database.executemany("INSERT OR IGNORE INTO job_nodes VALUES (?, ?)", nodes)
        self._database.executemany("INSERT INTO tags VALUES (?, ?, ?)", tags)
        self._database.executemany("INSERT INTO annotations VALUES (?, ?, ?)", annotations)


def _changed(database: sqlite3.Connection, rows: Sequence[Row], first: int) -> Iterator[tuple[int, int]]:
    """Yield places of the rows that are new or replace an older record, with the number that the job has."""
    newest: dict[Identity, int] = {}
    for place, row in enumerate(rows):
        known = newest.setdefault(row[:3], place)
        if rows[known][_WRITTEN] <= row[_WRITTEN]:
            newest[row[:3]] = place
    query = "SELECT number, written FROM jobs WHERE (cluster, id, start) = (?, ?, ?)"
    for identity, place in newest.items():
        found = database.execute(query, identity).fetchone()
        if found is None:
            yield place, first + place
        elif found[1] <= rows[place][_WRITTEN]:
            _unlink(database, "= ?", (found[0],))
            yield place, found[0]


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
