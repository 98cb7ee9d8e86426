"""The store as one viewer sees it: every answer about jobs is made here, within the viewer's scope.

A read of another person's job is written to the audit log before it is answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from joblens.analysis.processes import cpu_of
from joblens.api.from_tsdb import BusyError, SchedulerError
from joblens.api.lookup import Tsdb, find_report, list_page
from joblens.api.source import JobQuery, not_found
from joblens.api.store import Store
from joblens.core.errors import ServerError, UsageError
from joblens.hub.status import StatusPage
from joblens.jobs.live import find_live
from joblens.jobs.live_lists import load_all, runs
from joblens.record.model import ReferenceModel
from joblens.record.report import Job, JobRecord, ProcessUse
from joblens.run.facts import parse_tags
from joblens.schedulers.facts import BatchJob
from joblens.schedulers.slurm.states import STATES
from joblens.serve.audit import Audit
from joblens.serve.errors import ApiError
from joblens.serve.live import Allows, LiveJob, filter_now, filter_sets, jobs_now, list_nodes
from joblens.serve.messages import (
    MOST_POINTS,
    GroupsQuery,
    JobItem,
    JobsPage,
    JobsQuery,
    ModelsPage,
    NodesPage,
    ReportQuery,
    SeriesItem,
    SeriesPage,
    SeriesQuery,
)
from joblens.serve.neighbours import had_nodes_alone, hide_neighbours, is_visible, own_verdict
from joblens.serve.policy import Viewer
from joblens.store.catalog.listing import JobFilter, JobRow, parse_time, unknown
from joblens.store.end_groups import GroupUse
from joblens.store.reader import End, Series
from joblens.wire.live import LivePage

_MOST_VALUES = 1_000_000  # in one answer
_MOST_PROCESSES = 20_000
_MOST_PROBLEMS = 20
_NO_SERVER = "the server with the samples of this job does not answer; retry later"


class Known(NamedTuple):
    """What has to be known of a job before its samples are shown."""

    name: str  # by which it is found again
    alone: bool  # on its nodes


class View:
    def __init__(
        self, store: Store, viewer: Viewer, audit: Audit, page: Any = None, tsdb: Tsdb | None = None
    ) -> None:
        self._store, self._viewer, self._audit = store.seen_by(viewer.scope), viewer, audit
        self._page = page  # of the hub, for those that show live figures
        self._tsdb = tsdb and tsdb._replace(strict=not viewer.sees_all)

    def jobs(self, query: JobsQuery, text: str) -> JobsPage:
        problems: list[str] = []
        page = list_page(self._store, make_filter(query), problems)
        self._audit.note_listing(self._viewer, "/jobs", [row.user for row in page.rows], text)
        rows = [self._shown(row) for row in page.rows]
        return JobsPage([JobItem(*row) for row in rows], page.next, self._problems(problems))

    def _shown(self, row: JobRow) -> JobRow:
        """Whether the job was alone on its nodes is not known in a listing."""
        if self._viewer.sees_all or not row.verdict:
            return row
        return row._replace(verdict=own_verdict(row.verdict))

    def _problems(self, found: list[str]) -> list[str]:
        """Paths and ids in them are for those only who may see everything."""
        if not self._viewer.sees_all:
            return [problem for problem in found if problem.startswith("the list of pending")]
        return list(dict.fromkeys([*self._store.problems, *found]))[:_MOST_PROBLEMS]

    def report(self, id: str, query: ReportQuery) -> JobRecord:
        wanted = JobQuery(id, query.run, query.between, query.step, query.first, query.last)
        try:
            record = find_report(self._store, wanted, [], self._tsdb)
        except BusyError as error:
            raise ApiError(503, str(error), retry=1) from None
        except SchedulerError as error:
            raise ApiError(502, str(error)) from None
        except ServerError:
            if self._viewer.sees_all:
                raise
            raise ApiError(502, _NO_SERVER) from None  # its address and files are not for users
        self._admit(record.job, id, "/jobs/ID")
        return hide_neighbours(record, self._viewer)

    def columns(self, id: str) -> dict[str, tuple[str, ...]]:
        job = self._know(id, "/jobs/ID/sets")
        found = self._store.columns(job.name)
        return {it: columns for it, columns in found.items() if is_visible(it, self._viewer, job.alone)}

    def series(self, id: str, query: SeriesQuery) -> SeriesPage:
        job = self._know(id, "/jobs/ID/series")
        if not is_visible(query.set, self._viewer, job.alone):
            shown = [it for it in self._store.sets(job.name) if is_visible(it, self._viewer, job.alone)]
            raise unknown("set", query.set, shown)
        columns, labels = _names(query.columns), _names(query.by)
        if not labels:
            found: dict[tuple[str, ...], Series] = {
                (): self._store.series(job.name, query.set, columns, query.points)
            }
        else:
            self._check_size(job, query, columns, labels)
            found = self._store.split(job.name, query.set, labels, columns, query.points)
        return SeriesPage([_item(labels, key, series) for key, series in found.items()])

    def _check_size(
        self, job: Known, query: SeriesQuery, columns: tuple[str, ...], labels: tuple[str, ...]
    ) -> None:
        """Raises ApiError if there would be too many values: one point of each series shows how many."""
        few = self._store.split(job.name, query.set, labels, columns, 1)
        width = max((len(series.last) for series in few.values()), default=0)
        if len(few) * query.points * width > _MOST_VALUES:
            most = max(min(_MOST_VALUES // max(len(few) * width, 1), MOST_POINTS), 1)
            raise ApiError(
                400,
                f"{len(few)} series of {query.points} points are too many: ask for {most} points, or fewer "
                "columns",
            )

    def processes(self, id: str) -> list[ProcessUse]:
        """Of very many, those with the most CPU time."""
        job = self._know(id, "/jobs/ID/processes")
        found = self._store.processes(job.name)
        if len(found) <= _MOST_PROCESSES:
            return found
        return sorted(found, key=lambda it: cpu_of(it) or 0.0, reverse=True)[:_MOST_PROCESSES]

    def ends(self, id: str, kind: type[End], run: int | None, route: str) -> tuple[list[End], bool]:
        """Return what capture recorded at the end of processes or threads, and whether there is more."""
        self._know_run(id, run, route)
        found = self._store.ends(id, kind, run, 2 * _MOST_PROCESSES + 1)
        return found[:_MOST_PROCESSES], len(found) > _MOST_PROCESSES

    def groups(self, id: str, query: GroupsQuery) -> tuple[list[GroupUse], bool]:
        """Return the processes that are alike, added up, and whether there are more of these groups."""
        self._know_run(id, query.run, "/jobs/ID/ended/groups")
        found = self._store.groups_of(id, _names(query.by) or ("name",), query.run)
        return found[:_MOST_PROCESSES], len(found) > _MOST_PROCESSES

    # Reference models

    def models(self) -> ModelsPage:
        found = self._store.models()
        self._audit.note_listing(self._viewer, "/models", [job.user for it in found for job in it.jobs], "")
        heads = [msgspec.structs.replace(it, totals={}, operations={}, programs={}) for it in found]
        return ModelsPage(heads, self._problems([]))

    def model(self, name: str) -> ReferenceModel:
        """All are read, so that the time of an answer does not show which there are. Raises ApiError."""
        found = next((it for it in self._store.models() if it.name == name), None)
        if found is None:
            raise ApiError(404, f"model {name:.100}: not found, or not yours")
        self._audit.note_listing(self._viewer, "/models/ID", [job.user for job in found.jobs], name)
        return found

    # Live pages of the hub

    def now(self) -> LivePage:
        found = filter_now(self._page, self._allows())
        self._note_live("/now", jobs_now(found))
        return found

    def sets(self) -> StatusPage:
        found = filter_sets(self._page, self._allows())
        self._note_live("/sets", (LiveJob(it.cluster, it.jobid, it.user) for it in found.jobs))
        return found

    def nodes(self) -> NodesPage:
        found = filter_now(self._page, self._allows())
        self._note_live("/nodes", jobs_now(found))
        return NodesPage(list_nodes(found))

    def _allows(self) -> Allows | None:
        """Agents report the user of a job; its account is in the scheduler's list of running jobs."""
        scope = self._viewer.scope
        if scope.everything:
            return None
        accounts: dict[tuple[str, str], str | None] = {}
        if scope.accounts:
            for live in load_all(self._store.home, []):
                accounts.update(((job.cluster, job.id), job.account) for job in live.jobs)
        return lambda job: scope.allows(job.user, accounts.get((job.cluster, job.id)))

    def _note_live(self, route: str, jobs: Iterable[LiveJob]) -> None:
        self._audit.note_live(self._viewer, route, [job.user for job in set(jobs)])

    # Finding a job

    def _know(self, id: str, route: str) -> Known:
        """Find the job and log that it is read. Raises LookupError and ApiError."""
        live = [job for job in find_live(self._store.home, id, [], self._viewer.scope) if runs(job)]
        if live and live[-1].end is None:
            self._admit(live[-1], id, route)
            return Known(id, alone=False)
        record = self._store.job(id)
        self._admit(record.job, id, route)
        return Known(id, had_nodes_alone(record))

    def _know_run(self, id: str, run: int | None, route: str) -> None:
        """Raises LookupError and ApiError."""
        if run is None:
            self._know(id, route)
        else:
            self._admit(self._store.job(id, run).job, id, route)

    def _admit(self, job: Job | BatchJob, asked: str, route: str) -> None:
        """Log that it is read. The store has answered within the scope already; this is the same policy once
        more. Raises ApiError."""
        if not self._viewer.scope.allows(job.user, job.account):
            raise ApiError(404, not_found(asked))
        self._audit.note_job(self._viewer, route, job)


