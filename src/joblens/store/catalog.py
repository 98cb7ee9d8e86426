"""The catalog: an index of the job records in SQLite, made from them and kept up to date on opening.

It can be thrown away at any time. Numbered migrations bring an older one up; a newer one is left alone.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from joblens.errors import MalformedError
from joblens.store import records
from joblens.store.home import Home

MIGRATIONS = (
    """
    CREATE TABLE jobs (
        cluster TEXT NOT NULL, id TEXT NOT NULL, start REAL NOT NULL, "end" REAL,
        name TEXT NOT NULL, user TEXT NOT NULL, node TEXT, source TEXT, state TEXT, exit_code INTEGER,
        duration_seconds REAL, cpu_seconds REAL, cores REAL, memory_peak_bytes INTEGER, processes INTEGER,
        verdict TEXT, report TEXT NOT NULL,
        PRIMARY KEY (cluster, id, start)
    );
    CREATE INDEX jobs_by_start ON jobs (start);
    CREATE INDEX jobs_by_id ON jobs (id);
    CREATE INDEX jobs_by_user ON jobs (user, start);
    CREATE TABLE tags (
        cluster TEXT NOT NULL, id TEXT NOT NULL, start REAL NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (cluster, id, start, name)
    );
    CREATE INDEX tags_by_name ON tags (name, value);
    CREATE TABLE days (day TEXT PRIMARY KEY, changed INTEGER NOT NULL);
    CREATE TABLE files (day TEXT NOT NULL, name TEXT NOT NULL, PRIMARY KEY (day, name));
    """,
)
_COLUMNS = (
    "cluster, id, start, end, name, user, node, source, state, exit_code, duration_seconds, cpu_seconds, "
    "cores, memory_peak_bytes, processes, verdict"
).split(", ")
SORTS = {
    "start": "start", "duration": "duration_seconds", "cpu": "cpu_seconds", "memory": "memory_peak_bytes",
    "user": "user", "name": "name",
}  # fmt: skip
# A folder's time is coarse: what changed this recently is looked at again.
_FRESH_NS = 3_000_000_000


class JobFilter(NamedTuple):
    user: str | None = None
    name: str | None = None  # with * and ?
    state: str | None = None
    since: float | None = None
    until: float | None = None
    tags: tuple[tuple[str, str], ...] = ()
    sort: str = "start"
    reverse: bool = False
    limit: int = 20


class Catalog:
    def __init__(self, home: Home) -> None:
        self.home = home
        self.problems: list[str] = []
        self.database = self._open(home.catalog)
        self._refresh()

    def close(self) -> None:
        self.database.close()

    def _open(self, path: Path) -> sqlite3.Connection:
        try:
            database = _connect(str(path))
            return self._migrate(database, path)
        except sqlite3.OperationalError as error:
            self.problems.append(f"{path}: {error}; jobs are read from the records instead")
        except sqlite3.DatabaseError as error:
            self.problems.append(f"{path}: damaged ({error}); made anew from the records")
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            return self._migrate(_connect(str(path)), path)
        return self._migrate(_connect(":memory:"), path)

    def _migrate(self, database: sqlite3.Connection, path: Path) -> sqlite3.Connection:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            self.problems.append(
                f"{path}: made by a newer joblens (version {version}, this one knows {len(MIGRATIONS)}); "
                "it is left alone, and jobs are read from the records instead"
            )
            database.close()
            return self._migrate(_connect(":memory:"), path)
        if version < len(MIGRATIONS):
            database.execute("BEGIN IMMEDIATE")
            (version,) = database.execute("PRAGMA user_version").fetchone()  # another may have been faster
            for number in range(version, len(MIGRATIONS)):
                for statement in filter(str.strip, MIGRATIONS[number].split(";\n")):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {number + 1}")
            database.execute("COMMIT")
        return database

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.database.execute("ROLLBACK")
            raise
        self.database.execute("COMMIT")

    def _refresh(self) -> None:
        """Takes in the records that have come since the last time."""
        known = dict(self.database.execute("SELECT day, changed FROM days").fetchall())
        days = records.list_days(self.home.records)
        for day, changed in days:
            if known.get(day) != changed:
                self._take_day(day, changed)
        for gone in known.keys() - {day for day, _ in days}:
            with self._transaction():
                self.database.execute("DELETE FROM jobs WHERE date(start, 'unixepoch') = ?", (gone,))
                self.database.execute("DELETE FROM tags WHERE date(start, 'unixepoch') = ?", (gone,))
                self.database.execute("DELETE FROM days WHERE day = ?", (gone,))
                self.database.execute("DELETE FROM files WHERE day = ?", (gone,))

    def _take_day(self, day: str, changed: int) -> None:
        done = {name for (name,) in self.database.execute("SELECT name FROM files WHERE day = ?", (day,))}
        names = records.list_records(self.home.records, day)
        fresh = time.time_ns() - changed < _FRESH_NS
        with self._transaction():
            for name in names:
                if name not in done:
                    self._take_file(day, name)
            self.database.execute("REPLACE INTO days VALUES (?, ?)", (day, 0 if fresh else changed))

    def _take_file(self, day: str, name: str) -> None:
        try:
            for record in records.load_records(self.home.records / day / name):
                self._take(record)
        except (MalformedError, OSError) as error:
            self.problems.append(str(error))
        else:
            self.database.execute("INSERT OR IGNORE INTO files VALUES (?, ?)", (day, name))

    def _take(self, record: dict[str, Any]) -> None:
        row = job_row(record)
        marks = ", ".join("?" * (len(_COLUMNS) + 1))
        self.database.execute(
            f"REPLACE INTO jobs ({', '.join(map(_quoted, _COLUMNS))}, report) VALUES ({marks})",
            [*row.values(), json.dumps(record)],
        )
        identity = (row["cluster"], row["id"], row["start"])
        self.database.execute("DELETE FROM tags WHERE (cluster, id, start) = (?, ?, ?)", identity)
        for tag, value in dict(record["job"].get("tags") or {}).items():
            self.database.execute(
                "INSERT INTO tags VALUES (?, ?, ?, ?, ?)", (*identity, str(tag), str(value))
            )

    # Asking

    def jobs(self, wanted: JobFilter) -> list[dict[str, Any]]:
        conditions: list[str] = []
        values: list[Any] = []
        for condition, value in (
            ("user = ?", wanted.user),
            ("name GLOB ?", wanted.name),
            ("state = ?", wanted.state),
            ("start >= ?", wanted.since),
            ("start <= ?", wanted.until),
        ):
            if value is not None:
                conditions.append(condition)
                values.append(value)
        for name, value in wanted.tags:
            conditions.append(
                "(cluster, id, start) IN (SELECT cluster, id, start FROM tags WHERE name = ? AND value = ?)"
            )
            values += [name, value]
        where = " AND ".join(conditions) or "1"
        # The newest and the largest are what people look for, names are read from A to Z.
        upwards = (wanted.sort in ("user", "name")) != wanted.reverse
        order = f"{SORTS[wanted.sort]} {'ASC' if upwards else 'DESC'}, start DESC"
        columns = ", ".join(map(_quoted, _COLUMNS))
        rows = self.database.execute(
            f"SELECT {columns} FROM jobs WHERE {where} ORDER BY {order} LIMIT ?",
            [*values, wanted.limit if wanted.limit > 0 else -1],
        ).fetchall()
        return [dict(zip(_COLUMNS, row)) for row in rows]

    def count(self) -> int:
        (number,) = self.database.execute("SELECT count(*) FROM jobs").fetchone()
        return int(number)

    def find(self, text: str) -> list[tuple[str, str, float]]:
        """Jobs with that id, or else whose id begins so, the newest first; `last` is the newest of all."""
        if text == "last":
            return self._identities("1 = ?", (1,), 1)
        found = self._identities("id = ?", (text,), 1)
        if found or not text:
            return found
        end = text[:-1] + chr(ord(text[-1]) + 1)
        return self._identities("id >= ? AND id < ?", (text, end), 20)

    def _identities(self, where: str, values: Iterable[Any], limit: int) -> list[tuple[str, str, float]]:
        query = f"SELECT cluster, id, start FROM jobs WHERE {where} ORDER BY start DESC LIMIT {limit}"
        return [(str(c), str(i), float(s)) for c, i, s in self.database.execute(query, tuple(values))]

    def report(self, identity: tuple[str, str, float]) -> dict[str, Any]:
        query = "SELECT report FROM jobs WHERE (cluster, id, start) = (?, ?, ?)"
        (text,) = self.database.execute(query, identity).fetchone()
        return dict(json.loads(text))


def _connect(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=10, isolation_level=None)
    if path != ":memory:":
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")  # it can be made anew: it need only not be torn
    return database


def _quoted(name: str) -> str:
    return f'"{name}"'


def job_row(record: dict[str, Any]) -> dict[str, Any]:
    """What of a record stands in columns of its own."""
    job, used = record["job"], record.get("used") or {}
    found = {
        **{name: job.get(name) for name in _COLUMNS},
        **{
            name: used.get(name)
            for name in ("duration_seconds", "cpu_seconds", "memory_peak_bytes", "processes")
        },
        "cores": (record.get("asked") or {}).get("cores"),
        "verdict": record.get("verdict"),
    }
    for name, value in found.items():
        if not isinstance(value, (str, int, float, type(None))):
            raise MalformedError(str(job["id"]), f"{name} is {value!r:.60}")
    return {name: found[name] for name in _COLUMNS}
