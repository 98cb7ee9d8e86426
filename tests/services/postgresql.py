"""A real PostgreSQL, as tests run it: on loopback, in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob
from itertools import count
from pathlib import Path

import psycopg

from joblens.store.catalog.postgresql.connection import connect
from joblens.store.catalog.postgresql.schema import create
from joblens.store.database import Database
from programs import need
from waiting import PATIENCE, wait_for

from .running import free_port

PASSWORD = "s3cret-of-the-test"  # noqa: S105
_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "shared_buffers=32MB")
_numbers = count(1)


class Postgres:
    """A server with databases. The processes of root run as the user postgres."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder, self.port, self.settings = folder, free_port(), settings
        programs = sorted(glob("/usr/lib/postgresql/*/bin"))
        self.programs = programs[-1] if programs else os.path.dirname(need("initdb", "postgres"))
        self.data = folder / "data"
        self._usual: Database | None = None
        words = (
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-U",
            "postgres",
            "--no-sync",
            "-D",
            str(self.data),
        )
        self._run("initdb", *words)
        # Others than the owner need a password.
        trusted = "local all postgres trust\nhost all postgres 127.0.0.1/32 trust\n"
        rules = f"{trusted}host all all 127.0.0.1/32 scram-sha-256\n"
        (self.data / "pg_hba.conf").write_text(rules)
        self.start()

    def _command(self, program: str, *words: str) -> list[str]:
        command = [f"{self.programs}/{program}", *words]
        return (
            ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
            if _is_root()
            else command
        )

    def _run(self, program: str, *words: str) -> None:
        command = self._command(program, *words)
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE, cwd=self.folder)

    def start(self, *settings: str) -> None:
        options = [
            "listen_addresses=127.0.0.1",
            f"port={self.port}",
            f"unix_socket_directories={self.folder}",
        ]
        options += [*_FAST, *self.settings, *settings]
        words = [word for option in options for word in ("-c", option)]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                self._command("postgres", "-D", str(self.data), *words),
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        wait_for("the database", self.answers)

    def answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            with self.connect():
                return True
        except psycopg.OperationalError:
            return False

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.url(database), autocommit=True)

    def url(self, database: str, user: str = "postgres", password: str = "") -> str:
        who = f"{user}:{password}" if password else user
        return f"postgresql://{who}@127.0.0.1:{self.port}/{database}"

    def create(self) -> Database:
        """A new and empty database, which takes a second."""
        name = f"test{next(_numbers)}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return Database(self.url(name))

    def without_jobs(self) -> Database:
        """One with tables: the same for all tests, each of which begins with empty ones."""
        if self._usual is None:
            self._usual = self.create()
            with connect(self._usual) as connection:
                create(self._usual, connection)
        with connect(self._usual) as connection:
            connection.execute("TRUNCATE jobs, kinds, names, job_nodes, tags, annotations")
        return self._usual

    def stop(self, number: int = signal.SIGINT) -> None:
        """By SIGINT it disconnects its clients and shuts down; by SIGKILL it is killed, and leaves a lock."""
        self.process.send_signal(number)
        self.process.wait(PATIENCE)
        wait_for("the end of its processes", lambda: not _has_processes(self.data))


def _has_processes(data: Path) -> bool:
    """Whether a process still works in the folder of the data."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.readlink(f"/proc/{name}/cwd") == str(data):
                return True
    return False


def _is_root() -> bool:
    return os.geteuid() == 0


@contextmanager
def running_postgres(*settings: str) -> Iterator[Postgres]:
    need("psql")
    folder = Path(tempfile.mkdtemp(prefix="joblens-postgresql-"))
    try:
        if _is_root():
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
        server = Postgres(folder, *settings)
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
