"""PostgreSQL under programs that keep running, and under importers: also while it is away or read-only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

from cli.test_up import BUSY, RECORDS, Up, as_user, follower, is_in
from importers.epmt_files import job_files, metadata, process, write_tar
from importers.test_sacct import PAST, write
from joblens.api import Store
from joblens.store.catalog.postgresql.access import init
from joblens.store.database import VARIABLE, Database
from joblens.store.home import Home
from jobs.made import Site
from programs import need
from store.conftest import run_joblens
from store.made import new_home
from usermode.sessions import Place
from waiting import wait_for

from .postgresql import Postgres, running_postgres


@pytest.fixture
def own() -> Iterator[Postgres]:
    """A server that the test stops."""
    with running_postgres("synchronous_commit=on") as server:
        yield server


@contextmanager
def read_only(database: Database) -> Iterator[None]:
    """As a standby is. Connections that are open stay as they are."""
    name = database.url.rpartition("/")[2]
    with psycopg.connect(database.url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        yield
        connection.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")


def ids(home: Home) -> list[str]:
    with Store(home) as store:
        assert store.problems == []
        return sorted(row.shown_id for row in store.jobs(limit=0))


def test_follower(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It creates the tables. While they are read-only it says once that records wait; all are there once."""
    database = postgres.create()
    monkeypatch.setenv(VARIABLE, database.url)
    site = Site(tmp_path)
    expected = [site.begin()]
    site.cluster.end(expected[0])
    site.turn()
    assert ids(site.home) == expected
    assert site.said == []
    with read_only(database):
        for _ in range(3):
            expected.append(site.begin())
            site.cluster.end(expected[-1])
            site.turn()
        (said,) = site.said
        assert "waits in" in said
        assert "read-only" in said
        assert json.loads((site.folder / "status.json").read_text())["state"] == "failing"
    site.follower.catalog.close()
    site.restart()
    site.turn()
    assert ids(site.home) == expected
    assert list(site.home.undelivered.iterdir()) == []
    site.turn()
    assert json.loads((site.folder / "status.json").read_text())["state"] == "working"
    site.follower.catalog.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process as another user")
def test_hub(own: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agent, hub, follower and service. A job that ends while the server is killed has one record, later."""
    monkeypatch.setenv(VARIABLE, own.create().url)
    it = Up(tmp_path, config=RECORDS)
    try:
        wait_for("sets at the hub", it.sets)
        follower(it)
        with as_user(12_345, f"exec {need('perl')} -e '{BUSY}'") as job:
            name = f"s{job.pid}"
            wait_for("the job in the list", partial(is_in, it, name, "RUNNING"))
            own.stop(signal.SIGKILL)
            job.kill()
        wait_for("a sentence", lambda: "does not answer" in it.said())
        own.start()
        wait_for("the record", partial(is_in, it, name, "ENDED"))
        assert len(json.loads(it.joblens("job", name, "--json").stdout)["runs"]) == 1
        it.process.terminate()
        assert it.end() == 0
        assert is_in(it, name, "ENDED")
        assert not list((it.home / "records").iterdir())
        assert "Traceback" not in it.said()
    finally:
        it.process.kill()
        it.process.wait()


def test_user_mode(own: Postgres, tmp_path: Path) -> None:
    """The record of a session is in the database, or waits for it; the report says which."""
    place = Place(tmp_path, {VARIABLE: own.create().url})
    try:
        first = place.started()
        record = place.stop()
        assert not [it for it in record["data"]["problems"] if "waits" in it]
        first.kill()
        first.wait()
        second = place.started()
        own.stop(signal.SIGKILL)
        waits = place.joblens("usermode", "stop")
        second.kill()
        second.wait()
        assert waits.code == 0
        assert " ".join(waits.out.split()).count("waits in") == 1, waits.out
        own.start()
        found = json.loads(place.joblens("jobs", "--json").out)
        assert len(found) == len({row["id"] for row in found}) == 2
        assert {row["source"] for row in found} == {"usermode"}
        assert list((place.home / "records").iterdir()) == []
    finally:
        place.end()


@pytest.mark.parametrize("system", ["epmt", "sacct"])
def test_importers(postgres: Postgres, tmp_path: Path, system: str) -> None:
    """They create the tables. Into read-only ones nothing is lost: one sentence says where records wait."""
    database = postgres.create()
    home, folder = new_home(tmp_path / "store")._replace(database=database), tmp_path / "files"
    folder.mkdir()
    if system == "epmt":
        for id in ("1", "2", "3"):
            write_tar(folder / f"{id}.tgz", job_files([process(1), process(2)], metadata(id)))
        words, expected = ["import", "epmt", str(folder)], ["1", "2", "3"]
    else:
        words, expected = ["import", "sacct", str(write(folder / "past", PAST))], ["4200_7", "4242", "4300+1"]
    imported = partial(run_joblens, home, *words, **{VARIABLE: database.url})
    init(database)
    with read_only(database):
        done = imported()
        assert (done.returncode, len(done.stderr.splitlines())) == (0, 1), done
        assert "waits in" in done.stderr
        assert "3 records to be delivered" in done.stdout
    assert ids(home) == expected
    again = imported()
    assert (again.returncode, again.stderr) == (0, "")
    assert "3 jobs already stored" in again.stdout
    assert ids(home) == expected


def test_import_while_the_server_goes_away(own: Postgres, tmp_path: Path) -> None:
    """One sentence for all archives that are left; then again, and each is there once."""
    database = own.create()
    home, folder = new_home(tmp_path / "store")._replace(database=database), tmp_path / "files"
    folder.mkdir()
    for number in range(40):
        write_tar(folder / f"{number}.tgz", job_files([process(1), process(2)], metadata(str(number))))
    init(database)
    words = ["import", "epmt", str(folder)]
    environment = {"JOBLENS_HOME": str(home.path), VARIABLE: database.url}
    running = subprocess.Popen(
        [sys.executable, "-m", "joblens", *words],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    with psycopg.connect(database.url, autocommit=True) as connection:
        wait_for("a job", lambda: connection.execute("SELECT 1 FROM joblens.jobs LIMIT 1").fetchall())
    own.stop(signal.SIGKILL)
    _, said = running.communicate()
    own.start()
    assert running.returncode == 3
    assert 1 <= len(said.splitlines()) <= 2, said  # the record of one may wait
    assert "archives are left: import them again" in said
    again = run_joblens(home, *words, **{VARIABLE: database.url})
    assert (again.returncode, again.stderr) == (0, "")
    assert ids(home) == sorted(map(str, range(40)))
