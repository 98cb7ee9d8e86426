"""The steps of `joblens run` for a short job, apart from the command, and the deferred ones."""

from __future__ import annotations

import os
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.steps import Clock
from joblens.core.files import write_whole
from joblens.core.host import Host
from joblens.jobs.complete import complete
from joblens.record.fields import read
from joblens.record.job import JobEnd, JobFacts
from joblens.reports.style import Style
from joblens.reports.text import render_report
from joblens.run.facts import RunFacts, collect
from joblens.run.sampler import Sampler
from joblens.store import ingest
from joblens.store.home import find_home, make_home
from joblens.store.lake.lake import Lake
from joblens.store.location import begin
from joblens.store.pending import settle
from joblens.wire.batch import Batch
from joblens.wire.header import Head

_LIBRARIES = ("numpy", "duckdb")


def store_one(clock: Clock) -> None:
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as path:
        home = make_home(find_home(path))
        facts = collect(Host(), ["true"], "", {}, 1.0)
        folder = Path(begin(str(home.path), facts.id, facts._asdict()))
        clock.time("two samples, written as a batch", lambda: _sample(facts, folder))
        found = ingest.Incoming(folder, read(facts._asdict(), JobFacts), read(_end(), JobEnd))
        record = clock.time("analysis, writing the record", lambda: complete(home, found))
        clock.time("the report as text", lambda: render_report(record, Style(False)))
        (waiting,) = ingest.folders(home.waiting)
        clock.time("later, imports for the lake", lambda: [import_module(name) for name in _LIBRARIES])
        lake = Lake(home.lake)
        clock.time("later, opening DuckDB", lambda: lake.connection)
        clock.time("later, into the lake", lambda: settle(lake, waiting))


def _sample(facts: RunFacts, folder: Path) -> None:
    watcher, batch = Sampler(Host(), facts, os.getpid()), Batch()
    batch.add(watcher.sample())
    batch.add(watcher.sample())
    head: Head = {"cluster": facts.cluster, "node": facts.node, "boot": facts.boot, "id": facts.id}
    write_whole(str(folder / "00000001.batch"), batch.encode({**head, "sequence": 1}))


def _end() -> dict[str, Any]:
    now = time.time()
    return {"start": now - 0.1, "end": now, "exit_code": 0, "signal": None, "totals": {}, "problems": []}
