"""The tables of the catalog, as one step after the other brings an older one up."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

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
    """
    ALTER TABLE jobs ADD COLUMN day TEXT NOT NULL DEFAULT '';
    ALTER TABLE jobs ADD COLUMN written INTEGER NOT NULL DEFAULT 0;
    UPDATE jobs SET day = date(start, 'unixepoch');
    CREATE INDEX jobs_by_day ON jobs (day);
    """,
    # The place of a record instead of the record itself. All are indexed again, which is fast now.
    """
    DROP TABLE jobs;
    DELETE FROM tags;
    DELETE FROM days;
    DELETE FROM files;
    CREATE TABLE jobs (
        cluster TEXT NOT NULL, id TEXT NOT NULL, start REAL NOT NULL, "end" REAL,
        name TEXT NOT NULL, user TEXT NOT NULL, node TEXT, source TEXT, state TEXT, exit_code INTEGER,
        duration_seconds REAL, cpu_seconds REAL, cores REAL, memory_peak_bytes INTEGER, processes INTEGER,
        verdict TEXT, written INTEGER NOT NULL, day TEXT NOT NULL, file TEXT NOT NULL, place INTEGER NOT NULL,
        PRIMARY KEY (cluster, id, start)
    ) WITHOUT ROWID;
    CREATE INDEX jobs_by_start ON jobs (start);
    CREATE INDEX jobs_by_id ON jobs (id);
    CREATE INDEX jobs_by_user ON jobs (user, start);
    CREATE INDEX jobs_by_day ON jobs (day);
    """,
    # What schedulers know of jobs: ids as people write them, all nodes, partition and account.
    """
    DROP TABLE jobs;
    DELETE FROM tags;
    DELETE FROM days;
    DELETE FROM files;
    CREATE TABLE jobs (
        cluster TEXT NOT NULL, id TEXT NOT NULL, start REAL NOT NULL, "end" REAL,
        name TEXT NOT NULL, user TEXT NOT NULL, node TEXT, source TEXT, state TEXT, exit_code INTEGER,
        duration_seconds REAL, cpu_seconds REAL, cores REAL, memory_peak_bytes INTEGER, processes INTEGER,
        verdict TEXT, shown_id TEXT NOT NULL, nodes TEXT, partition TEXT, account TEXT, on_nodes TEXT,
        written INTEGER NOT NULL, day TEXT NOT NULL, file TEXT NOT NULL, place INTEGER NOT NULL,
        PRIMARY KEY (cluster, id, start)
    ) WITHOUT ROWID;
    CREATE INDEX jobs_by_start ON jobs (start);
    CREATE INDEX jobs_by_id ON jobs (id);
    CREATE INDEX jobs_by_shown_id ON jobs (shown_id) WHERE shown_id != id;
    CREATE INDEX jobs_by_user ON jobs (user, start);
    CREATE INDEX jobs_by_day ON jobs (day);
    """,
    # The largest of very many, without sorting them all, in the order of joblens.store.catalog.listing.
    # Each such index makes filling the catalog a tenth dearer, so there is one for what is asked for most.
    """
    CREATE INDEX jobs_by_cpu ON jobs (cpu_seconds, start, id);
    """,
    # Numbered jobs, so that tables of nodes and tags and all indexes are small. All are indexed again.
    """
    DROP TABLE jobs;
    DROP TABLE tags;
    DROP TABLE days;
    DROP TABLE files;
    CREATE TABLE jobs (
        number INTEGER PRIMARY KEY, cluster TEXT NOT NULL, id TEXT NOT NULL, start REAL NOT NULL,
        user TEXT NOT NULL, account TEXT, state TEXT, partition TEXT, name TEXT NOT NULL,
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
    CREATE TABLE names (name TEXT PRIMARY KEY) WITHOUT ROWID;
    CREATE TABLE days (day TEXT PRIMARY KEY, changed INTEGER NOT NULL);
    CREATE TABLE files (
        number INTEGER PRIMARY KEY, day TEXT NOT NULL, name TEXT NOT NULL,
        whole INTEGER NOT NULL DEFAULT 0, UNIQUE (day, name)
    );
    """,
    # No version before has stored annotations, so that nothing need be indexed again.
    """
    CREATE TABLE annotations (
        job INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (job, name)
    ) WITHOUT ROWID;
    """,
    # The kind of a job in each index: what many jobs have in common, so that it is compared once for all.
    """
    DROP TABLE jobs;
    DELETE FROM job_nodes;
    DELETE FROM tags;
    DELETE FROM annotations;
    DELETE FROM names;
    DELETE FROM days;
    DELETE FROM files;
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
    """,
)

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
    """Brings it to the newest version, whatever version it has; a newer one is an error."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == len(MIGRATIONS):
        return
    with _transaction(database):
        (version,) = database.execute("PRAGMA user_version").fetchone()  # another may have been faster
        if version > len(MIGRATIONS):
            raise NewerError(f"made by a newer joblens (version {version}, this one knows {len(MIGRATIONS)})")
        if version < 0:
            raise sqlite3.DatabaseError("its version number is invalid")
        for number in range(version, len(MIGRATIONS)):
            for statement in filter(str.strip, MIGRATIONS[number].split(";\n")):
                database.execute(statement)
        database.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")
