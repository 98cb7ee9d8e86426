"""From a job on its way into the store to its record: samples into the lake, summary, record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joblens.analysis.summary import summarise
from joblens.errors import sentence
from joblens.host import Host
from joblens.store import ingest
from joblens.store.home import Home
from joblens.store.lake import Lake
from joblens.store.reader import LakeReader
from joblens.store.records import save_record

Progress = Callable[[int, int], None]


def complete(home: Home, found: ingest.Incoming, progress: Progress | None = None) -> dict[str, Any]:
    """The record. Only when it is there are the batches removed, so that a crash in between loses nothing."""
    lake = Lake(home.lake)
    problems = ingest.save_samples(lake, found, progress)
    record = summarise(found.facts, found.end, LakeReader(lake))
    record["data"]["problems"] += problems + lake.problems
    save_record(home.records, record)
    ingest.remove(found)
    return record


def recover(home: Home) -> list[str]:
    """Completes the jobs that a joblens has left behind when it was killed. Says what could not be."""
    host = Host()
    node, boot = host.name(), host.boot_id()
    problems: list[str] = []
    for found in ingest.list_incoming(home):
        if ingest.is_abandoned(found, node, boot):
            try:
                complete(home, found)
            except Exception as error:  # one job's trouble is not the others'
                problems.append(f"job {found.facts.get('id')} could not be completed: {sentence(error)}")
    return problems
