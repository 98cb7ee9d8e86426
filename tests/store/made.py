"""Jobs that never ran, with samples of which every number is known."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from joblens.attribution.account import JOB, OWNED_PROCESS
from joblens.core.files import write_whole
from joblens.core.model import ABSENT, Rows, Sample
from joblens.jobs.complete import complete
from joblens.record.fields import read
from joblens.record.job import JobEnd, JobFacts
from joblens.record.report import JobRecord
from joblens.store import ingest, location
from joblens.store.home import Home, find_home, make_home
from joblens.store.lake.lake import Lake
from joblens.store.location import safe_name
from joblens.store.memory_reader import SamplesReader
from joblens.store.pending import find_reader, settle
from joblens.store.reader import Span
from joblens.wire.batch import Batch

START = 1_577_923_200.0  # 2020-01-02 00:00 UTC
LOOKS = 5  # samples in a batch
_JOB_PLACES = {column.name: place for place, column in enumerate(JOB.columns)}
_PROCESS_PLACES = {column.name: place for place, column in enumerate(OWNED_PROCESS.columns)}


def new_home(path: Path) -> Home:
    return make_home(find_home(path))


def make_facts(job: str, **others: Any) -> dict[str, Any]:
    """Of a job on a node that is not this one, unless told otherwise."""
    return {
        "id": job, "cluster": "here", "node": "c1", "boot": "b1", "source": "run", "name": "made",
        "user": "alice", "uid": 1000, "command": "made up", "folder": "/", "tags": {}, "start": START,
        "interval": 1.0, "cores": 4.0, "memory": 8 << 30, "environment": {}, **others,
    }  # fmt: skip


def make_end(start: float = START, seconds: float = 30.0, code: int = 0) -> dict[str, Any]:
    totals = {"user_seconds": 20.0, "system_seconds": 1.0}
    end = {"start": start, "end": start + seconds, "exit_code": code, "signal": None}
    return {**end, "totals": totals, "problems": []}


def make_samples(facts: dict[str, Any], batch: int, looks: int = LOOKS) -> list[Sample]:
    """One a second. `processes` is the number of the batch, `threads` that of the look in it."""
    found = []
    for look in range(looks):
        time_ns = int((facts["start"] + (batch - 1) * looks + look) * 1e9)
        key = (facts["cluster"], facts["id"], facts["node"])
        values = _row(
            _JOB_PLACES, cpu_seconds=(batch * looks + look) * 900_000, memory_bytes=1 << 28, processes=batch,
            threads=look,
        )  # fmt: skip
        found.append(Sample(time_ns, Rows(JOB, (key,), values)))
        process = (facts["cluster"], facts["id"], "", facts["node"], *process_key(100, 1))
        values = _row(_PROCESS_PLACES, user_seconds=batch * 100, rss_anon_bytes=1 << 18, threads=1, state=82)
        found.append(Sample(time_ns, Rows(OWNED_PROCESS, (process,), values)))
    return found


def process_key(pid: int, parent: int, name: str = "made", command: str = "made up") -> tuple[Any, ...]:
    known = {"pid": pid, "start": 7, "parent": parent, "name": name, "command": command}
    texts = ("name", "command", "cgroup", "user")
    return tuple(known.get(label, "" if label in texts else 0) for label in OWNED_PROCESS.labels[4:])


def _row(places: dict[str, int], **values: int) -> list[int]:
    row = [ABSENT] * len(places)
    for name, value in values.items():
        row[places[name]] = value
    return row


def write_batch(folder: Path, facts: dict[str, Any], number: int, samples: Iterable[Sample]) -> None:
    batch = Batch()
    batch.add(samples)
    head: Any = {name: facts[name] for name in ("cluster", "node", "boot", "id")}
    write_whole(str(folder / f"{number:08d}.batch"), batch.encode(head | {"sequence": number}))


def begin(home: Home, facts: dict[str, Any]) -> Path:
    return Path(location.begin(str(home.path), facts["id"], facts))


def begin_job(home: Home, facts: dict[str, Any], batches: int = 2) -> Path:
    folder = begin(home, facts)
    for number in range(1, batches + 1):
        write_batch(folder, facts, number, make_samples(facts, number))
    return folder


def store_job(home: Home, job: str, batches: int = 2, **others: Any) -> JobRecord:
    """Its record. Its samples are in the lake."""
    record = end_job(home, job, batches, **others)
    lake = Lake(home.lake)
    assert settle(lake, home.waiting / safe_name(job)) + lake.problems == []
    return record


def end_job(home: Home, job: str, batches: int = 2, **others: Any) -> JobRecord:
    """Its record. Its samples wait, as those of any short job do."""
    facts = make_facts(job, **others)
    folder = begin_job(home, facts, batches)
    end = make_end(facts["start"])
    finish(folder, end)
    return complete(home, incoming(folder, facts, end))


def finish(folder: Path, end: dict[str, Any]) -> None:
    location.finish(str(folder), read(end, JobEnd).to_dict())


def incoming(folder: Path, facts: dict[str, Any], end: dict[str, Any] | None = None) -> ingest.Incoming:
    return ingest.Incoming(folder, read(facts, JobFacts), None if end is None else read(end, JobEnd))


RowsByBatch = dict[str, dict[int, tuple[int, int]]]


def rows_by_batch(home: Home) -> RowsByBatch:
    """Of each job and batch, how many samples there are and what their `threads` add up to.

    As one who reads samples finds them: in the batches of jobs that wait, of all others in the lake.
    """
    waiting = rows_waiting(home)  # first: what is gone from there is in the lake
    return {**rows_in_lake(home), **waiting}


def rows_in_lake(home: Home) -> RowsByBatch:
    lake = Lake(home.lake)
    rows = lake.query(
        lake.files("job"),
        {"jobid": "VARCHAR", "processes": "BIGINT", "threads": "BIGINT"},
        "SELECT jobid, processes, count(*), sum(threads)::BIGINT FROM {lake} GROUP BY ALL",
    )
    assert lake.problems == []
    found: RowsByBatch = {}
    for job, batch, count, total in rows:
        found.setdefault(job, {})[batch] = (count, total)
    return found


def start_of(folder: Path) -> float:
    found = ingest.load_job(folder)
    return float((found.end or found.facts).start) if found else 0.0


def rows_waiting(home: Home) -> RowsByBatch:
    lake = Lake(home.lake)
    found: RowsByBatch = {}
    for folder in ingest.folders(home.waiting):
        job = folder.name
        reader = find_reader(home, lake, job, start_of(folder))
        if isinstance(reader, SamplesReader):
            series = reader.series(Span(job, 0.0, 4e9), "job", ("processes", "threads"), 10**12)
            rows = found.setdefault(job, {})
            for batch, threads in zip(series.last["processes"], series.last["threads"]):
                assert batch is not None
                assert threads is not None
                count, total = rows.get(int(batch), (0, 0))
                rows[int(batch)] = (count + 1, total + int(threads))
    assert lake.problems == []
    return found


def whole(batches: int) -> dict[int, tuple[int, int]]:
    """What `rows_by_batch` has of a job that is there once and entirely."""
    return {number: (LOOKS, sum(range(LOOKS))) for number in range(1, batches + 1)}


def grow_old(path: Path, seconds: float = 7200.0) -> None:
    """All below the folder, as if that much time had passed since."""
    then = time.time() - seconds
    for folder, _, names in os.walk(path):
        for name in names:
            os.utime(os.path.join(folder, name), (then, then))
        os.utime(folder, (then, then))


def all_files(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*") if found.is_file())
