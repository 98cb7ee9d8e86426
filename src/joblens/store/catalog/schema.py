"""The tables of the catalog. Those of an older version are replaced, and filled again from the records."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = 8
# Jobs are numbered, so that tables of nodes and tags and all indexes are small. Each index has the kind of a
# job: what many jobs have in common is compared once for all of them.
TABLES = """
    CREATE TABLE kinds (
        number INTEGER PRIMARY KEY, user TEXT NOT NULL, account TEXT, partition TEXT, state TEXT,
        cluster TEXT NOT NULL
    );
    CREATE INDEX kinds_by_user ON kinds (user);
    CREATE TABLE jobs (
        number INTEGER PRIMARY KEY, kind INTEGER NOT NULL, cluster TEXT NOT NULL, id TEXT NOT NULL,
        start REAL NOT NULL, user TEXT NOT NULL, account TEXT, state TEXT, partition TEXT, name TEXT NOT NULL,
        duration_seconds REAL, cpu_seconds REAL, memory_peak_bytes INTEGER, shown_id TEXT NOT NULL,
        "end" REAL, node TEXT, source TEXT, exit_code INTEGER, cores REAL, processes INTEGER,
        verdict TEXT, nodes TEXT, tags TEXT, written INTEGER NOT NULL, file INTEGER NOT NULL,
        place INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX jobs_by_id ON jobs (id, cluster, start);
    CREATE INDEX jobs_by_file ON jobs (file);
    CREATE TABLE job_nodes (
        job INTEGER NOT NULL, node TEXT NOT NULL, PRIMARY KEY (job, node)
    ) WITHOUT ROWID;
    CREATE TABLE tags (
        job INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (job, name)
    ) WITHOUT ROWID;
    CREATE TABLE annotations (
        job INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (job, name)
    ) WITHOUT ROWID;
    CREATE TABLE names (name TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE days (day TEXT PRIMARY KEY, changed INTEGER NOT NULL);
    CREATE TABLE files (
        number INTEGER PRIMARY KEY, day TEXT NOT NULL, name TEXT NOT NULL,
        whole INTEGER NOT NULL DEFAULT 0, UNIQUE (day, name)
    );
    """

# By sort and filter. Each is created when it is first needed: to sort many rows once costs a fraction of
# inserting each, and most stores never need all.
INDEXES = {
    "start": "jobs_by_start ON jobs (start, kind)",
    "array": "jobs_by_shown_id ON jobs (shown_id) WHERE shown_id != id",
    "duration": "jobs_by_duration ON jobs (duration_seconds, start, kind)",
    "cpu": "jobs_by_cpu ON jobs (cpu_seconds, start, kind)",
    "memory": "jobs_by_memory ON jobs (memory_peak_bytes, start, kind)",
    "user": "jobs_by_user ON jobs (user, start DESC, kind)",
    "name": "jobs_by_name ON jobs (name, start DESC, kind)",
    "kind": "jobs_by_kind ON jobs (kind, start)",
    "exit": "jobs_by_exit_code ON jobs (exit_code, start DESC, kind)",
    "node": "jobs_by_node ON jobs (node)",
    "nodes": "job_nodes_by_node ON job_nodes (node)",
    "tags": "tags_by_value ON tags (name, value)",
    "annotations": "annotations_by_value ON annotations (name, value)",
}


class NewerError(Exception):
    """A newer joblens has made the file."""


def migrate(database: sqlite3.Connection) -> None:
    """Create the tables. Those of an older version are removed; a newer version is an error."""
    if _version(database) == VERSION:
        return
    with _transaction(database):
        version = _version(database)  # another may have been faster
        if version > VERSION:
            raise NewerError(f"made by a newer joblens (version {version}, this one knows {VERSION})")
        if version < 0:
            raise sqlite3.DatabaseError("its version number is invalid")
        if version == VERSION:
            return
        if version:
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                database.execute(f'DROP TABLE "{name}"')
        for statement in filter(str.strip, TABLES.split(";\n")):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {VERSION}")


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
