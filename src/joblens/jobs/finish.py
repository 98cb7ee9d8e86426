"""From an ended batch job to its record: accounting, and the samples in the lake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from joblens.analysis.summary import summarise
from joblens.core.errors import sentence
from joblens.jobs.facts import INTERVAL, end_of, facts_of, never_started, start_of
from joblens.jobs.judge import Judge
from joblens.record.report import JobRecord, Used
from joblens.schedulers.facts import BatchJob
from joblens.store.home import Home
from joblens.store.lake.job_subset import JobSubset, Wanted
from joblens.store.lake.lake import Lake
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import LakeReader, Reader, Span
from joblens.store.saving import save_record, save_records

BATCH = 100  # jobs for which the lake is read at once

_NO_SAMPLES = "no samples of this job"
_OF_ACCOUNTING = ": its usage is by accounting"


class Ended(NamedTuple):
    job: BatchJob
    problems: tuple[str, ...] = ()  # what is missing, a sentence each


class Failed(NamedTuple):
    job: BatchJob
    why: str


class Finished(NamedTuple):
    failed: list[Failed]
    waits: str = ""  # why records have to wait for the database


def finish(home: Home, folder: Path, ended: Sequence[Ended]) -> Finished:
    """Make their records, in the store on return. `folder` is for what is needed meanwhile."""
    failed: list[Failed] = []
    waits, judge = "", Judge(home)
    ended = sorted(ended, key=lambda it: start_of(it.job))  # those of the same time together
    for begin in range(0, len(ended), BATCH):
        some = ended[begin : begin + BATCH]
        records = list(_make_records(home, folder, some, failed, judge))
        if len(records) == 1:
            waits = save_record(home, records[0]) or waits
        elif records:
            waits = save_records(home, records) or waits
    return Finished(failed, waits)


def _make_records(
    home: Home, folder: Path, some: Sequence[Ended], failed: list[Failed], judge: Judge
) -> Iterator[JobRecord]:
    ran = [it.job for it in some if not never_started(it.job)]
    for it in some:
        if never_started(it.job):
            yield without_samples(it.job, it.problems)
    if not ran:
        return
    with JobSubset(Lake(home.lake), folder, [_wanted(job) for job in ran]) as excerpt:
        reader, intervals = LakeReader(excerpt), excerpt.intervals()
        for it in some:
            if never_started(it.job):
                continue
            try:
                interval = max(round(intervals.get(it.job.id, INTERVAL), 3), INTERVAL)
                record = make_record(it.job, reader, it.problems, interval)
                record.data.problems += excerpt.problems
                judge.judge(record, reader)
                yield record
            except Exception as error:  # one job's trouble is not the others'
                failed.append(Failed(it.job, sentence(error)))


def _wanted(job: BatchJob) -> Wanted:
    start = start_of(job)
    return Wanted(Span(job.id, start, max(job.end or start, start)), job.nodes)


def without_samples(job: BatchJob, problems: Iterable[str] = ()) -> JobRecord:
    """From accounting alone."""
    return make_record(job, SamplesReader([], job.id, job.nodes[0] if job.nodes else ""), problems)


def make_record(
    job: BatchJob, reader: Reader, problems: Iterable[str] = (), interval: float = INTERVAL
) -> JobRecord:
    record = summarise(facts_of(job, interval), end_of(job, list(problems)), reader)
    used, problems_found = record.used, record.data.problems
    if not used.memory_peak_bytes:  # unknown, or no sample of its nodes has it
        _add_memory(used, job)
    if never_started(job):
        problems_found.append("it never started")
    elif not record.data.samples:
        has_figures = used.cpu_seconds is not None or used.memory_peak_bytes is not None
        problems_found.append(_NO_SAMPLES + _OF_ACCOUNTING * has_figures)
    return record


def _add_memory(used: Used, job: BatchJob) -> None:
    """Add the memory of the largest task, which is all that accounting has."""
    peaks = [step.memory_peak_bytes for step in job.steps if step.memory_peak_bytes is not None]
    if peaks:
        used.memory_peak_bytes, used.memory_from = max(peaks), "accounting"
