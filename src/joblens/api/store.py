"""A store on this machine: jobs, series and processes, and its maintenance."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from joblens.api.source import AmbiguousError, JobQuery, JobSource, Listed, NotFoundError, not_found
from joblens.core.errors import UsageError
from joblens.core.named_tuple import NamedTuple
from joblens.store import ingest
from joblens.store.catalog.choice import open_catalog
from joblens.store.catalog.listing import Identity, JobFilter, JobRow, make_filter, unknown
from joblens.store.catalog.queries import Run, choose_run
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.home import Home, find_home, make_home

if TYPE_CHECKING:
    from joblens.api.lookup import Tsdb
    from joblens.jobs.epmt_archives import EpmtResult
    from joblens.jobs.retire import RetireResult
    from joblens.record.model import ReferenceModel
    from joblens.record.report import Job, JobRecord, ProcessUse
    from joblens.schedulers.facts import BatchJob
    from joblens.store.edits import Change
    from joblens.store.end_groups import GroupUse
    from joblens.store.end_table import EndTable
    from joblens.store.lake.lake import Lake
    from joblens.store.memory_reader import SamplesReader
    from joblens.store.reader import End, LakeReader, Series, Span

    AnyReader = LakeReader | SamplesReader

Progress = Callable[[int, int], None]
_Kind = TypeVar("_Kind")
_ATTEMPTS = 3  # to read the samples of a running job while the lake is compacted


class StoreInfo(NamedTuple):
    """Size and state of a store."""

    path: str
    filesystem: str
    shared: bool  # by several machines, as far as the file system shows
    about: str  # a sentence about where data and catalog are
    jobs: int
    running: list[str]  # ids
    waiting: int  # jobs whose samples are not in the lake yet
    files: int  # of samples
    bytes: int
    problems: list[str]


class Changed(NamedTuple):
    """A job after a change, and all tags or annotations that it has now."""

    id: str  # ID@CLUSTER
    name: str
    values: dict[str, str]


class Store(JobSource):
    """A store, as `joblens.open` returns it. Jobs outside of its scope do not exist for its reader."""

    def __init__(
        self,
        path: str | os.PathLike[str] | Home | None = None,
        progress: Progress | None = None,
        scope: Scope = ALL,
        read_only: bool = False,
        memory: str = "2GB",
        fresh_seconds: float = 0.0,
    ) -> None:
        """`read_only` completes no job whose joblens was killed, and makes no folder. `memory`: the most that
        reading samples may take. `fresh_seconds`: for which the index is not compared with the records again,
        because another thread keeps it up to date."""
        home = path if isinstance(path, Home) else find_home(path)
        self.home = home if read_only else make_home(home)
        self.scope, self.read_only, self._memory = scope, read_only, memory
        self._problems = [*([] if read_only else _recover(home)), *ingest.problems(home)]
        self._catalog = open_catalog(self.home, progress)
        self._catalog.fresh_seconds = fresh_seconds

    @cached_property
    def _lake(self) -> Lake:
        """A listing does not load it."""
        from joblens.store.lake.lake import Lake

        return Lake(self.home.lake, self._memory)

    @property
    def problems(self) -> list[str]:
        """Paths and ids in them are for those only who may see everything."""
        if not self.scope.everything:
            return []
        of_lake = self._lake.problems if "_lake" in self.__dict__ else []
        return self._problems + self._catalog.problems + of_lake

    def seen_by(self, scope: Scope) -> Store:
        """Return the same store as someone with this scope sees it. Only one of them is to be closed."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__, scope=scope, _lake=self._lake)
        return view

    def jobs(self, wanted: JobFilter | None = None, **filters: Any) -> list[JobRow]:
        return self._catalog.jobs(wanted or make_filter(**filters), self.scope)

    def listed(self, wanted: JobFilter) -> list[Listed]:
        from joblens.api.lookup import list_jobs

        problems: list[str] = []
        found = [Listed(job) for job in list_jobs(self, wanted, problems)]
        self.add_problems(problems)
        return found

    def find(
        self, query: JobQuery, *, tsdb: Callable[[], Tsdb] | None = None, session: BatchJob | None = None
    ) -> JobRecord:
        from joblens.api.lookup import find_report

        problems: list[str] = []
        try:
            return find_report(self, query, problems, tsdb() if tsdb else None, session)
        finally:
            self.add_problems(problems)

    def add_problems(self, problems: Iterable[str]) -> None:
        self._problems = list(dict.fromkeys([*self._problems, *problems]))

    def job(self, name: str, run: int | None = None) -> JobRecord:
        found = self._catalog.find(name, self.scope)
        if not found:
            running = self._running(name)
            if running is not None:
                return running
            raise NotFoundError(self._why_unknown(name))
        if len(found) > 1:
            names = [self._catalog.name_of(it, self.scope) for it in found[:5]]
            some = ", ".join(names) + (", …" if len(found) > 5 else "")
            raise AmbiguousError(f"several jobs begin with {name!r}: {some}")
        if run is None:
            return self._catalog.report(found[0], self.scope)
        chosen = choose_run(self.runs(name), run)
        return self._catalog.report((chosen.cluster, chosen.id, chosen.start), self.scope)

    def runs(self, name: str) -> list[Run]:
        return self._catalog.runs(name, self.scope)

    def find_stored(self, identities: Iterable[Identity]) -> Collection[Identity]:
        """Return those that have a record."""
        return self._catalog.written(identities, self.scope)

    def shown_ids(self, wanted: JobFilter) -> set[str]:
        """Return the ids of all stored jobs that are meant, as people write them."""
        return self._catalog.shown_ids(wanted, self.scope)

    def _why_unknown(self, name: str) -> str:
        if self.read_only or not self.scope.everything:  # to users of a service its folder means nothing
            return not_found(name)
        if name == "last":
            return f"no job is stored in {self.home.path} yet; begin with: joblens run -- CMD"
        under_way = [found for found in self.running() if name and found.startswith(name)]
        if under_way:
            return f"job {under_way[0]} has not ended yet, or not been stored yet"
        return f"there is no job {name!r:.100} in {self.home.path}"

    def _running(self, name: str) -> JobRecord | None:
        """The report so far of a job that `joblens run` runs now."""
        if not name or not ingest.folders(self.home.incoming):
            return None
        from joblens.jobs.running import find_running, summarise_running

        id, _, cluster = name.partition("@")
        facts = [(it, it.facts) for it in find_running(self.home) if self._sees(it)]
        found = [it for it, job in facts if job.id.startswith(id) and cluster in ("", job.cluster)]
        return summarise_running(found[-1]) if found else None

    def running(self) -> list[str]:
        """Return the ids of jobs that have not ended, or are not finalised yet."""
        return sorted(found.facts.id for found in ingest.list_incoming(self.home) if self._sees(found))

    def _sees(self, found: ingest.Incoming) -> bool:
        return self.scope.allows(found.facts.user, found.facts.account)

    def split(
        self,
        name: str,
        set_name: str,
        labels: tuple[str, ...],
        columns: tuple[str, ...] = (),
        points: int = 1000,
    ) -> dict[tuple[str, ...], Series]:
        def read(span: Span, reader: AnyReader) -> dict[tuple[str, ...], Series]:
            return reader.split(span, set_name, labels, _columns(span, reader, set_name, columns), points)

        return self._read(name, read)

    def columns(self, name: str) -> dict[str, tuple[str, ...]]:
        def read(span: Span, reader: AnyReader) -> dict[str, tuple[str, ...]]:
            found = {it: reader.measured(span, it) for it in reader.sets()}
            return {it: columns for it, columns in found.items() if columns}

        return self._read(name, read)

    def processes(self, name: str) -> list[ProcessUse]:
        return self._read(name, lambda span, reader: reader.processes(span))

    def ends(self, name: str, kind: type[End], run: int | None = None, most: int | None = None) -> list[End]:
        """`most`: from at most that many rows; both capture and the agent may have one of a process."""
        return self._read(name, lambda span, reader: reader.ends(span, kind, most), run)

    def end_table(self, name: str, kind: type[End], run: int | None = None) -> EndTable[End]:
        def read(span: Span, reader: AnyReader) -> EndTable[End]:
            from joblens.store.end_table import table_of
            from joblens.store.reader import LakeReader

            if isinstance(reader, LakeReader):
                return reader.end_table(span, kind)
            return table_of(reader.ends(span, kind), kind)

        return self._read(name, read, run)

    def report(self, identity: Identity) -> JobRecord:
        """Return the record of a run by cluster, id and start. Raises LookupError."""
        return self._catalog.report(identity, self.scope)

    def groups_of(self, name: str, by: Iterable[str], run: int | None = None) -> list[GroupUse]:
        from joblens.store.end_groups import check_groups, group_ends

        if run is not None or self._live(name) is None:
            return self.end_groups(self.job(name, run), by)
        columns = check_groups(by)
        return self._read(name, lambda span, reader: group_ends(reader, span, columns))

    def end_groups(self, record: JobRecord, by: Iterable[str]) -> list[GroupUse]:
        from joblens.store.end_groups import check_groups, group_ends, stored_groups

        job, columns = record.job, check_groups(by)
        stored = stored_groups(record, columns)
        if stored is not None:
            return stored
        return group_ends(self._reader(job.id, job.start), self._span(job), columns)

    def record_of(self, row: JobRow) -> JobRecord:
        return self.report((row.cluster, row.id, row.start or 0.0))

    def _ends_of(self, record: JobRecord, kind: type[End]) -> list[End]:
        job = record.job
        return self._reader(job.id, job.start).ends(self._span(job), kind)

    def read_samples(self, record: JobRecord, read: Callable[[AnyReader], _Kind]) -> _Kind:
        """Call it with a reader of the samples of a job, by its record."""
        live = self._live(f"{record.job.id}@{record.job.cluster}")
        if live is not None and live.start == record.job.start:
            return self._read_live(live, read)
        return read(self._reader(record.job.id, record.job.start))

    def _reader(self, job: str, start: float) -> LakeReader | SamplesReader:
        from joblens.store.pending import find_reader

        return find_reader(self.home, self._lake, job, start)

    def _read(self, name: str, read: Callable[[Span, AnyReader], _Kind], run: int | None = None) -> _Kind:
        """Call it with the time of a job and a reader of its samples."""
        from joblens.store.reader import Span

        live = self._live(name) if run is None else None
        if live is not None:
            now = Span(live.id, live.start or 0.0, time.time() + 1.0, live.cluster)
            return self._read_live(live, lambda reader: read(now, reader))
        job = self.job(name, run).job
        return read(self._span(job), self._reader(job.id, job.start))

    def _span(self, job: Job) -> Span:
        """The time of a run. Two clusters can have jobs of the same id at the same time."""
        from joblens.store.reader import Span

        last = max(job.last, job.start)
        after, before = self._catalog.borders((job.cluster, job.id, job.start), last)
        end = min(last + 1.0, max(before, last))
        return Span(job.id, job.start, end, job.cluster if job.nodes else "", (), after, before)

    def _live(self, name: str) -> BatchJob | None:
        """Return the job of a batch system that runs now."""
        from joblens.jobs.live import find_live
        from joblens.jobs.live_lists import runs

        found = [job for job in find_live(self.home, name, [], self.scope) if runs(job) and job.end is None]
        return found[-1] if found else None

    def _read_live(self, job: BatchJob, read: Callable[[AnyReader], _Kind]) -> _Kind:
        """Also what a hub has acknowledged and its sink has not stored yet."""
        from joblens.hub.tail import open_lake
        from joblens.store.lake.lake import MovedError
        from joblens.store.reader import LakeReader

        nodes = {(job.cluster, node) for node in job.nodes}
        for _ in range(_ATTEMPTS):
            with suppress(MovedError), open_lake(self.home, nodes, []) as lake:
                return read(LakeReader(lake))
        return read(LakeReader(self._lake))

    # Changes

    def tag(
        self,
        name: str,
        tags: Mapping[str, str],
        remove: Iterable[str] = (),
        replace: bool = False,
        run: int | None = None,
    ) -> dict[str, str]:
        """Add tags to a job, or replace all of them. Return those that it has now."""
        return self.change("tags", name, tags, remove, replace, run).values

    def annotate(
        self,
        name: str,
        notes: Mapping[str, str],
        remove: Iterable[str] = (),
        replace: bool = False,
        run: int | None = None,
    ) -> dict[str, str]:
        """Add annotations to a job, or replace all of them. Return those that it has now."""
        return self.change("annotations", name, notes, remove, replace, run).values

    def delete(self, name: str | JobRecord, run: int | None = None) -> JobRecord:
        """Delete a job, by its id or its record, with all samples and processes. Return its record."""
        from joblens.store.edit import delete

        record = self.job(name, run) if isinstance(name, str) else name
        live = self._live(f"{record.job.id}@{record.job.cluster}")
        began = live.start if live is not None and live.start is not None else math.inf
        until = began if began > record.job.start else math.inf
        delete(self.home, self._catalog, self._lake, record, until)
        return record

    def retire(
        self,
        older_than: str | float,
        wanted: JobFilter | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        **filters: Any,
    ) -> RetireResult:
        """Delete the jobs that ended before a moment, `90d` ago or 2026-01-31, as `delete` does."""
        from joblens.jobs.retire import retire
        from joblens.store.catalog.listing import parse_time

        before = parse_time(older_than)
        if before is None:
            raise UsageError("older_than is a time")
        if before > time.time():
            raise UsageError(f"{older_than} is in the future: all jobs would be older")
        chosen = wanted or make_filter(**filters)
        return retire(self.home, self._catalog, self._lake, chosen, before, dry_run, progress)

    def change(
        self,
        part: str,
        name: str,
        pairs: Mapping[str, str],
        remove: Iterable[str] = (),
        replace: bool = False,
        run: int | None = None,
    ) -> Changed:
        """Change `tags` or `annotations` of a job; `last` is the newest, also if it runs or is captured."""
        from joblens.store.edit import change
        from joblens.store.edits import Change

        if not all(isinstance(it, str) for pair in pairs.items() for it in pair):
            raise UsageError(f"{part} are texts")
        wanted = Change(add=dict(pairs), remove=list(remove), in_place=replace)
        name = self._newest() if name == "last" else name
        session = self._change_session(part, name, wanted) if run is None else None
        if session is not None and self._live(name) is None:
            return session
        found: list[JobRecord] = []

        def find() -> JobRecord:
            found[:] = [self._meant(name, run)]
            return found[0]

        now = change(self.home, find, part, pairs, wanted.remove, replace)
        return _changed(found[0].job, now)

    def _newest(self) -> str:
        """The job that began last, as `joblens jobs` lists it, or that `joblens start` captures."""
        rows = [it.job for it in self.listed(JobFilter(limit=1))]
        newest = [(row.start or 0.0, f"{row.id}@{row.cluster}") for row in rows]
        if (self.home.path / "capture").is_dir():
            from joblens.usermode.capture import list_started

            sessions = [it.state for it in list_started(self.home)]
            newest += [(float(it.start), f"{it.job.id}@{it.job.cluster}") for it in sessions]
        return max(newest, default=(0.0, "last"))[1]

    def _meant(self, name: str, run: int | None) -> JobRecord:
        """Return the job that runs now under this name, else the stored one. Raises LookupError."""
        live = self._live(name) if run is None else None
        if live is None or live.start is None:
            return self.job(name, run)
        from joblens.record.report import Job, JobRecord
        from joblens.store.edits import find_edits

        edits = find_edits(self.home.path, (live.cluster, live.id, live.start))
        job = Job(id=live.id, cluster=live.cluster, name=live.name, user=live.user, start=live.start)
        if edits is not None:
            job.tags, job.annotations = dict(edits.tags.add), dict(edits.annotations.add)
        return JobRecord(job=job)

    def _change_session(self, part: str, name: str, wanted: Change) -> Changed | None:
        """Change what `joblens stage` writes for a session of `joblens start`; None if there is none."""
        if not (self.home.path / "capture").is_dir():
            return None
        from joblens.store.edit import changed
        from joblens.usermode.capture import find_started

        session = find_started(self.home, name)
        if session is None:
            return None
        now = changed(getattr(session.state, part), wanted, part)
        setattr(session.state, part, now)
        session.save()
        return _changed(session.state.job, now)

    # Reference models

    def models(self) -> list[ReferenceModel]:
        from joblens.api.models import visible
        from joblens.store.models import list_models

        problems: list[str] = []
        found = [it for it in list_models(self.home, problems) if visible(it, self.scope)]
        self.add_problems(problems)
        return found

    def model(self, name: str) -> ReferenceModel:
        from joblens.api.models import find_model

        return find_model(self, name)

    def create_model(
        self, name: str, names: Sequence[str] = (), *, replace: bool = False, **filters: Any
    ) -> ReferenceModel:
        """Create a reference model of these jobs, or of those that the filters select."""
        from joblens.api.comparing import load_chosen
        from joblens.api.models import create_model

        wanted = make_filter(**filters)
        return create_model(self, name, load_chosen(self, names, **filters), wanted, replace)

    def enable_model(self, name: str, enabled: bool = True) -> ReferenceModel:
        """Judge new jobs by a model, or no longer. Raises JoblensError."""
        from joblens.api.models import find_model
        from joblens.store.models import check_allowed, save_model

        model = find_model(self, name)
        check_allowed(self.home, model)
        if model.enabled != enabled:
            model.enabled = enabled
            save_model(self.home, model)
        return model

    def remove_model(self, name: str) -> None:
        """Remove a model; what it has judged stays with the jobs. Raises JoblensError."""
        from joblens.store.models import remove_model

        remove_model(self.home, name)

    # Import

    def import_epmt(
        self, paths: Iterable[str | os.PathLike[str]], zone: str = "", cluster: str = ""
    ) -> EpmtResult:
        """Import archives of EPMT and folders of them; those that are stored already are left out."""
        from joblens.jobs.epmt_archives import import_epmt

        return import_epmt(self.home, [Path(path) for path in paths], zone, cluster)

    # Maintenance

    def compact(self, progress: Progress | None = None) -> int:
        """Samples that wait into the lake, many small files into few, and away with what crashes have left.

        How many files went in.
        """
        from joblens.store import records
        from joblens.store.lake.compact import compact
        from joblens.store.maintenance import remove_leftovers
        from joblens.store.pending import settle_all

        remove_leftovers(self.home)
        self._lake.report(*settle_all(self.home, self._lake))
        done = compact(self._lake, lambda: ingest.unfinished(self.home), progress)
        if self.home.database is not None:
            return done
        today = time.strftime("%Y-%m-%d", time.gmtime())
        days = [day for day, _ in records.list_days(self.home.records) if day != today]
        return done + sum(records.compact_day(self.home.records, day) for day in days)

    def check(self, progress: Progress | None = None) -> int:
        """Read every file and set damaged ones aside; `problems` reports them. Return the number of files."""
        from joblens.store.maintenance import check_lake, check_records

        count = check_lake(self._lake, progress)
        self._problems += check_records(self.home)
        self._catalog.check()
        return count

    def retain(self, days: int) -> int:
        """Removes what is older than so many days."""
        from joblens.store.maintenance import retain

        if days < 1:
            raise UsageError(f"at least one day has to stay, and not {days}")
        return retain(self.home, days)

    def info(self) -> StoreInfo:
        """Return its size and state."""
        from joblens.store.lake.folder import list_folder

        files = [path for folder in self.home.lake.glob("set=*/date=*") for path in list_folder(folder).files]
        sizes = [path.stat().st_size for path in files if path.exists()]
        return StoreInfo(
            path=str(self.home.path),
            filesystem=self.home.filesystem,
            shared=self.home.shared,
            about=self.home.describe(),
            jobs=self._catalog.count(self.scope),
            running=self.running(),
            waiting=len(ingest.folders(self.home.waiting)),
            files=len(sizes),
            bytes=sum(sizes),
            problems=self.problems,
        )

    def prepare(self) -> None:
        """Create all indexes of the catalog, so that no question has to wait for one."""
        self._catalog.prepare()

    def close(self) -> None:
        self._catalog.close()


def _changed(job: Job | BatchJob, now: dict[str, str]) -> Changed:
    return Changed(f"{job.shown_id or job.id}@{job.cluster}", job.name, now)


def _columns(span: Span, reader: AnyReader, set_name: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return those, or all. Raises UsageError that names the nearest if there is no such set or column."""
    if isinstance(columns, str):
        raise UsageError(f"columns is a tuple of names, and not the text {columns!r:.60}")
    if set_name not in reader.sets():
        raise unknown("set", str(set_name), reader.sets())
    known = reader.measured(span, set_name)
    for column in columns:
        if column not in known:
            raise unknown(f"column of {set_name}", str(column), known)
    return columns or known


def _recover(home: Home) -> list[str]:
    """Analysis is loaded only if there is a job to complete: a listing takes half as long without it."""
    if not ingest.folders(home.incoming):
        return []
    from joblens.jobs.complete import recover

    return recover(home)
