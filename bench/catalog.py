"""The index of very many job records: how long it takes to build, and to list jobs by any filter and sort.

JOBLENS_BENCH_JOBS sets the number of jobs, by default 100,000. JOBLENS_BENCH_BEFORE is the source folder of
another version, whose build is measured on the same records in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from bench.catalog_jobs import DAYS, make_jobs
from bench.children import SOURCE, environment
from bench.interpreters import Interpreter
from bench.run import joblens, newest_record
from bench.table import Section, at_most, compare
from joblens.store.catalog.index import Catalog
from joblens.store.catalog.listing import SORTS, JobFilter
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.home import Home, find_home, make_home

_JOBS = 100_000
_BUILDS = 3
MOST_SECONDS = 0.1
_COMMAND = ("sh", "-c", "for i in 1 2 3 4; do sleep 0.5; done")
# One at a time; the reference reads and parses the same lines, with the parser that the index uses.
_BUILD = """
import sys, time
from joblens.store.home import find_home
from joblens.store.catalog.index import Catalog
begin = time.process_time()
catalog = Catalog(find_home(sys.argv[1]))
assert catalog.count() == int(sys.argv[2]) and not catalog.problems
print(time.process_time() - begin)
"""
_PARSE = """
import sys, time
from pathlib import Path
import msgspec
begin = time.process_time()
decode, count = msgspec.json.Decoder().decode, 0
for path in Path(sys.argv[1]).glob("records/*/*.jsonl"):
    with path.open("rb") as file:
        for line in file:
            decode(line)
            count += 1
assert count == int(sys.argv[2])
print(time.process_time() - begin)
"""
SCOPES = {
    "all": ALL,
    "one user": Scope(False, frozenset({"user7"}), frozenset()),
    "three accounts": Scope(False, frozenset({"user7"}), frozenset({"account1", "account2", "account3"})),
}
FILTERS: list[dict[str, Any]] = [
    {},
    {"user": "user0"},
    {"user": "user399"},
    {"account": "account5"},
    {"state": "COMPLETED"},
    {"state": "OUT_OF_MEMORY"},
    {"state": "NODE_FAIL"},
    {"partition": "debug"},
    {"cluster": "bear"},
    {"node": "n017"},
    {"name": "u7-*"},
    {"name": "*job13"},
    {"name": "*none*"},
    {"array": "300"},
    {"tags": (("model", "m3"),)},
    {"tags": (("model", "m9"),)},
    {"since": 7 * 86_400.0},
    {"until": 300 * 86_400.0},
    {"user": "user3", "state": "FAILED", "since": 30 * 86_400.0},
    {"partition": "gpu", "state": "TIMEOUT", "node": "n017"},
]


def measure_catalog(pythons: list[Interpreter]) -> list[Section]:
    python = pythons[0]
    jobs = jobs_wanted()
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as folder:
        home = make_home(find_home(Path(folder) / "store"))
        print(f"bench: catalog, {jobs} jobs", file=sys.stderr, flush=True)
        make_jobs(home.records, example(python, Path(folder) / "example"), jobs)
        return [_measure_build(python, home, jobs), _measure_listing(home, jobs)]


def jobs_wanted() -> int:
    return int(os.environ.get("JOBLENS_BENCH_JOBS", _JOBS))


def example(python: Interpreter, home: Path) -> dict[str, Any]:
    command = joblens(python, "run", "--quiet", "--", *_COMMAND)
    subprocess.run(command, env={**environment(), "JOBLENS_HOME": str(home)}, check=True)
    return newest_record(python, str(home))


def _measure_build(python: Interpreter, home: Home, jobs: int) -> Section:
    before = os.environ.get("JOBLENS_BENCH_BEFORE", "")
    found: dict[str, list[float]] = {"now": [], "parse": [], "before": []}
    for _ in range(_BUILDS):
        for name, source, script in (
            ("before", before, _BUILD),
            ("parse", str(SOURCE), _PARSE),
            ("now", str(SOURCE), _BUILD),
        ):
            if source:
                found[name].append(_run(python, home, jobs, source, script))
    lines = [compare("build, CPU, to parsing the records", "", found["now"], found["parse"])]
    if before:
        what = "build, CPU, to the version before"
        lines.append(compare(what, "", found["now"], found["before"], most=0.2))
    return Section(f"Index of {jobs} records, in files of {DAYS} days", lines)


def _run(python: Interpreter, home: Home, jobs: int, source: str, script: str) -> float:
    for path in home.path.glob("catalog.sqlite*"):
        path.unlink()
    words = [python.path, "-c", script, str(home.path), str(jobs)]
    variables = {**environment(), "PYTHONPATH": source}
    return float(subprocess.run(words, env=variables, check=True, capture_output=True, text=True).stdout)


def _measure_listing(home: Home, jobs: int) -> Section:
    catalog = Catalog(home)
    begin = time.process_time()
    catalog.prepare()
    prepared = time.process_time() - begin
    took: dict[str, list[float]] = {name: [] for name in SCOPES}
    slowest: list[tuple[float, str]] = []
    for name, wanted in questions():
        begin = time.process_time()
        catalog.jobs(wanted, SCOPES[name])
        took[name].append(time.process_time() - begin)
        slowest.append((took[name][-1], f"{name}: {describe(wanted)}"))
    catalog.close()
    lines = [
        at_most(f"p95 of {len(it)} listings, scope: {name}", "", "seconds", [p95(it)], most=MOST_SECONDS)
        for name, it in took.items()
    ]
    lines.append(at_most("slowest", "", "seconds", [max(slowest)[0]]))
    lines.append(at_most("all indexes, CPU, once", "", "seconds", [prepared]))
    return Section(
        f"Pages of {jobs} jobs, each filter with each sort in both directions, CPU time",
        lines,
        [f"{seconds * 1e3:.0f} ms: {what}" for seconds, what in sorted(slowest, reverse=True)[:5]],
    )


def questions() -> Iterator[tuple[str, JobFilter]]:
    now = time.time()
    for name, filters, sort, reverse, limit in product(SCOPES, FILTERS, SORTS, (False, True), (20, 1000)):
        times = {key: now - filters[key] for key in ("since", "until") if key in filters}
        yield name, JobFilter(sort=sort, reverse=reverse, limit=limit, **{**filters, **times})


def describe(wanted: JobFilter) -> str:
    return json.dumps({name: value for name, value in wanted._asdict().items() if value})


def p95(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]
