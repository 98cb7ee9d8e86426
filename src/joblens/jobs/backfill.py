"""The past of a cluster: jobs that accounting tells of, as records, each of them once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from joblens.core.errors import MalformedError, sentence
from joblens.importers.compressed import size_of
from joblens.importers.line_errors import Trouble
from joblens.importers.sacct import read_sacct
from joblens.jobs.accounting_only import make_provisional
from joblens.jobs.facts import identity
from joblens.schedulers.facts import BatchJob, Scheduler
from joblens.store.catalog.index import Catalog
from joblens.store.home import Home
from joblens.store.records import save_records

Progress = Callable[[int, int], None]

_AT_ONCE = 5000  # jobs whose records are in memory
_WINDOW = 6 * 3600.0  # of accounting, asked for at once


class Outcome:
    """What an import has done so far."""

    def __init__(self) -> None:
        self.files = 0
        self.unusable = 0  # files that were left out
        self.jobs = 0  # that are new
        self.known = 0  # that have a record
        self.not_ended = 0
        self.bad = 0  # lines
        self.problems: list[str] = []

    def describe(self) -> dict[str, object]:
        return dict(vars(self))


def import_files(home: Home, paths: list[Path], cluster: str, progress: Progress | None = None) -> Outcome:
    """Doing it again changes nothing."""
    outcome, catalog = Outcome(), Catalog(home)
    whole = size_of(paths)
    done = 0

    def read(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(min(done, whole) >> 20, (whole >> 20) + 1)

    for path in paths:
        outcome.files += 1
        trouble, before = Trouble(path, outcome), outcome.jobs + outcome.known
        try:
            _save(home, catalog, read_sacct(path, cluster, trouble.tell, read), outcome)
        except (MalformedError, OSError) as error:  # the other files go on
            outcome.unusable += 1
            what = "the rest of the file" if outcome.jobs + outcome.known > before else "the file"
            words = sentence(error) if str(path) in str(error) else f"{path}: {sentence(error)}"
            outcome.problems.append(f"{words}; {what} is left out")
        trouble.sum_up()
    if progress:
        progress((whole >> 20) + 1, (whole >> 20) + 1)
    catalog.close()
    outcome.problems += catalog.problems
    return outcome


def import_live(
    home: Home, scheduler: Scheduler, since: float, cluster: str, progress: Progress | None = None
) -> Outcome:
    """As the scheduler tells it now, some hours at a time."""
    outcome, catalog, until = Outcome(), Catalog(home), time.time()
    windows = max(int((until - since) // _WINDOW) + 1, 1)
    for number in range(windows):
        first = since + number * _WINDOW
        found = scheduler.ended(first, min(first + _WINDOW, until))
        named = (job.replace(cluster=cluster) if cluster else job for job in found)
        _save(home, catalog, named, outcome)
        if progress:
            progress(number + 1, windows)
    catalog.close()
    outcome.problems += catalog.problems
    return outcome


def _save(home: Home, catalog: Catalog, jobs: Iterable[BatchJob], outcome: Outcome) -> None:
    ended = _ended(jobs, outcome)
    while some := list(islice(ended, _AT_ONCE)):
        new = {identity(job): job for job in some}
        for key in catalog.written(new):
            del new[key]
        save_records(home.records, (make_provisional(job) for job in new.values()))
        outcome.jobs += len(new)
        outcome.known += len(some) - len(new)


def _ended(jobs: Iterable[BatchJob], outcome: Outcome) -> Iterator[BatchJob]:
    for job in jobs:
        if job.end is None:
            outcome.not_ended += 1
        else:
            yield job
