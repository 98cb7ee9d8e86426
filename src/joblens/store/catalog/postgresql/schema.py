"""The tables, as numbered migrations. Each is one transaction: where one is interrupted, the next goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joblens.core.errors import OutsideError
from joblens.store.catalog.postgresql.connection import SCHEMA, NotReadyError, load_driver, sentences
from joblens.store.database import Database

if TYPE_CHECKING:
    from joblens.store.catalog.postgresql.connection import Connection

WRITER, READER = "joblens_writer", "joblens_reader"  # roles; the owner is who has created the tables
LOCK = 0x6A6F626C656E73  # "joblens": one migration at a time
CHANGE_LOCK = LOCK + 1  # one change of a record by a person at a time
_TEXT = 'text COLLATE "C"'  # sorted as SQLite and Python do

MIGRATIONS: tuple[str, ...] = (
    f"""
    CREATE TABLE kinds (
        number bigint PRIMARY KEY, "user" {_TEXT} NOT NULL, account {_TEXT}, partition {_TEXT},
        state {_TEXT}, cluster {_TEXT} NOT NULL
    );
    CREATE TABLE names (name {_TEXT} PRIMARY KEY);
    CREATE TABLE jobs (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, kind bigint NOT NULL REFERENCES kinds,
        cluster {_TEXT} NOT NULL, id {_TEXT} NOT NULL, start double precision NOT NULL,
        "end" double precision, name {_TEXT} NOT NULL, "user" {_TEXT} NOT NULL, node {_TEXT}, source {_TEXT},
        state {_TEXT}, exit_code bigint, duration_seconds double precision, cpu_seconds double precision,
        cores double precision, memory_peak_bytes double precision, processes double precision,
        verdict {_TEXT}, shown_id {_TEXT} NOT NULL, nodes {_TEXT}, partition {_TEXT}, account {_TEXT},
        tags text, annotations text, written bigint NOT NULL, record jsonb NOT NULL
    );
    CREATE UNIQUE INDEX jobs_by_id ON jobs (id, cluster, start);
    CREATE TABLE job_nodes (
        job bigint NOT NULL REFERENCES jobs ON DELETE CASCADE, node {_TEXT} NOT NULL, PRIMARY KEY (job, node)
    );
    CREATE TABLE tags (
        job bigint NOT NULL REFERENCES jobs ON DELETE CASCADE, name {_TEXT} NOT NULL, value {_TEXT} NOT NULL,
        PRIMARY KEY (job, name)
    );
    CREATE TABLE annotations (
        job bigint NOT NULL REFERENCES jobs ON DELETE CASCADE, name {_TEXT} NOT NULL, value {_TEXT} NOT NULL,
        PRIMARY KEY (job, name)
    );
    """,
    """
    CREATE INDEX kinds_by_user ON kinds ("user");
    CREATE INDEX jobs_by_start ON jobs (start, kind);
    CREATE INDEX jobs_by_shown_id ON jobs (shown_id) WHERE shown_id != id;
    CREATE INDEX jobs_by_duration ON jobs (duration_seconds, start, kind);
    CREATE INDEX jobs_by_cpu ON jobs (cpu_seconds, start, kind);
    CREATE INDEX jobs_by_memory ON jobs (memory_peak_bytes, start, kind);
    CREATE INDEX jobs_by_user ON jobs ("user", start DESC, kind);
    CREATE INDEX jobs_by_name ON jobs (name, start DESC, kind);
    CREATE INDEX jobs_by_kind ON jobs (kind, start);
    CREATE INDEX jobs_by_exit_code ON jobs (exit_code, start DESC, kind);
    CREATE INDEX jobs_by_node ON jobs (node);
    CREATE INDEX job_nodes_by_node ON job_nodes (node);
    CREATE INDEX tags_by_value ON tags (name, value);
    CREATE INDEX annotations_by_value ON annotations (name, value);
    """,
    # Each index of an order has all of it, and the kind: a page is found without the rows of other jobs.
    """
    DROP INDEX jobs_by_start, jobs_by_duration, jobs_by_cpu, jobs_by_memory, jobs_by_user, jobs_by_name;
    CREATE INDEX jobs_by_start ON jobs (start, id, cluster) INCLUDE (kind, number);
    CREATE INDEX jobs_by_duration ON jobs (duration_seconds, start, id, cluster) INCLUDE (kind, number);
    CREATE INDEX jobs_by_cpu ON jobs (cpu_seconds, start, id, cluster) INCLUDE (kind, number);
    CREATE INDEX jobs_by_memory ON jobs (memory_peak_bytes, start, id, cluster) INCLUDE (kind, number);
    CREATE INDEX jobs_by_user ON jobs ("user", start DESC, id DESC, cluster DESC) INCLUDE (kind, number);
    CREATE INDEX jobs_by_name ON jobs (name, start DESC, id DESC, cluster DESC) INCLUDE (kind, number);
    """,
    # It had the order of annotations; they are sorted by name now.
    "ALTER TABLE jobs DROP COLUMN annotations",
)
_CREATE = f"""
    CREATE SCHEMA IF NOT EXISTS {SCHEMA};
    CREATE TABLE IF NOT EXISTS migrations (
        number integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now()
    )"""
_CHANGEABLE = "kinds, names, jobs, job_nodes, tags, annotations"


def find_version(connection: Connection) -> int:
    """Return the number of the last migration; 0 if there is none."""
    found = connection.execute("SELECT to_regclass('migrations')").fetchone()
    if found is None or found[0] is None:
        return 0
    row = connection.execute("SELECT coalesce(max(number), 0) FROM migrations").fetchone()
    return int(row[0]) if row else 0


def check_version(database: Database, connection: Connection) -> None:
    """Raises NotReadyError."""
    version = find_version(connection)
    if version == len(MIGRATIONS):
        return
    if version == 0:
        allowed = "SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %s"
        if connection.execute(allowed, (SCHEMA,)).fetchall() == [(False,)]:
            raise NotReadyError(
                f"{database}: permission denied; ask its owner for the role {READER} or {WRITER}"
            )
        raise NotReadyError(f"{database} has no tables of joblens yet; run `joblens db init`")
    if version > len(MIGRATIONS):
        raise NotReadyError(
            f"{database} was made by a newer joblens (version {version}, this one knows {len(MIGRATIONS)})"
        )
    raise NotReadyError(
        f"{database} has version {version} of {len(MIGRATIONS)} of its tables; run `joblens db upgrade`"
    )


def migrate(database: Database, connection: Connection) -> int:
    """Bring it to the newest version. Return how many migrations that took. Raises OutsideError."""
    done = 0
    with sentences(database):
        _check_encoding(database, connection)
        while _migrate_once(database, connection):
            done += 1
    return done


def create(database: Database, connection: Connection) -> str:
    """Create tables and roles. Return why there are no roles, or "". Raises OutsideError."""
    problem = create_roles(database, connection)
    with sentences(database), connection.transaction():  # all of them or none, whenever it is killed
        migrate(database, connection)
        grant(connection)
    return problem


def create_once(database: Database, connection: Connection) -> None:
    """Create the tables of an empty database, unless another does. Raises errors of the driver."""
    if find_version(connection) >= len(MIGRATIONS):
        return
    connection.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
    if not find_version(connection):
        create(database, connection)
    connection.execute("SELECT pg_advisory_unlock(%s)", (LOCK,))


def _migrate_once(database: Database, connection: Connection) -> bool:
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        connection.execute(_CREATE)
        version = find_version(connection)
        if version > len(MIGRATIONS):
            check_version(database, connection)
        if version == len(MIGRATIONS):
            return False
        connection.execute(MIGRATIONS[version])
        connection.execute("INSERT INTO migrations (number) VALUES (%s)", (version + 1,))
        grant(connection)
    return True


def _check_encoding(database: Database, connection: Connection) -> None:
    row = connection.execute("SHOW server_encoding").fetchone()
    if row is None or row[0] != "UTF8":
        raise OutsideError(f"{database} has the encoding {row and row[0]}, and not UTF8")


def grant(connection: Connection) -> None:
    """Let members of the roles in, as far as these exist. No other user can read."""
    found = connection.execute("SELECT rolname FROM pg_roles WHERE rolname IN (%s, %s)", (WRITER, READER))
    roles = {row[0] for row in found}
    for role in roles:
        connection.execute(f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO {role}")
    if WRITER in roles:
        connection.execute(f"GRANT INSERT, UPDATE, DELETE ON {_CHANGEABLE} TO {WRITER}")


def create_roles(database: Database, connection: Connection) -> str:
    """Create the roles of the server, unless they are there. Return why that failed, or ""."""
    errors = load_driver().errors
    for role in (WRITER, READER):
        try:
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                connection.execute(f"CREATE ROLE {role} NOLOGIN")
        except (errors.DuplicateObject, errors.UniqueViolation):  # another was faster
            continue
        except errors.InsufficientPrivilege:
            return (
                f"the role {role} is missing, and you may not create roles; ask an administrator for: "
                f"CREATE ROLE {WRITER}; CREATE ROLE {READER}; then run `joblens db init` again"
            )
    return ""
