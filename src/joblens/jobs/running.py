"""Jobs that `joblens run` runs now: their rows in a listing, and their report so far."""

from __future__ import annotations

import time
from collections.abc import Iterator

from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import Sample
from joblens.record.job import Resources
from joblens.record.report import JobRecord
from joblens.schedulers.facts import BatchJob
from joblens.store import ingest
from joblens.store.catalog.listing import JobFilter
from joblens.store.edits import find_edits
from joblens.store.home import Home

STATE = "RUNNING"
_MOST_VALUES = 1_000_000  # held in memory for a report; of a job with more, every second sample


def find_running(home: Home) -> list[ingest.Incoming]:
    """Return the jobs whose joblens is alive, the oldest first."""
    if not ingest.folders(home.incoming):
        return []
    host = Host()
    node, boot = host.name(), host.boot_id()
    found = [
        _edited(home, it)
        for it in ingest.list_incoming(home)
        if it.end is None and not ingest.is_abandoned(it, node, boot)
    ]
    return sorted(found, key=lambda it: it.facts.start)


def _edited(home: Home, found: ingest.Incoming) -> ingest.Incoming:
    """With the tags and annotations that it will have."""
    facts = found.facts
    edits = find_edits(home.path, (facts.cluster, facts.id, float(facts.start)))
    if edits is None:
        return found
    tags, notes = edits.tags.of(facts.tags or {}), edits.annotations.of(facts.annotations or {})
    return found._replace(facts=facts.replace(tags=tags, annotations=notes or None))


def as_facts(found: ingest.Incoming) -> BatchJob:
    """In the form that other running jobs have, for filters and listings."""
    facts = found.facts
    return BatchJob(
        facts.cluster,
        facts.id,
        "run",
        user=facts.user,
        name=facts.name,
        state=STATE,
        start=float(facts.start),
        nodes=(facts.node,),
        allocated=Resources(cores=facts.cores),
    )


def is_tagged(found: ingest.Incoming, wanted: JobFilter) -> bool:
    """Whether it has all tags and annotations."""
    tags, notes = found.facts.tags or {}, found.facts.annotations or {}
    pairs = [*((tags, it) for it in wanted.tags), *((notes, it) for it in wanted.annotations)]
    return all(known.get(name) == value for known, (name, value) in pairs)


def summarise_running(found: ingest.Incoming) -> JobRecord:
    """Summarise a running job: samples are written some seconds after they were taken."""
    from joblens.analysis.summary import summarise
    from joblens.store.memory_reader import SamplesReader

    problems: list[str] = []
    reader = SamplesReader(_load(found, problems), found.facts.id, found.facts.node)
    record = summarise(found.facts.replace(state=STATE, known_until=time.time()), None, reader)
    record.data.problems += problems
    return record


def _load(found: ingest.Incoming, problems: list[str]) -> list[Sample]:
    loaded: list[Sample] = []
    values = 0
    try:
        for samples in _batches(found, problems):
            loaded += samples
            values += sum(len(sample.rows.values) for sample in samples)
            if values > _MOST_VALUES:
                moments = sorted({sample.time_ns for sample in loaded})
                kept = set(moments[-1::-2])
                loaded = [sample for sample in loaded if sample.time_ns in kept]
                values = sum(len(sample.rows.values) for sample in loaded)
    except (ingest.GoneError, MalformedError):  # it ends just now
        pass
    return loaded


def _batches(found: ingest.Incoming, problems: list[str]) -> Iterator[list[Sample]]:
    for _, samples in ingest.read_batches(found, problems, lambda path: "it is left out"):
        yield samples
