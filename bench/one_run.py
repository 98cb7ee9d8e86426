"""What `joblens run` does for a short job besides running it, step by step."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.steps import Clock
from joblens.agent.batch import Batch
from joblens.analysis.summary import summarise
from joblens.files import write_whole
from joblens.host import Host
from joblens.reports.text import Style, render_report
from joblens.run.facts import collect
from joblens.run.watch import Watch
from joblens.store import ingest
from joblens.store.home import find_home, make_home
from joblens.store.lake import Lake
from joblens.store.reader import LakeReader
from joblens.store.records import save_record


def store_one(clock: Clock) -> None:
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as path:
        home = make_home(find_home(path))
        facts = collect(Host(), ["true"], "", {}, 1.0)
        folder = ingest.begin(home, facts)
        clock.time("two looks, written as a batch", lambda: _look(facts, folder))
        found = ingest.Incoming(folder, facts, _end())
        lake = Lake(home.lake)
        clock.time("opening DuckDB", lambda: lake.connection)
        clock.time("writing Parquet", lambda: ingest.save_samples(lake, found))
        reader = LakeReader(lake)
        record = clock.time("reading it back, analysis", lambda: summarise(facts, found.end, reader))
        clock.time("writing the record", lambda: save_record(home.records, record))
        clock.time("the report as text", lambda: render_report(record, Style(False)))


def _look(facts: dict[str, Any], folder: Path) -> None:
    watcher, batch = Watch(Host(), facts, os.getpid()), Batch()
    batch.add(watcher.sample())
    batch.add(watcher.sample())
    head = {name: facts[name] for name in ("cluster", "node", "boot", "id")}
    write_whole(str(folder / "00000001.batch"), batch.encode({**head, "sequence": 1}))


def _end() -> dict[str, Any]:
    now = time.time()
    return {"start": now - 0.1, "end": now, "exit_code": 0, "signal": None, "totals": {}, "problems": []}
