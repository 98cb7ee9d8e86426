"""Jobs that wait, run or have just ended, in listings and reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

from joblens.core.files import list_names
from joblens.jobs.live_lists import has_run, open_index, runs
from joblens.schedulers.slurm.states import ENDED
from joblens.store.catalog.cursor import Cursor, is_after, parse_cursor, sort_rows
from joblens.store.catalog.listing import Identity, JobFilter, JobRow, check_id, name_nodes
from joblens.store.catalog.queries import Run
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.home import Home

if TYPE_CHECKING:  # a listing without live jobs does not load them
    from joblens.jobs.live_lists import LiveIndex
    from joblens.record.report import JobRecord
    from joblens.schedulers.facts import BatchJob
    from joblens.store.lake.lake import Lake

_OVER = ENDED | {"ENDED"}  # the exit status of an inferred job is unknown
_LAG = 60.0  # seconds after which a sample should be there
_ATTEMPTS = 3  # to read a lake and a journal at one moment
_ON_THEIR_WAY = "it has just ended: its record is made when all samples have arrived"

FindStored = Callable[[Iterable[Identity]], Collection[Identity]]


def add_live(
    home: Home,
    wanted: JobFilter,
    stored: list[JobRow],
    problems: list[str],
    now: float | None = None,
    more: Iterable[BatchJob] = (),
    scope: Scope = ALL,
    find_stored: FindStored | None = None,
) -> list[JobRow]:
    """Add running and just ended jobs to the stored ones, or pending ones if requested, and sort all.
    `more`: running jobs without a follower. `find_stored` tells which have a record, also on another page or
    outside of the filter; without it these are the rows in `stored`."""
    cursor = parse_cursor(wanted)
    now = (cursor.now if cursor else 0.0) or (time.time() if now is None else now)
    followed = {
        identity: row
        for identity, row in _followed(home, wanted, problems, now, more, scope)
        if _is_on_page(row, wanted, scope, cursor)
    }
    ran = (identity for identity, row in followed.items() if row.state != "PENDING")  # others have no record
    known = find_stored(ran) if find_stored else {(it.cluster, it.id, it.start) for it in stored}
    started = [row for row in _started_here(home, wanted, now) if _is_on_page(row, wanted, scope, cursor)]
    found = [*started, *(row for identity, row in followed.items() if identity not in known)]
    return sort_rows([*found, *stored], wanted)[: wanted.limit or None] if found else stored


def _is_on_page(row: JobRow, wanted: JobFilter, scope: Scope, cursor: Cursor | None) -> bool:
    return scope.allows(row.user, row.account) and (cursor is None or is_after(row, cursor, wanted))


def _started_here(home: Home, wanted: JobFilter, now: float) -> list[JobRow]:
    """Jobs that `joblens run` runs."""
    if not list_names(str(home.incoming)):
        return []
    from joblens.jobs.running import as_facts, find_running, is_tagged, summarise_running

    rows = []
    for found in find_running(home):
        job = as_facts(found)
        if _is_meant(job, wanted) and is_tagged(found, wanted):
            used, row = summarise_running(found).used, _row(job, now)
            rows.append(
                row._replace(
                    cpu_seconds=used.cpu_seconds,
                    memory_peak_bytes=used.memory_peak_bytes,
                    processes=used.processes,
                    # as of the same moment
                    duration_seconds=row.duration_seconds
                    if used.cpu_seconds is None
                    else used.duration_seconds,
                    tags=found.facts.tags or {},
                )
            )
    return rows


def _followed(
    home: Home,
    wanted: JobFilter,
    problems: list[str],
    now: float,
    more: Iterable[BatchJob],
    scope: Scope,
) -> list[tuple[Identity, JobRow]]:
    """Return the jobs of batch systems and of user mode, also those that have got their record meanwhile."""
    if wanted.tags or wanted.annotations:  # tags, which only the jobs of `joblens run` have
        return []
    index = open_index(home, problems)
    users = _users(wanted, scope)
    reported = index.jobs if users is None else index.of(users)
    found = [_known_row(index, job, now) for job in reported if _is_shown(job, wanted)]
    others = [job for job in more if _is_shown(job, wanted) and not index.has(job)]
    if others:
        from joblens.jobs.facts import identity

        found += [(identity(job), _row(job, now)) for job in others]
    return found


def _is_shown(job: BatchJob, wanted: JobFilter) -> bool:
    """Those that wait are listed only by their state."""
    return (job.state == wanted.state or runs(job)) and _is_meant(job, wanted)


def _users(wanted: JobFilter, scope: Scope) -> Collection[str] | None:
    """Return the users whose jobs can be meant; None if these are all."""
    if wanted.user is not None:
        return {wanted.user}
    return None if scope.everything or scope.accounts else scope.users


def _is_meant(job: BatchJob, wanted: JobFilter) -> bool:
    start = (job.start if runs(job) else job.submit) or 0.0
    return (
        wanted.user in (None, job.user)
        and wanted.state in (None, job.state)
        and wanted.cluster in (None, job.cluster)
        and wanted.partition in (None, job.partition)
        and wanted.account in (None, job.account)
        and wanted.array in (None, job.array_job)
        and wanted.exit_code in (None, job.exit_code if job.end is not None else None)
        and (wanted.node is None or wanted.node in job.nodes)
        and (wanted.name is None or fnmatchcase(job.name, wanted.name.replace("[", "[[]")))
        and (wanted.since is None or start >= wanted.since)
        and (wanted.until is None or start <= wanted.until)
    )


def _row(job: BatchJob, now: float) -> JobRow:
    """As the listing of stored jobs has them."""
    from joblens.jobs.facts import first

    start = job.start if runs(job) else None
    return JobRow(
        job.cluster,
        job.id,
        start,
        name=job.name,
        user=job.user,
        node=job.nodes[0] if job.nodes else "",
        source=job.scheduler,
        state=job.state,
        duration_seconds=_duration(job, now),
        cores=first(job.allocated.cores, job.asked.cores),
        verdict="" if runs(job) else job.reason,
        shown_id=job.shown_id,
        nodes=name_nodes(job.nodes) if job.nodes else "",
        partition=job.partition,
        account=job.account,
        tags={},
    )


def _known_row(index: LiveIndex, job: BatchJob, now: float) -> tuple[Identity, JobRow]:
    """Make the row of a job in these lists once; of one that runs the duration changes."""
    known = index.rows.get(id(job))
    if known is None:
        from joblens.jobs.facts import identity

        known = index.rows[id(job)] = identity(job), _row(job, now)
    if known[1].duration_seconds is None:
        return known
    return known[0], known[1]._replace(duration_seconds=_duration(job, now))


def _duration(job: BatchJob, now: float) -> float | None:
    if job.start is None or not runs(job):
        return None
    until = now if job.end is None or job.state not in _OVER else job.end
    return max(until - job.start, 0.0)


def find_live(home: Home, name: str, problems: list[str], scope: Scope = ALL) -> list[BatchJob]:
    """By the number under which it runs, or as people write it; also ID@CLUSTER. The newest is the last.

    There are several where one that was put back into the queue has no record of its first run yet.
    """
    check_id(name)
    id, _, cluster = name.partition("@")
    every = open_index(home, problems).find(id) if id else []
    found = [job for job in every if cluster in ("", job.cluster) and scope.allows(job.user, job.account)]
    return sorted(found, key=lambda job: job.start or 0.0)


def add_runs(stored: list[Run], live: Iterable[BatchJob]) -> list[Run]:
    """To those that have a record, those that run or have none yet; the oldest first."""
    live = list(live)
    if not live:
        return sorted(stored, key=lambda run: (run.start, run.id))
    from joblens.jobs.facts import identity

    known = {(run.cluster, run.id, run.start) for run in stored}
    began = [job for job in live if has_run(job) and identity(job) not in known]
    more = [Run(*identity(job), job.end, job.state) for job in began]
    return sorted([*stored, *more], key=lambda run: (run.start, run.id))


class OpenLake(Protocol):
    """Opens the lake with what is still in a journal; it may raise MovedError while it is used."""

    def __call__(
        self, home: Home, nodes: Collection[tuple[str, str]], problems: list[str]
    ) -> AbstractContextManager[Lake]: ...


def summarise_live(home: Home, job: BatchJob, open_lake: OpenLake | None = None) -> JobRecord:
    """Summarise a running job. Without `open_lake`, of what a hub's sink has stored."""
    from joblens.store.lake.lake import Lake, MovedError

    if open_lake is None:
        return _summarise(job, Lake(home.lake))
    nodes = {(job.cluster, node) for node in job.nodes}
    for _ in range(_ATTEMPTS):
        problems: list[str] = []
        with suppress(MovedError), open_lake(home, nodes, problems) as lake:
            record = _summarise(job, lake)
            record.data.problems += problems
            return record
    return _summarise(job, Lake(home.lake))


def _summarise(job: BatchJob, lake: Lake) -> JobRecord:
    from joblens.analysis.summary import summarise
    from joblens.jobs.facts import INTERVAL, end_of, facts_of
    from joblens.store.reader import LakeReader

    end = end_of(job, [_ON_THEIR_WAY]) if job.state in _OVER and job.end is not None else None
    facts = facts_of(job, INTERVAL)
    facts.known_until = _known_until(job)
    record = summarise(facts, end, LakeReader(lake))
    if end is None and not record.data.samples:  # its end is as far as samples go, which is not at all
        until = time.time() if job.end is None else min(job.end, time.time())
        record.used.duration_seconds = max(until - record.job.start, 0.0)
    record.data.problems += lake.problems
    return record


def _known_until(job: BatchJob) -> float | None:
    """It runs, so what is not in samples by now is missing, and not still to come."""
    if not runs(job) or job.state == "UNKNOWN":
        return None
    return min(time.time() - _LAG, job.end if job.end is not None else float("inf"))
