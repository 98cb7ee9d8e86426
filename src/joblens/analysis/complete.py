"""From a job on its way into the store to its record: summary, record, and samples into the lake."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from joblens.analysis.summary import summarise
from joblens.errors import sentence
from joblens.host import Host
from joblens.store import ingest
from joblens.store.home import Home
from joblens.store.lake import Lake
from joblens.store.reader import LakeReader, Reader
from joblens.store.records import save_record
from joblens.store.samples import SamplesReader
from joblens.store.waiting import find_reader, let_wait

Progress = Callable[[int, int], None]


def complete(home: Home, found: ingest.Incoming, progress: Progress | None = None) -> dict[str, Any]:
    """The record. Only when it is there do the batches go, so that a crash in between loses nothing.

    The samples of a long job are in the lake by then, those of a short one wait.
    """
    lake, problems = Lake(home.lake), list[str]()
    job, node = str(found.facts["id"]), str(found.facts["node"])
    try:
        short = ingest.load_short(found, problems)
        if short is None:
            problems += ingest.save_samples(lake, found, progress)
    except ingest.GoneError:  # another has completed it, and its record is there
        start = (found.end or found.facts)["start"]
        return _summarise(found, find_reader(home, lake, job, start), lake, problems)
    reader = SamplesReader(short, job, node) if short else LakeReader(lake)
    record = _summarise(found, reader, lake, problems)
    save_record(home.records, record)
    if not short or not let_wait(home, found):
        with suppress(ingest.GoneError):
            if short:
                ingest.save_samples(lake, found)
        ingest.remove(found)
    return record


def _summarise(found: ingest.Incoming, reader: Reader, lake: Lake, problems: list[str]) -> dict[str, Any]:
    record = summarise(found.facts, found.end, reader)
    record["data"]["problems"] += problems + lake.problems
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
