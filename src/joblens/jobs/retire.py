"""Retire old jobs: delete their records, samples and processes, in batches of bounded size.

Rows go before records, and both can be removed again: a run that was killed is repeated from the start. Jobs
that an enabled reference model refers to stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from joblens.core.errors import MalformedError, OutsideError, sentence
from joblens.jobs.live_lists import open_index, runs
from joblens.store.catalog.cursor import next_cursor
from joblens.store.edit import NotAllowedError, Stored, delete_runs, is_staff, own_name
from joblens.store.records import day_of

if TYPE_CHECKING:
    from joblens.store.catalog.listing import Identity, JobFilter, JobRow
    from joblens.store.catalog.queries import JobCatalog
    from joblens.store.home import Home
    from joblens.store.lake.lake import Lake

Progress = Callable[[int, int], None]
BATCH = 2000  # jobs: each file with rows of some of them is rewritten once
_DAY = 86_400.0
_FRESH_SECONDS = 2.0  # the index is not compared with all days of records for each job


@dataclass
class RetireResult:
    jobs: int = 0  # retired, or that would be
    kept: int = 0  # reference jobs of enabled models
    failed: int = 0  # that could not be removed
    oldest: float | None = None  # start of the first of `jobs`
    newest: float | None = None
    dry_run: bool = False
    problems: list[str] = field(default_factory=list)

    def add(self, chosen: Sequence[JobRow]) -> None:
        starts = [row.start or 0.0 for row in chosen]
        self.jobs += len(chosen)
        if starts:
            self.oldest = min(starts) if self.oldest is None else min(self.oldest, *starts)
            self.newest = max(starts) if self.newest is None else max(self.newest, *starts)


def retire(
    home: Home,
    catalog: JobCatalog,
    lake: Lake,
    wanted: JobFilter,
    before: float,
    dry_run: bool = False,
    progress: Progress | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RetireResult:
    """Remove the jobs that ended before a moment, as far as the filter selects them and the caller may.

    Users who are not staff retire their own jobs only. Raises NotAllowedError, and OutsideError if a model
    cannot be read.
    """
    usual, catalog.fresh_seconds = catalog.fresh_seconds, max(catalog.fresh_seconds, _FRESH_SECONDS)
    try:
        return _retire(home, catalog, lake, _restrict(home, wanted), before, dry_run, progress, stopped)
    finally:
        catalog.fresh_seconds = usual


def _retire(
    home: Home,
    catalog: JobCatalog,
    lake: Lake,
    wanted: JobFilter,
    before: float,
    dry_run: bool,
    progress: Progress | None,
    stopped: Callable[[], bool],
) -> RetireResult:
    result = RetireResult(dry_run=dry_run)
    kept = jobs_of_models(home)
    first: float | None = None
    for page in _pages(catalog, wanted, before):
        old = [row for row in page if _last(row) < before]
        chosen = [row for row in old if (row.cluster, row.shown_id or row.id, row.start) not in kept]
        result.kept += len(old) - len(chosen)
        if dry_run:
            result.add(chosen)
        else:
            _remove(home, catalog, lake, chosen, result)
        if progress:
            first = page[0].start if first is None else first
            progress(*_days(first or 0.0, page[-1].start or 0.0, before))
        if stopped():
            break
    if progress and first is not None:
        progress(*_days(first, before, before))
    return result


def jobs_of_models(home: Home) -> set[tuple[str, str, float | None]]:
    """Return cluster, id as people write it and start of each job that an enabled model refers to.

    Raises OutsideError if a model cannot be read: its jobs are not known.
    """
    from joblens.store.models import list_models

    problems: list[str] = []
    enabled = [it for it in list_models(home, problems) if it.enabled]
    if problems:
        raise OutsideError(f"nothing is retired, because a model cannot be read: {problems[0]}")
    return {(job.cluster, job.id, job.start) for it in enabled for job in it.jobs}


def _restrict(home: Home, wanted: JobFilter) -> JobFilter:
    if is_staff(home):
        return wanted
    own = own_name() or str(os.geteuid())
    if wanted.user not in (None, own):
        raise NotAllowedError(f"jobs of {wanted.user} can only be retired by them and the owner of the store")
    return wanted._replace(user=own)


def _pages(catalog: JobCatalog, wanted: JobFilter, before: float) -> Iterator[list[JobRow]]:
    """Yield what began before, the oldest first."""
    until = before if wanted.until is None else min(wanted.until, before)
    page = wanted._replace(sort="start", reverse=True, limit=BATCH, until=until, cursor=None)
    while rows := catalog.jobs(page):
        yield rows
        if len(rows) < BATCH:
            return
        page = page._replace(cursor=next_cursor(rows, page))


def _last(row: JobRow) -> float:
    return row.end or row.start or 0.0


def _days(first: float, now: float, before: float) -> tuple[int, int]:
    whole = int((before - first) // _DAY) + 1
    return min(int((now - first) // _DAY) + (now >= before), whole), whole


def _remove(
    home: Home, catalog: JobCatalog, lake: Lake, chosen: Sequence[JobRow], result: RetireResult
) -> None:
    """All at once; if that fails, day by day, so that a damaged file keeps only its own jobs."""
    if not chosen:
        return
    try:
        _remove_some(home, catalog, lake, chosen)
        result.add(chosen)
    except (OutsideError, OSError):
        for _, day in groupby(chosen, lambda row: day_of(row.start or 0.0)):
            some = list(day)
            try:
                _remove_some(home, catalog, lake, some)
                result.add(some)
            except (OutsideError, OSError) as error:
                result.failed += len(some)
                result.problems.append(sentence(error))


def _remove_some(home: Home, catalog: JobCatalog, lake: Lake, chosen: Sequence[JobRow]) -> None:
    live = open_index(home, [])
    stored = []
    for row in chosen:
        identity: Identity = (row.cluster, row.id, row.start or 0.0)
        has_nodes = True
        with suppress(LookupError, MalformedError):  # just removed, or damaged
            has_nodes = bool(catalog.report(identity).job.nodes)
        later = [
            job.start
            for job in live.find(row.id)
            if runs(job) and job.cluster == row.cluster and job.start is not None and job.start > identity[2]
        ]
        stored.append(Stored(*identity, _last(row), has_nodes, min(later, default=float("inf"))))
    delete_runs(home, catalog, lake, stored)
