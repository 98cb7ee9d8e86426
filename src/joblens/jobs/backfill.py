"""Import of past jobs from accounting, each as one record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from joblens.core.errors import MalformedError
from joblens.importers.input_files import ImportResult, LineErrors, Progress, ReadProgress
from joblens.importers.sacct import read_sacct
from joblens.jobs.accounting_only import make_provisional
from joblens.jobs.facts import identity
from joblens.schedulers.facts import BatchJob, Scheduler
from joblens.store.catalog.choice import open_catalog
from joblens.store.catalog.queries import JobCatalog
from joblens.store.home import Home
from joblens.store.saving import save_records

_AT_ONCE = 5000  # jobs whose records are in memory
_WINDOW = 6 * 3600.0  # seconds of accounting per query


@dataclass
class JobsResult(ImportResult):
    jobs: int = 0  # that are new
    known: int = 0  # that have a record
    not_ended: int = 0


def import_files(home: Home, paths: list[Path], cluster: str, progress: Progress | None = None) -> JobsResult:
    """Import jobs from files of sacct. Importing them again changes nothing."""
    result, catalog = JobsResult(), open_catalog(home, creates=True)
    read = ReadProgress(paths, progress)
    for path in paths:
        result.files += 1
        errors, before = LineErrors(path, result), result.jobs + result.known
        try:
            _save(home, catalog, read_sacct(path, cluster, errors.report, read.add), result)
        except (MalformedError, OSError) as error:  # the other files are imported
            part = "rest of the file" if result.jobs + result.known > before else "file"
            result.skip_file(path, error, part)
        errors.finish()
    read.finish()
    catalog.close()
    result.problems += catalog.problems
    return result


def import_live(
    home: Home, scheduler: Scheduler, since: float, cluster: str, progress: Progress | None = None
) -> JobsResult:
    """Query the scheduler, some hours at a time."""
    result, catalog, until = JobsResult(), open_catalog(home, creates=True), time.time()
    windows = max(int((until - since) // _WINDOW) + 1, 1)
    for number in range(windows):
        first = since + number * _WINDOW
        found = scheduler.ended(first, min(first + _WINDOW, until))
        named = (job.replace(cluster=cluster) if cluster else job for job in found)
        _save(home, catalog, named, result)
        if progress:
            progress(number + 1, windows)
    catalog.close()
    result.problems += catalog.problems
    return result


def _save(home: Home, catalog: JobCatalog, jobs: Iterable[BatchJob], result: JobsResult) -> None:
    ended = _ended(jobs, result)
    while some := list(islice(ended, _AT_ONCE)):
        new = {identity(job): job for job in some}
        for key in catalog.written(new):
            del new[key]
        result.wait(save_records(home, (make_provisional(job) for job in new.values())), len(new))
        result.jobs += len(new)
        result.known += len(some) - len(new)


def _ended(jobs: Iterable[BatchJob], result: JobsResult) -> Iterator[BatchJob]:
    for job in jobs:
        if job.end is None:
            result.not_ended += 1
        else:
            yield job