def make_filter(query: JobsQuery) -> JobFilter:
    """Raises UsageError."""
    return JobFilter(
        query.user,
        query.name,
        None if query.state is None else _state(query.state),
        _time(query.since),
        _time(query.until),
        _tags(query.tag),
        query.sort,
        query.reverse,
        query.limit,
        query.cluster,
        query.partition,
        query.account,
        query.node,
        query.array,
        query.cursor,
        _tags(query.annotation, "annotation"),
        query.exit_code,
    )


def _state(text: str) -> str:
    """Raises UsageError."""
    if text.upper() not in STATES:
        raise unknown("state", text.upper(), STATES)
    return text.upper()


def _tags(texts: list[str], what: str = "tag") -> tuple[tuple[str, str], ...]:
    """Raises UsageError."""
    try:
        return tuple(parse_tags(texts).items())
    except UsageError:
        raise UsageError(f"{what} is not NAME:VALUE, such as {what}=model:resnet") from None


def _time(text: str | None) -> float | None:
    """Also as seconds since 1970. Raises UsageError."""
    try:
        found = None if text is None else float(text)
    except ValueError:
        return parse_time(text)
    if found is not None and not abs(found) < 1e12:
        raise UsageError(f"{text!r:.60} is not a time; write 2026-11-15, 2026-11-15T13:02 or 7d")
    return found


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _item(labels: Sequence[str], key: Sequence[str], series: Series) -> SeriesItem:
    return SeriesItem(dict(zip(labels, key)), series.times, series.last, series.mean, series.peak)
