"""Records, facts and ends from plain data, as tests write them down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from joblens.analysis.rule_input import View
from joblens.analysis.summary import summarise as summarise_facts
from joblens.core.json_file import render_json
from joblens.record.fields import read
from joblens.record.job import JobEnd, JobFacts
from joblens.record.report import Asked, GpuUse, Job, JobRecord, NodeUse, Point, Used
from joblens.store.reader import Reader
from joblens.store.records import parse_record

Plain = Mapping[str, Any]
_JOB = {"id": "1", "cluster": "here", "user": "alice", "name": "made"}


def record_from(plain: Plain) -> JobRecord:
    return read({"version": 1, **plain}, JobRecord)


def stored(record: JobRecord) -> JobRecord:
    """As it comes back from its file."""
    return parse_record("made", render_json(record.to_dict()))


def facts_from(plain: Plain) -> JobFacts:
    return read({**_JOB, "node": "", "interval": 1.0, **plain}, JobFacts)


def end_from(plain: Plain | None) -> JobEnd | None:
    return None if plain is None else read(plain, JobEnd)


def summarise(
    facts: Plain, end: Plain | None, reader: Reader, part: tuple[float, float] | None = None
) -> JobRecord:
    return summarise_facts(facts_from(facts), end_from(end), reader, part)


def view_of(
    job: Plain,
    asked: Plain,
    used: Plain,
    points: list[Point],
    gpus: tuple[GpuUse, ...] = (),
    nodes: tuple[Plain, ...] = (),
) -> View:
    """What the rules look at, of a job of `joblens run` unless it says otherwise."""
    return View(
        read({**_JOB, "source": "run", **job}, Job),
        read(asked, Asked),
        read(used, Used),
        points,
        gpus,
        tuple(read(node, NodeUse) for node in nodes),
    )
