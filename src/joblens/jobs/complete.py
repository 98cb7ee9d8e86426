"""From an ended job of `joblens run` to its record: summary, record, and samples into the lake."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from joblens.analysis.summary import summarise
from joblens.core.errors import sentence
from joblens.core.host import Host
from joblens.jobs.judge import Judge
from joblens.record.report import JobRecord
from joblens.store import ingest
from joblens.store.home import Home
from joblens.store.memory_reader import SamplesReader
from joblens.store.pending import find_reader, let_wait
from joblens.store.reader import LakeReader, Reader
from joblens.store.saving import save_record

if TYPE_CHECKING:
    from joblens.store.lake.lake import Lake

Progress = Callable[[int, int], None]


def complete(home: Home, found: ingest.Incoming, progress: Progress | None = None) -> JobRecord:
    """The record. Only when it is there do the batches go, so that a crash in between loses nothing.

    The samples of a long job are in the lake by then, those of a short one wait.
    """
    problems: list[str] = []
    job, node = found.facts.id, found.facts.node
    if os.path.lexists(found.folder / "capture"):
        from joblens.jobs.captured import take_captured

        problems += take_captured(found)
    try:
        short = ingest.load_short(found, problems)
        if not short:
            return _complete_long(home, found, short is None, problems, progress)
    except ingest.GoneError:  # another has completed it, and its record is there
        lake, start = _open_lake(home), (found.end or found.facts).start
        return _summarise(found, find_reader(home, lake, job, start), problems, lake)
    samples = SamplesReader(short, job, node)
    record = _summarise(found, samples, problems)
    Judge(home).judge(record, samples)
    _save(home, record)
    if not let_wait(home, found):
        with suppress(ingest.GoneError):
            ingest.save_samples(_open_lake(home), found)
        ingest.remove(found.folder)
    return record


def _complete_long(
    home: Home, found: ingest.Incoming, sampled: bool, problems: list[str], progress: Progress | None
) -> JobRecord:
    lake = _open_lake(home)
    if sampled:
        problems += ingest.save_samples(lake, found, progress)
    reader = LakeReader(lake)
    record = _summarise(found, reader, problems, lake)
    Judge(home).judge(record, reader)
    _save(home, record)
    ingest.remove(found.folder)
    return record


def _save(home: Home, record: JobRecord) -> None:
    """The report says if the record waits for the database; the record itself does not."""
    waits = save_record(home, record)
    if waits:
        record.data.problems.append(waits)


def _open_lake(home: Home) -> Lake:
    """Loaded where it is needed: most jobs are short, and wait."""
    from joblens.store.lake.lake import Lake

    return Lake(home.lake)


def _summarise(
    found: ingest.Incoming, reader: Reader, problems: list[str], lake: Lake | None = None
) -> JobRecord:
    record = summarise(found.facts, found.end, reader)
    record.data.problems += problems + (lake.problems if lake else [])
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
                problems.append(f"job {found.facts.id} could not be completed: {sentence(error)}")
    return problems
