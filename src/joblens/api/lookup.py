"""Jobs that are stored, wait, run or have just ended, as the command line and the service show them."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from joblens.api.source import JobQuery, shown
from joblens.core.named_tuple import NamedTuple
from joblens.jobs.live import add_live, add_runs, find_live, summarise_live
from joblens.jobs.live_lists import has_run
from joblens.store.catalog.cursor import next_cursor
from joblens.store.catalog.listing import JobFilter, JobRow
from joblens.store.catalog.queries import Run, choose_run

if TYPE_CHECKING:
    from joblens.api.store import Store
    from joblens.core.config import Settings
    from joblens.record.report import JobRecord
    from joblens.schedulers.facts import BatchJob
    from joblens.store.home import Home


class Tsdb(NamedTuple):
    """A server that speaks PromQL: for jobs without a record, or `only` that one."""

    settings: Callable[[], Settings]  # loaded when it is needed
    where: str = ""  # its URL, its data folder, or `tsdb`, the one of the settings
    only: bool = False
    strict: bool = False  # only jobs whose owner the batch system names, and only what is their own


class Page(NamedTuple):
    rows: list[JobRow]
    next: str | None  # the cursor of the next page, if there may be one


def list_jobs(store: Store, wanted: JobFilter, problems: list[str]) -> list[JobRow]:
    """Return stored and live jobs in the store's scope, each with the start by which it is known."""
    return _list_live(store, wanted, problems, time.time())


def list_page(store: Store, wanted: JobFilter, problems: list[str]) -> Page:
    """Return so many jobs as people see them, after the cursor if there is one. One more is read, to see if
    there is another."""
    now, limit = time.time(), wanted.limit
    wanted = wanted._replace(limit=limit and limit + 1)
    rows = _list_live(store, wanted, problems, now)
    more = limit and len(rows) > limit
    found = [shown(it) for it in rows]
    return Page(found[:limit], next_cursor(rows[:limit], wanted, now)) if more else Page(found, None)


def _list_live(store: Store, wanted: JobFilter, problems: list[str], now: float) -> list[JobRow]:
    more, stored = _sessions(store.home), store.jobs(wanted)
    return add_live(store.home, wanted, stored, problems, now, more, store.scope, store.find_stored)


def _sessions(home: Home) -> list[BatchJob]:
    """Jobs whose user mode runs now."""
    if not (home.path / "usermode").is_dir():
        return []
    from joblens.usermode.finish import find_running

    return find_running(home)


def find_report(
    store: Store,
    query: JobQuery,
    problems: list[str],
    tsdb: Tsdb | None = None,
    session: BatchJob | None = None,
) -> JobRecord:
    """Return the record of a run or of a part of it. Raises LookupError if there is no such job.

    `session`: the job, if its user mode runs now.
    """
    found = [session] if session else find_live(store.home, query.id, problems, store.scope)
    runs = add_runs(store.runs(query.id), found)
    record = _report(store, query, found, runs, tsdb)
    _count_tasks(record, store)
    number_runs(record, runs)
    return record


def plain_report(record: JobRecord) -> dict[str, Any]:
    """As JSON has it. In the store a job that never started is known by its end."""
    plain = record.to_dict()
    if record.job.never_started:
        plain["job"]["start"] = None
    return plain


def _report(
    store: Store, query: JobQuery, found: list[BatchJob], runs: list[Run], tsdb: Tsdb | None
) -> JobRecord:
    live, number = _meant(store, query, found, runs)
    if tsdb is None or not tsdb.only:
        try:
            return _part(store, query, _find(store, query, live, number))
        except LookupError:
            if live is not None:
                raise LookupError(f"job {live.shown_id} waits: {live.state} {live.reason}".rstrip()) from None
            if tsdb is None or query.id == "last" or not tsdb.settings().tsdb.url:
                raise
    from joblens.api.from_tsdb import CONFIGURED, report_from_tsdb

    return report_from_tsdb(tsdb, tsdb.where or CONFIGURED, query, store, live, number)


def _part(store: Store, query: JobQuery, record: JobRecord) -> JobRecord:
    """The whole record unless a part is asked for: to show what is stored needs no analysis."""
    if not query.is_part:
        return record
    from joblens.analysis.window_report import find_part, summarise_part

    part = find_part(record, query.between, query.step, query.first, query.last)
    if part is None:
        return record
    return store.read_samples(record, lambda reader: summarise_part(record, reader, part))


def _meant(
    store: Store, query: JobQuery, found: list[BatchJob], runs: list[Run]
) -> tuple[BatchJob | None, int | None]:
    """One that runs or has no record yet, or the number of a stored one; neither is the newest stored."""
    from joblens.jobs.facts import identity

    if query.run is None or not runs:  # without any, it is not found
        return (found[-1] if found else None), query.run
    chosen, stored = choose_run(runs, query.run), store.runs(query.id)
    if chosen in stored:
        return None, stored.index(chosen) + 1
    return next(job for job in found if identity(job) == chosen[:3]), None


def _find(store: Store, query: JobQuery, live: BatchJob | None, number: int | None) -> JobRecord:
    """LookupError if there is none. Of one that has just ended the record may be there already."""
    from joblens.jobs.facts import identity

    if live is None or not has_run(live):
        return store.job(query.id, number)
    if query.run is None:  # the list of running jobs can be older than the record
        with suppress(LookupError):
            record = store.job(query.id)
            cluster, id, start = identity(live)
            if (record.job.cluster, record.job.id) == (cluster, id) and record.job.start >= start:
                return record
    from joblens.hub.tail import open_lake

    return summarise_live(store.home, live, open_lake)


def _count_tasks(record: JobRecord, store: Store) -> None:
    """How many the array has of which it is one; nothing of others. Those that wait are not counted."""
    job = record.job
    if job.array_job:
        wanted = JobFilter(user=job.user, cluster=job.cluster, array=job.array_job, limit=0)
        # Problems with the list of running jobs are reported already.
        live = add_live(store.home, wanted, [], [], scope=store.scope)
        record.array_tasks = len(store.shown_ids(wanted) | {row.shown_id for row in live})


def number_runs(record: JobRecord, runs: list[Run]) -> None:
    """Which of the runs it is, and all of them: ids are reused, and jobs are requeued."""
    from joblens.record.report import Run

    this = (record.job.cluster, record.job.id, record.job.start)
    record.run = next((number for number, run in enumerate(runs, 1) if run[:3] == this), None)
    record.runs = [Run(number, *run) for number, run in enumerate(runs, 1)]
