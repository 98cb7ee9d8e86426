"""Very many job records in PostgreSQL: loading, and listings by any filter and sort, beside the file index.

JOBLENS_BENCH_JOBS sets the number of jobs, by default 100,000. 50,000 are loaded, and multiplied in SQL
in both catalogs, with other ids, times and amounts. The server is started for the benchmark, on loopback, and
removed with its data. Both catalogs answer each question in turn, and the answers are compared.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.catalog import FILTERS, MOST_SECONDS, SCOPES, describe, example, jobs_wanted, p95, questions
from bench.catalog_jobs import make_jobs
from bench.children import ROOT, BenchError, WrongError
from bench.interpreters import Interpreter
from bench.table import Section, at_most
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import SORTS
from joblens.store.catalog.postgresql.catalog import PostgresCatalog
from joblens.store.catalog.postgresql.connection import connect
from joblens.store.copying import copy_records
from joblens.store.home import Home, find_home, make_home
from joblens.store.saving import record_sizes

_LOADED = 50_000
_BYTES = (
    24_000  # of disk per job that is loaded, for the files, their index, the tables and the log of the server
)
_MULTIPLIED_BYTES = 8_000
# Of a small server; nothing is synchronised, so that the disk of the machine is not measured.
_SETTINGS = ("shared_buffers=1GB", "max_wal_size=4GB", "maintenance_work_mem=256MB")


def measure_postgresql(pythons: list[Interpreter]) -> list[Section]:
    sys.path.insert(0, str(ROOT / "tests"))
    from services.postgresql import running_postgres

    times = max(1, round(jobs_wanted() / _LOADED))
    loaded = min(jobs_wanted(), _LOADED)
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as folder:
        free = shutil.disk_usage(folder).free
        needed = loaded * (_BYTES + times * _MULTIPLIED_BYTES)
        if free < needed:
            raise BenchError(
                f"{loaded * times} jobs need {needed / 1e9:.0f} GB of disk, {free / 1e9:.0f} are free"
            )
        print(f"bench: postgresql, {loaded} jobs × {times}", file=sys.stderr, flush=True)
        files = make_home(find_home(Path(folder) / "store"))._replace(database=None)
        make_jobs(files.records, example(pythons[0], Path(folder) / "example"), loaded)
        with running_postgres(*_SETTINGS) as server:
            tables = files._replace(database=server.create())
            return [_load(files, tables, loaded), _list(files, tables, loaded, times)]


def _load(files: Home, tables: Home, jobs: int) -> Section:
    index = _timed(lambda: Catalog(files).prepare())
    loaded = _timed(lambda: copy_records(files, tables))
    size = sum(record_sizes(tables).values())
    lines = [
        at_most(
            "load by `db copy`, per job, to indexing it",
            "",
            "seconds",
            [loaded / jobs],
            beside=[index / jobs],
        ),
        at_most("tables and indexes, per job", "", "each", [size / jobs]),
    ]
    return Section(
        f"{jobs} records of files into PostgreSQL, wall time", lines, [f"{jobs / loaded:.0f} per second"]
    )


def _timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _multiply(files: Home, tables: Home, times: int) -> None:
    """Add copies of each job to both catalogs: in the same order, and with the same figures."""
    assert tables.database is not None
    with connect(tables.database) as server, sqlite3.connect(files.catalog) as index:
        columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 'jobs'"
        found = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'jobs' AND indexname ~ '_by_'"
        _copy_rows(server, columns, found, "OVERRIDING SYSTEM VALUE", times)
        columns = "SELECT name FROM pragma_table_info('jobs')"
        found = "SELECT name, sql FROM sqlite_master WHERE tbl_name = 'jobs' AND type = 'index'"
        _copy_rows(index, columns, found, "", times)
        server.execute("VACUUM ANALYZE")  # as autovacuum does, some time later


_CHANGED = {
    "number": "number + {0}",
    "id": "id || '.{1}'",
    "shown_id": "shown_id || '.{1}'",
    "start": "start + {1} * 37",
    "duration_seconds": "duration_seconds * {2}",
    "cpu_seconds": "cpu_seconds * {2}",
    "memory_peak_bytes": "memory_peak_bytes + {1} * 4096",
}


def _copy_rows(database: Any, columns: str, indexes: str, given: str, times: int) -> None:
    known = database.execute(indexes).fetchall()
    for name, _ in known:
        database.execute(f"DROP INDEX {name}")
    names = [row[0] for row in database.execute(columns).fetchall()]
    into = ", ".join(f'"{name}"' for name in names)
    (most,) = database.execute("SELECT max(number) FROM jobs").fetchone()
    for copy in range(1, times):
        values = copy * most, copy, 1 + copy / 64
        changed = ", ".join(_CHANGED.get(name, f'"{name}"').format(*values) for name in names)
        rows = f"SELECT {changed} FROM jobs WHERE number <= {most}"  # noqa: S608
        database.execute(f"INSERT INTO jobs ({into}) {given} {rows}")
        for table, column in (("job_nodes", "node"), ("tags", "name, value")):
            rows = f"SELECT job + {values[0]}, {column} FROM {table} WHERE job <= {most}"  # noqa: S608
            database.execute(f"INSERT INTO {table} (job, {column}) {rows}")
    for _, statement in known:
        database.execute(statement)


def _list(files: Home, tables: Home, loaded: int, times: int) -> Section:
    assert tables.database is not None
    both = Catalog(files), PostgresCatalog(tables.database)
    _multiply(files, tables, times)
    jobs = loaded * times
    if [catalog.count() for catalog in both] != [jobs, jobs]:
        raise WrongError("the tables do not have all jobs")
    took: list[tuple[str, str, list[float]]] = []
    for name, wanted in questions():
        answers, seconds = [], []
        for catalog in both:
            begin = time.perf_counter()
            answers.append(catalog.jobs(wanted, SCOPES[name]))
            seconds.append(time.perf_counter() - begin)
        what = f"{name}: {describe(wanted)}"
        if repr(answers[0]) != repr(answers[1]):
            raise WrongError(f"the catalogs differ: {what}")
        took.append((name, what, seconds))
    for catalog in both:
        catalog.close()
    lines = []
    for scope in SCOPES:
        found = list(zip(*(both for name, _, both in took if name == scope)))
        what = f"p95 of {len(found[0])} listings, scope: {scope}"
        lines.append(at_most(what, "", "seconds", [p95(found[1])], beside=[p95(found[0])], most=MOST_SECONDS))
    slowest = sorted(((it[1], what) for _, what, it in took), reverse=True)
    lines.append(at_most("slowest", "", "seconds", [slowest[0][0]], beside=[max(it[2][0] for it in took)]))
    return Section(
        f"Pages of {jobs} jobs, {len(FILTERS)} filters × {len(SORTS)} sorts in both directions, wall time; "
        "reference: the index of files",
        lines,
        [
            f"{loaded} jobs were copied, and multiplied by {times} in SQL in both catalogs",
            *(f"{each * 1e3:.0f} ms: {what}" for each, what in slowest[:8]),
        ],
    )
