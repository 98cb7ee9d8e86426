"""PostgreSQL as users and administrators see it: the same answers, several writers, faults, roles, copies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from importers.epmt_files import job_files, process, write_tar
from joblens.api import Store
from joblens.cli import main
from joblens.cli.jobs import filter_of
from joblens.cli.parser import build_parser
from joblens.core.errors import OutsideError
from joblens.core.json_file import render_json
from joblens.jobs.submit import submit
from joblens.record.ends import EndedProcess
from joblens.record.report import Imported, JobRecord
from joblens.store.catalog.postgresql.access import drop, init, load_all, save_in, upgrade
from joblens.store.catalog.postgresql.connection import connect
from joblens.store.catalog.postgresql.schema import MIGRATIONS, check_version, find_version
from joblens.store.copying import copy_records
from joblens.store.database import VARIABLE, Database
from joblens.store.home import Home
from joblens.store.saving import count_waiting, keep, save_record, save_records
from jobs.archives import make_archive, make_records
from serve.serving import ADMIN, ALICE, BOB, OWNERS, SETTINGS, SUPPORT, Served, make_job
from store.conftest import run_joblens
from store.made import START, new_home, store_job
from waiting import wait_for

from .postgresql import PASSWORD, Postgres, running_postgres


@pytest.fixture
def home(postgres: Postgres, tmp_path: Path) -> Home:
    return new_home(tmp_path / "store")._replace(database=postgres.without_jobs())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> JobRecord:
    return store_job(new_home(tmp_path_factory.mktemp("made")), "made", batches=1)


def url_of(home: Home) -> str:
    assert home.database is not None
    return home.database.url


def run(home: Home, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_joblens(home, *words, **{VARIABLE: url_of(home), **variables})


def make_jobs(made: JobRecord) -> list[JobRecord]:
    """Jobs with the same ids of different users, clusters and years, with odd names and unknown figures."""
    found = []
    for number in range(40):
        job = made.job.replace(
            id=f"{4200 + number % 7}",
            cluster=("fox", "bear")[number % 2],
            user=("alice", "bob", "émile", "")[number % 4],
            account=("maths", None, "physics")[number % 3],
            partition=("gpu", "long", None)[number % 3],
            state=("COMPLETED", "FAILED", "UNKNOWN")[number % 3],
            name=("train_%", "Train-x", "a*b", "é", "t[1]")[number % 5],
            start=START + number * 40 * 86_400.0 + 0.123456,
            nodes=[f"c{it}" for it in range(number % 4 + 1)],
            node="c0",
            array_job="4200" if number % 5 == 0 else None,
            array_task=str(number) if number % 5 == 0 else None,
            tags={"zeta": "1", "model": f"m{number % 3}", "b": "x y"} if number % 2 else {},
            annotations={"why": "it's 100 %", "by": "b", "a longer name": "1"} if number % 6 == 0 else {},
            environment={"SLURM_NNODES": "2", "PATH": "x", "A_LONG_NAME": "y"} if number % 3 == 0 else None,
        )
        used = made.used.replace(
            cpu_seconds=None if number % 7 == 0 else number * 1.1, memory_peak_bytes=number % 5 * 1000
        )
        sums = {"usertime": 3 * number, "rchar": 2.5, "a_longer_name": 1}
        data = made.data.replace(imported=Imported("epmt", "a.tgz", sums=sums)) if number % 4 else made.data
        record = made.replace(job=job, used=used, data=data)
        record.keep(render_json(record.to_dict() | {"zz": {"later": 1, "b": [{"x": 1, "aaaa": 2}]}, "y": 2}))
        found.append(record)
    return found


FILTERS = [
    (), ("--user", "alice"), ("--user", "émile"), ("--name", "train_%"), ("--name", "*a*"), ("--name", "?"),
    ("--name", "t[1]"), ("--state", "FAILED"), ("--cluster", "bear"), ("--partition", "gpu"),
    ("--account", "maths"), ("--node", "c2"), ("--tag", "model:m1"), ("--annotation", "why:it's 100 %"),
    ("--array", "4200"), ("--exit", "0"), ("--since", "2021-01-01"), ("--until", "2022-06-01"),
    ("--user", "bob", "--tag", "model:m1", "--state", "FAILED"),
]  # fmt: skip


CAPTURED, JOBS = 4, 45


@pytest.fixture(scope="module")
def both(postgres: Postgres, made: JobRecord, tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Home]:
    """The same jobs in files and in a database of their own. Some have samples, some captured processes."""
    files = new_home(tmp_path_factory.mktemp("files") / "store")
    tables = new_home(tmp_path_factory.mktemp("tables") / "store")._replace(database=postgres.create())
    store_job(files, "run1", name="whole", tags={"b": "2", "a": "1"})
    save_records(files, make_jobs(made))
    for number in range(CAPTURED):
        records = make_records(100, 6 if number == 2 else 2)
        tags = {"exp_name": "ocean", "exp_time": f"1999010{number + number // 3}"}
        archive = make_archive(tmp_path_factory.mktemp("archives"), f"c{number}", records=records, tags=tags)
        assert submit(files, archive, lambda job: None).problem == ""
    created = run_joblens(files, "model", "create", "usual", *(f"c{number}" for number in range(CAPTURED)))
    assert created.returncode == 0, created.stderr
    done = copy_records(files, tables)
    assert (done.copied, done.known, done.problems) == (JOBS, 0, [])
    return files, tables


def test_listings_are_the_same(both: tuple[Home, Home]) -> None:
    """For every filter and order, as rows with their types, and page by page."""
    parser = build_parser(["jobs"])
    with Store(both[0]) as files, Store(both[1]) as tables:
        for filters, sort, reverse in product(
            FILTERS, ("start", "duration", "cpu", "memory", "user", "name"), (0, 1)
        ):
            words = ["jobs", *filters, "--sort", sort, *(["--reverse"] * reverse)]
            wanted = filter_of(parser.parse_args(words))
            for limit in (0, 3):
                expected = files.jobs(wanted._replace(limit=limit))
                assert repr(tables.jobs(wanted._replace(limit=limit))) == repr(expected), words
        assert len(files.jobs(limit=0)) == JOBS


@pytest.mark.parametrize(
    "words",
    [
        ("jobs",), ("jobs", "--csv", "--limit", "0"), ("jobs", "--json", "--judged", "usual"),
        ("job", "last"), ("job", "run1"), ("job", "run1", "--json"), ("job", "4203@fox", "--json"),
        ("job", "42"), ("job", "4203", "--run", "2"), ("job", "run1", "--from", "+2s", "--to", "+8s"),
        ("job", "c1", "--processes"), ("job", "c1", "--threads", "--csv"), ("job", "c1", "--tree"),
        ("job", "c1", "--operations", "--json"),
        ("compare", "4201@fox", "4202@bear"), ("compare", "c0", "c1", "--with", "c2", "c3", "--json"),
        ("outliers", "--name", "made", "--json"), ("outliers", "--model", "usual", "c0", "c2"),
        ("outliers", "--tag", "exp_name:ocean", "--of", "operations"), ("series", "ocean"),
        ("series", "ocean", "--json"), ("model", "show", "usual"), ("model", "list"),
        ("model", "list", "--json"), ("job", "c1", "--gantt"), ("job", "c1", "--gantt", "--json"),
        ("compare", "c0", "c1", "--csv"),
        ("outliers", "--tag", "exp_name:ocean", "--of", "programs"),
        ("outliers", "--tag", "exp_name:ocean", "--of", "processes", "--json"),
        ("outliers", "--tag", "exp_name:ocean", "--of", "threads"),
    ],
)  # fmt: skip
def test_commands_print_the_same(
    both: tuple[Home, Home],
    words: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files, tables = both
    # Samples are in the folder of the store, which is the same.
    monkeypatch.setenv("JOBLENS_HOME", str(files.path))
    answers = []
    for url in ("", url_of(tables)):
        monkeypatch.setenv(VARIABLE, url)
        answers.append((main(list(words)), *capsys.readouterr()))
    assert answers[1] == answers[0]
    assert answers[0][1] or words == ("job", "42"), "a question that has no answer shows nothing"


def test_copies_there_and_back(both: tuple[Home, Home], tmp_path: Path) -> None:
    """A repeated copy copies nothing; one that goes back is the same to the last digit and in its order."""
    files, tables = both
    assert copy_records(files, tables)[:2] == (0, JOBS)
    back = new_home(tmp_path / "back")
    assert copy_records(tables, back)[:2] == (JOBS, 0)
    with Store(files) as before, Store(back) as after:
        for row in before.jobs(limit=0):
            identity = row.cluster, row.id, row.start or 0.0
            one, other = before.report(identity).to_dict(), after.report(identity).to_dict()
            assert json.dumps(one).replace("\\u0000", "\\ufffd") == json.dumps(other)


def test_a_copy_that_is_killed(home: Home, made: JobRecord, tmp_path: Path) -> None:
    """Repeated, it copies the rest: each job is there once."""
    files = new_home(tmp_path / "files")
    many = [made.replace(job=made.job.replace(id=f"j{number}")) for number in range(3000)]
    save_records(files, many)
    words = [sys.executable, "-m", "joblens", "db", "copy", str(files.path), "database"]
    environment = {**os.environ, "JOBLENS_HOME": str(home.path), VARIABLE: url_of(home)}
    with Store(home) as store:
        process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
        wait_for("some jobs", lambda: store._catalog.count() or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        again = run(home, "db", "copy", str(files.path), "database")
        assert again.returncode == 0, again.stderr
        assert again.stderr.endswith(
            f"not copied: samples, processes, threads and models; they are in {files.path}\n"
        )
        assert store._catalog.count() == 3000
        assert store._catalog.problems == []


def test_copies_between_databases(postgres: Postgres, made: JobRecord, tmp_path: Path) -> None:
    """Neither names the folder of the store that happens to be configured here, nor delivers records to the
    database of another store that wait for its own."""
    here = new_home(tmp_path / "here")._replace(database=postgres.create())
    source, target = postgres.create(), postgres.create()
    save_in(source, [made.replace(job=made.job.replace(id="there"))], 1)
    keep(here, [made.replace(job=made.job.replace(id="waits"))], 1, OutsideError("away"))
    without = run(here, "db", "copy", source.url, target.url)
    assert without.returncode == 0, without.stderr
    assert str(here.path) not in without.stderr
    assert without.stderr.endswith(f"they are in the folder of the store that uses {source}\n")
    assert [it.job.id for it in load_all(target, [])] == ["there"]
    assert count_waiting(here) == 1
    with Store(here) as store:
        assert [row.id for row in store.jobs()] == ["waits"]
    same = run(here, "db", "copy", source.url, source.url)
    assert (same.returncode, "FROM and TO are the same" in same.stderr) == (2, True)


def test_four_at_once_into_an_empty_database(postgres: Postgres, made: JobRecord, tmp_path: Path) -> None:
    """Without tables at first. Some jobs are the same for all of them: every job is there, once."""
    home = new_home(tmp_path / "store")._replace(database=postgres.create())
    code = (
        "import sys; from pathlib import Path; from joblens.store.home import find_home\n"
        "from joblens.store.records import load_records; from joblens.store.saving import save_record\n"
        "home = find_home()\n"
        "for record in load_records(Path(sys.argv[1]), []): assert save_record(home, record) == ''"
    )
    environment = {**os.environ, "JOBLENS_HOME": str(home.path), VARIABLE: url_of(home)}
    processes = []
    for number in range(4):
        folder = new_home(tmp_path / f"n{number}")
        ids = [f"shared{it}" for it in range(10)] + [f"own{number}-{it}" for it in range(10)]
        save_records(folder, [made.replace(job=made.job.replace(id=id, tags={"n": id})) for id in ids])
        (path,) = folder.records.glob("*/*.jsonl")
        words = [sys.executable, "-c", code, str(path)]
        processes.append(subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True))
    assert [process.communicate()[1] for process in processes] == [""] * 4
    with Store(home) as store:
        assert len(store.jobs(limit=0)) == 50
        assert len(store.jobs(limit=0, tags={"n": "shared3"})) == 1
        assert store.check() == 0
        assert store.problems == []


def test_four_submit_at_once(postgres: Postgres, tmp_path: Path) -> None:
    """Archives, one of which all of them have, into an empty database; then they are retired."""
    home = new_home(tmp_path / "store")._replace(database=postgres.create())
    environment = {**os.environ, "JOBLENS_HOME": str(home.path), VARIABLE: url_of(home)}
    processes = []
    for number in range(4):
        folder = tmp_path / f"n{number}"
        folder.mkdir()
        for id in ("shared", f"own{number}", f"other{number}"):
            make_archive(folder, id, nodes=2)
            (folder / f"{id}.joblens").chmod(0o600)
        words = [sys.executable, "-m", "joblens", "submit", "--workers", "1", str(folder)]
        processes.append(subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True))
    assert [process.communicate()[1] for process in processes] == [""] * 4
    with Store(home) as store:
        rows = store.jobs(limit=0)
        assert len(rows) == len({row.id for row in rows}) == 9
        assert {len(store.ends(row.id, EndedProcess)) for row in rows} == {4}
    assert list(home.records.iterdir()) == []
    epmt = write_tar(tmp_path / "e.tgz", job_files([process(1), process(2, ppid=1)]))
    assert run(home, "import", "epmt", str(epmt)).returncode == 0
    assert len(json.loads(run(home, "jobs", "--json").stdout)) == 10
    assert run(home, "retire", "--older-than", "1d").returncode == 0
    assert json.loads(run(home, "jobs", "--json").stdout) == []


ROUTES = [
    "/jobs", "/jobs?limit=2&sort=user", "/jobs?state=FAILED", "/jobs?user=daemon&sort=cpu&reverse=true",
    "/jobs?node=c1&sort=memory", "/jobs?tag=exp:7", "/jobs?name=j*&since=2020-01-01", "/jobs?exit_code=0",
    "/me", "/jobs/1", "/jobs/3", "/jobs/99", "/jobs/run1", "/jobs/run1?from=%2B2s&to=%2B8s",
    "/jobs/run1/sets", "/jobs/run1/series?columns=cpu_seconds", "/jobs/run1/processes",
    "/jobs/42/ended/groups?by=name", "/jobs/42/ended/groups?by=tags", "/models", "/models/usual",
    "/jobs/42/ended/processes", "/jobs/42/ended/threads", "/jobs/42/ended/threads?run=2", "/jobs/42",
]  # fmt: skip


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """That every user can enter; pytest closes its own whenever it is started."""
    with tempfile.TemporaryDirectory(prefix="joblens-serve-") as folder:
        os.chmod(folder, 0o755)  # noqa: S103
        yield Path(folder)


def test_the_read_service(postgres: Postgres, open_folder: Path) -> None:
    """Everyone gets what they get from a service over files, and a service outlives its connections."""
    top, database = open_folder, postgres.create()
    served = Served(top, SETTINGS)
    save_records(served.home, [make_job(id, user, START + int(id)) for id, user in OWNERS.items()])
    store_job(served.home, "run1", user=ALICE)
    archive = make_archive(top, nodes=2, tags={"exp": "7"})
    assert submit(served.home, archive, lambda job: None).problem == ""
    answers = ask_all(served)
    assert {status for _, _, status, _ in answers} == {200, 404}
    unknown = {"/jobs/99", "/jobs/42/ended/threads?run=2", "/models/usual"}
    assert {path for path, _, status, _ in answers if status == 200} == {*ROUTES} - unknown

    copy_records(served.home, served.home._replace(database=database))
    (served.home.records / "2020-01-02").rename(top / "away")
    served.config.write_text(f'{SETTINGS}[store]\ndatabase = "{database.url}"\n')
    served.start()
    try:
        with postgres.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'joblens'"
            )
        assert [served.get("/jobs", ADMIN).status for _ in range(3)] == [200] * 3
    finally:
        served.stop()
    assert ask_all(served) == answers


def ask_all(served: Served) -> list[tuple[str, str, int, Any]]:
    """Return the answers to each question of each kind of user, and all pages of a listing."""
    served.start()
    try:
        found = [(path, user) for path in ROUTES for user in (ALICE, BOB, SUPPORT, ADMIN)]
        answers = [(path, user, served.get(path, user)) for path, user in found]
        pages = [served.get("/jobs?limit=2&sort=cpu", ADMIN).json]
        while (more := pages[-1].get("next")) is not None:
            pages.append(served.get(f"/jobs?limit=2&sort=cpu&cursor={more}", ADMIN).json)
        assert sum(len(page["jobs"]) for page in pages) == len(OWNERS) + 2
        return [*((path, user, it.status, it.json) for path, user, it in answers), ("/jobs", "", 200, pages)]
    finally:
        served.stop()


def test_changes_by_people(home: Home, made: JobRecord) -> None:
    """Tags and annotations are merged, filtered by, and go with the job."""
    save_record(home, made)
    assert run(home, "tag", "made", "model:x", "run:1").returncode == 0
    assert run(home, "tag", "made", "run:2").returncode == 0
    assert run(home, "annotate", "made", "why:slow").returncode == 0
    with Store(home) as store:
        assert [row.tags for row in store.jobs(tags={"model": "x"})] == [{"model": "x", "run": "2"}]
        assert store.job("made").job.annotations == {"why": "slow"}
        assert len(store.jobs(annotations={"why": "slow"})) == 1
    assert run(home, "delete", "made", "--yes").returncode == 0
    with connect(Database(url_of(home))) as connection:
        for table in ("jobs", "tags", "annotations", "job_nodes"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)]


def test_run(home: Home) -> None:
    """The record is in the database, and no file in the store."""
    done = run(home, "run", "--name", "real", "--", "true")
    assert (done.returncode, "waits" in done.stdout + done.stderr) == (0, False)
    assert [row["name"] for row in json.loads(run(home, "jobs", "--json").stdout)] == ["real"]
    assert list(home.records.iterdir()) == []


# Faults


@pytest.fixture
def own() -> Iterator[Postgres]:
    """A server that the test stops."""
    settings = ("max_connections=6", "superuser_reserved_connections=0", "synchronous_commit=on")
    with running_postgres(*settings) as server:
        yield server


def test_faults(own: Postgres, made: JobRecord, tmp_path: Path) -> None:
    """Killed, stopped, out of connections, read-only: one sentence, nothing lost, and work goes on."""
    home = new_home(tmp_path / "store")._replace(database=own.create())
    save_record(home, made)
    store = Store(home)
    expected = ["made"]

    def save(name: str, why: str) -> None:
        waits = save_record(home, made.replace(job=made.job.replace(id=name)))
        assert "waits in" in waits, waits
        assert why in waits
        assert "\n" not in waits
        expected.append(name)

    def is_complete() -> bool:
        return sorted(row.id for row in store.jobs(limit=0)) == sorted(expected)

    for number in (signal.SIGKILL, signal.SIGINT):
        own.stop(number)
        save(f"while-stopped-{number}", "Connection refused")
        failed = run(home, "jobs")
        assert (failed.returncode, failed.stdout) == (3, "")
        assert len(failed.stderr.splitlines()) == 1
        assert "does not answer" in failed.stderr
        ran = run(home, "run", "--name", f"r{number}", "--", "sh", "-c", "echo output; exit 7")
        assert (ran.returncode, ran.stdout.splitlines()[0]) == (7, "output")
        own.start()
        store.jobs()  # connects again
        with Store(home) as other:  # delivers
            assert other.problems == []
            expected += [row.id for row in other.jobs(name=f"r{number}")]
        assert is_complete()

    with own.connect() as connection:
        connection.execute(
            f"ALTER DATABASE {url_of(home).rpartition('/')[2]} SET default_transaction_read_only = on"
        )
    save("while-read-only", "read-only")
    with Store(home) as other:
        assert len(other.problems) == 1
        assert other.job("made").job.id == "made"
        with pytest.raises(OutsideError, match="read-only"):
            other.tag("made", {"a": "b"})
    with own.connect() as connection:
        connection.execute(
            f"ALTER DATABASE {url_of(home).rpartition('/')[2]} RESET default_transaction_read_only"
        )

    held = []
    with pytest.raises(Exception, match="too many clients"):
        while True:
            held.append(own.connect())
    save("without-connection", "too many clients")
    for each in held:
        each.close()
    wait_for("free connections", own.answers)
    with Store(home) as other:
        assert other.problems == []
    assert is_complete()
    store.close()


# Administration


def test_upgrade_that_was_interrupted(postgres: Postgres, made: JobRecord, tmp_path: Path) -> None:
    """An older database keeps its jobs; a newer one is left alone. Until then records wait."""
    database = postgres.create()
    home = new_home(tmp_path / "store")._replace(database=database)
    save_record(home, made)
    with connect(database) as connection:
        connection.execute("DELETE FROM migrations WHERE number > 1")
        connection.execute("ALTER TABLE jobs ADD COLUMN annotations text")
        query = "SELECT indexname FROM pg_indexes WHERE schemaname = 'joblens' AND indexname ~ '_by_'"
        names = [row[0] for row in connection.execute(query) if row[0] != "jobs_by_id"]
        for name in names:
            connection.execute(f"DROP INDEX {name}")
    assert "joblens db upgrade" in save_record(home, made.replace(job=made.job.replace(id="late")))
    failed = run(home, "jobs")
    assert (failed.returncode, "joblens db upgrade" in failed.stderr) == (3, True)
    with connect(database) as connection:
        # Stopped in the middle: the migration is undone as a whole.
        connection.execute("CREATE TABLE job_nodes_by_node ()")
        with pytest.raises(OutsideError, match="already exists"):
            upgrade(database)
        assert find_version(connection) == 1
        connection.execute("DROP TABLE job_nodes_by_node")
    assert upgrade(database) == len(MIGRATIONS) - 1
    assert upgrade(database) == 0
    with Store(home) as store:
        assert sorted(row.id for row in store.jobs()) == ["late", "made"]
    with connect(database) as connection:
        connection.execute("INSERT INTO migrations (number) VALUES (%s)", (len(MIGRATIONS) + 1,))
        with pytest.raises(OutsideError, match="newer joblens"):
            check_version(database, connection)
    assert run(home, "db", "upgrade").returncode == 3


def test_commands_of_the_database(postgres: Postgres, made: JobRecord, tmp_path: Path) -> None:
    home = new_home(tmp_path / "store")._replace(database=postgres.create())
    failed = run(home, "jobs")
    assert (failed.returncode, "joblens db init" in failed.stderr) == (3, True)
    for _ in range(2):
        assert run(home, "db", "init").returncode == 0
    save_record(home, made)
    sizes = json.loads(run(home, "db", "size", "--json").stdout)
    assert (sizes["jobs"], sizes["bytes"]["jobs"] > 0) == (1, True)
    assert run(home, "db", "check").returncode == 0
    with connect(Database(url_of(home))) as connection:
        connection.execute("UPDATE jobs SET name = 'wrong'")
    assert run(home, "db", "check").returncode == 1
    with Store(home) as store:
        assert store.jobs()[0].name == made.job.name
    assert run(home, "db", "retain", "--days", "7").returncode == 0
    assert run(home, "jobs", "--json").stdout == "[]\n"
    assert run(home, "db", "drop").returncode == 2
    assert run(home, "db", "drop", "--force").returncode == 0
    assert "joblens db init" in run(home, "jobs").stderr


def test_drop_with_records_that_wait(postgres: Postgres, made: JobRecord, tmp_path: Path) -> None:
    """They go with the others: none comes back. An archive that is submitted again gets its record back."""
    home = new_home(tmp_path / "store")._replace(database=postgres.create())
    save_record(home, made)
    archive = make_archive(tmp_path, nodes=2)
    assert submit(home, archive, lambda job: None).problem == ""
    with connect(Database(url_of(home))) as connection:
        connection.execute("DELETE FROM migrations WHERE number > 1")
        connection.execute("ALTER TABLE jobs ADD COLUMN annotations text")
    assert "waits in" in save_record(home, made.replace(job=made.job.replace(id="late")))
    dropped = run(home, "db", "drop", "--force")
    assert dropped.returncode == 0
    assert f"and 1 file of records that wait for it in {home.undelivered}" in dropped.stderr
    assert run(home, "db", "init").returncode == 0
    assert run(home, "jobs", "--json").stdout == "[]\n"
    assert submit(home, archive, lambda job: None).is_known
    with Store(home) as store:
        assert [row.id for row in store.jobs()] == ["42"]
        assert len(store.ends("42", EndedProcess)) == 4


def test_roles(postgres: Postgres, made: JobRecord, tmp_path: Path) -> None:
    """The owner creates and drops the tables, a writer changes jobs, a reader lists them; others see none."""
    name = url_of(new_home(tmp_path / "store")._replace(database=postgres.create())).rpartition("/")[2]
    with postgres.connect() as connection:
        for role in ("olga", "wendy", "rita", "nobody1"):
            connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'")
        connection.execute(f"ALTER DATABASE {name} OWNER TO olga")
    postgres.without_jobs()  # by the administrator, who can create the roles of the server
    databases = {
        role: Database(postgres.url(name, role, PASSWORD)) for role in ("olga", "wendy", "rita", "nobody1")
    }
    homes = {
        role: new_home(tmp_path / role)._replace(database=database) for role, database in databases.items()
    }
    assert init(databases["olga"]) == (len(MIGRATIONS), "")
    assert save_record(homes["olga"], made) == ""
    with postgres.connect() as connection:
        connection.execute("GRANT joblens_writer TO wendy")
        connection.execute("GRANT joblens_reader TO rita")
    assert save_record(homes["wendy"], made.replace(job=made.job.replace(id="w"))) == ""
    with Store(homes["wendy"]) as store:
        store.tag("w", {"seen": "yes"})
        store.delete("made")
    with Store(homes["rita"]) as store:
        assert [(row.id, row.tags) for row in store.jobs()] == [("w", {"seen": "yes"})]
        with pytest.raises(OutsideError, match="permission denied"):
            store.tag("w", {"seen": "no"})
    assert "permission denied" in save_record(homes["rita"], made.replace(job=made.job.replace(id="r")))
    with pytest.raises(OutsideError, match="permission denied"):
        Store(homes["nobody1"])
    for role in ("wendy", "rita", "nobody1"):
        with pytest.raises(OutsideError, match="must be owner"):
            drop(databases[role])
    drop(databases["olga"])


def test_passwords_are_not_shown(home: Home, postgres: Postgres) -> None:
    """In no message, and not among the words of a command."""
    wrong = [
        postgres.url("nowhere", "postgres", PASSWORD), postgres.url("x", "nobody2", PASSWORD),
        f"postgresql://a:{PASSWORD}@127.0.0.1:x/y", f"postgresql://a:{PASSWORD}@[/y", f"postgresql://a:{PASSWORD}",
        f"mysql://a:{PASSWORD}@h/y", f"postgresql://a:12/{PASSWORD}@h/y", f"postgresql://h/y?password={PASSWORD}&nonsense=1",
    ]  # fmt: skip
    for number, url in enumerate(wrong):
        connects = (("db", "info"), ("db", "init")) if number < 2 else ()  # each tries several times
        for words in (("jobs",), ("config", "show"), *connects):
            found = run(home, *words, **{VARIABLE: url})
            assert PASSWORD not in found.stdout + found.stderr, url
            assert len(found.stderr.splitlines()) == 1 or words[0] == "config", found.stderr
    for url in wrong[:5]:
        assert PASSWORD not in f"{Database(url)} {Database(url)!r} {[Database(url)]}"
    refused = run(home, "db", "copy", wrong[0], "database")
    assert (refused.returncode, "pgpass" in refused.stderr) == (2, True)
    ran = run(home, "run", "--", "true", **{VARIABLE: wrong[0]})
    assert ran.returncode == 0
    assert not [it for it in home.path.rglob("*") if it.is_file() and PASSWORD.encode() in it.read_bytes()]


def test_created_twice(postgres: Postgres) -> None:
    database = postgres.create()
    assert init(database).migrations == len(MIGRATIONS)
    assert init(database) == (0, "")
