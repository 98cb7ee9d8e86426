"""Writers, readers and one who compacts, each a process of its own on one store.

python -m store.crowd write FOLDER NODE JOBS
python -m store.crowd read|compact FOLDER          until the file `enough` is there
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from joblens.api import Store
from joblens.jobs.complete import complete
from joblens.store import ingest
from joblens.store import pending as waiting
from joblens.store.home import Home

from .made import begin_job, finish, incoming, make_end, make_facts, new_home, rows_by_batch, whole

_BATCHES = 2


def main(role: str, folder: str, *rest: str) -> None:
    home = new_home(Path(folder))
    if role == "write":
        write(home, rest[0], int(rest[1]))
    else:
        repeat(home, {"read": read, "compact": compact}[role])


def log(home: Home) -> Path:
    """Where what is acknowledged is written down."""
    return home.path.parent / "acknowledged"


def write(home: Home, node: str, jobs: int) -> None:
    waiting._MOST, waiting._AT_ONCE = 3, 2
    for number in range(jobs):
        ingest._SHORT_VALUES = 0 if number % 4 == 3 else 200_000
        job = f"{node}-{number}"
        facts = make_facts(job, node=node, boot=f"boot of {node}")
        folder = begin_job(home, facts, _BATCHES)
        end = make_end()
        finish(folder, end)
        complete(home, incoming(folder, facts, end))
        with log(home).open("a") as file:
            file.write(f"{job}\n")
        if waiting.many_wait(home):
            waiting.settle_some(home)


def repeat(home: Home, what: object) -> None:
    assert callable(what)
    times = 0
    while not (home.path.parent / "enough").exists():
        what(home)
        times += 1
    print(times)


def read(home: Home) -> None:
    expected = set(log(home).read_text().split())
    with Store(home) as store:
        jobs = [job["id"] for job in store.jobs(limit=0)]
        assert store.problems == [], store.problems
    assert len(jobs) == len(set(jobs)), jobs
    assert expected <= set(jobs), expected - set(jobs)
    rows = rows_by_batch(home)
    for job in expected:
        assert rows.get(job) == whole(_BATCHES), (job, rows.get(job))
    for job, found in rows.items():
        assert found.items() <= whole(_BATCHES).items(), (job, found)


def compact(home: Home) -> None:
    with Store(home) as store:
        store.compact()
        assert store.problems == [], store.problems


if __name__ == "__main__":
    os.umask(0o077)
    main(*sys.argv[1:])
