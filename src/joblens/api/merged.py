"""The user's own store and the service of a site as one: each job once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from typing import TYPE_CHECKING, Any, TypeVar

from joblens.api.remote import RemoteStore
from joblens.api.source import AmbiguousError, JobQuery, JobSource, Listed, NotFoundError, not_found
from joblens.core.errors import OutsideError, ServerError, sentence
from joblens.store.catalog.cursor import sort_rows
from joblens.store.catalog.listing import JobFilter, JobRow, make_filter

if TYPE_CHECKING:
    from joblens.api.lookup import Tsdb
    from joblens.api.store import Progress, Store, StoreInfo
    from joblens.record.model import ReferenceModel
    from joblens.record.report import JobRecord, ProcessUse
    from joblens.schedulers.facts import BatchJob
    from joblens.store.catalog.queries import Run
    from joblens.store.end_groups import GroupUse
    from joblens.store.end_table import EndTable
    from joblens.store.home import Home
    from joblens.store.reader import End, Series

OWN, SITE = "own", "site"
_Kind = TypeVar("_Kind")
_Rows = TypeVar("_Rows", bound=Sized)


class MergedStore(JobSource):
    """The user's own store, and what a site's service shows to this user. Maintenance is of the own one.

    A service that does not answer is reported in `problems`; from then on only the own store is read. An own
    store that does not exist yet is made only then.
    """

    several = True

    def __init__(self, open_own: Callable[[], Store], has_own: bool, site: RemoteStore) -> None:
        self._open_own, self._has_own = open_own, has_own
        self._own: Store | None = None
        self._site: RemoteStore | None = site
        self._problems: list[str] = []

    @property
    def own(self) -> Store:
        """Opened late: the service works on a request meanwhile."""
        if self._own is None:
            self._own = self._open_own()
        return self._own

    @property
    def problems(self) -> list[str]:
        own = self._own.problems if self._own else []
        return [*own, *self._problems, *(self._site.problems if self._site else [])]

    def _reads_own(self) -> bool:
        """Open the own store. One that does not exist is not needed while the service answers."""
        if not self._has_own and self._site is not None:
            return False
        try:
            return self.own is not None
        except OutsideError as error:
            if self._site is None:
                raise
            self._problems.append(f"your own store was not read: {sentence(error)}")
            self._has_own = False
            return False

    def _ask(self, question: Callable[[RemoteStore], _Kind]) -> _Kind | None:
        """Return what the service answers, None if it does not. Raises LookupError or UsageError."""
        if self._site is None:
            return None
        try:
            return question(self._site)
        except (ServerError, OSError) as error:
            self._problems += [*self._site.problems, f"{sentence(error)}; only your own store was read"]
            self._site.close()
            self._site = None
            return None

    # Listings

    def jobs(self, wanted: JobFilter | None = None, **filters: Any) -> list[JobRow]:
        chosen = wanted or make_filter(**filters)
        there = self._ask(lambda site: site.listed(chosen)) or []
        own = [Listed(job) for job in self.own.jobs(chosen)] if self._reads_own() else []
        return [it.job for it in merge(own, there, chosen)]

    def listed(self, wanted: JobFilter) -> list[Listed]:
        self._ask(lambda site: site.begin_listed(wanted))
        self._reads_own()  # it is opened while the service answers
        there = self._ask(lambda site: site.listed(wanted)) or []
        return merge(self.own.listed(wanted) if self._reads_own() else [], there, wanted)

    def why_empty(self) -> str:
        there = self._ask(lambda site: site.why_empty())
        return f"{there}, and {super().why_empty()}" if there else super().why_empty()

    # One job

    def find(
        self, query: JobQuery, *, tsdb: Callable[[], Tsdb] | None = None, session: BatchJob | None = None
    ) -> JobRecord:
        whole = query if query.run is None else JobQuery(query.id)
        self._ask(lambda site: site.begin_find(whole))
        own, there = self._find_both(whole, session)
        if isinstance(own, LookupError) and (there is None or isinstance(there, LookupError)):
            if not isinstance(own, NotFoundError):
                raise own
            if tsdb is not None and tsdb().settings().tsdb.url:
                return self.own.find(query, tsdb=tsdb)
            raise there or own
        if query.run is None:
            return _choose(query.id, own, there)
        return self._find_run(query, own, there, session)

    def _find_both(
        self, query: JobQuery, session: BatchJob | None = None
    ) -> tuple[JobRecord | LookupError, JobRecord | LookupError | None]:
        if self._reads_own():
            own = _attempt(lambda: self.own.find(query, session=session))
            return own, _attempt(lambda: self._ask(lambda site: site.find(query)))
        there = _attempt(lambda: self._ask(lambda site: site.find(query)))
        if there is not None:
            return NotFoundError(not_found(query.id)), there
        return _attempt(lambda: self.own.find(query, session=session)), None

    def _find_run(
        self,
        query: JobQuery,
        own: JobRecord | LookupError,
        there: JobRecord | LookupError | None,
        session: BatchJob | None,
    ) -> JobRecord:
        """Count the runs of both sources together if they are of the same job."""
        from joblens.store.catalog.queries import choose_run

        known, theirs = _runs_meant(query.id, own, there)
        runs = _union(known, theirs)
        chosen = choose_run(runs, query.run or 0)
        record: JobRecord | None = None
        if chosen in theirs:
            numbered = query._replace(run=theirs.index(chosen) + 1)
            record = self._ask(lambda site: site.find(numbered))
        if record is None:
            record = self.own.find(query._replace(run=_index(known, chosen) + 1), session=session)
        _number(record, runs)
        return record

    def runs(self, name: str) -> list[Run]:
        try:
            return _runs_of(self.find(JobQuery(name)))
        except LookupError:
            return []

    # Samples, from the source that has the job

    def split(
        self,
        name: str,
        set_name: str,
        labels: tuple[str, ...],
        columns: tuple[str, ...] = (),
        points: int = 1000,
    ) -> dict[tuple[str, ...], Series]:
        return self._source(name).split(name, set_name, labels, columns, points)

    def columns(self, name: str) -> dict[str, tuple[str, ...]]:
        return self._source(name).columns(name)

    def processes(self, name: str) -> list[ProcessUse]:
        return self._source(name).processes(name)

    def ends(self, name: str, kind: type[End], run: int | None = None) -> list[End]:
        return self._read_run(name, run, lambda source, *of: source.ends(of[0], kind, of[1]), [])

    def end_table(self, name: str, kind: type[End], run: int | None = None) -> EndTable[End]:
        from joblens.store.end_table import table_of

        none = table_of([], kind)
        return self._read_run(name, run, lambda source, *of: source.end_table(of[0], kind, of[1]), none)

    def whole_table(self, name: str, kind: type[End], run: int | None = None) -> EndTable[End]:
        from joblens.store.end_table import table_of

        none = table_of([], kind)
        return self._read_run(name, run, lambda source, *of: source.whole_table(of[0], kind, of[1]), none)

    def groups_of(self, name: str, by: Iterable[str], run: int | None = None) -> list[GroupUse]:
        columns = tuple(by)
        return self._read_run(name, run, lambda source, *of: source.groups_of(of[0], columns, of[1]), [])

    def _read_run(
        self, name: str, run: int | None, read: Callable[[JobSource, str, int | None], _Rows], none: _Rows
    ) -> _Rows:
        """Read from the first source that has something of it. A run is counted among those of both, as `job`
        does."""
        if run is None:
            return read(self._source(name), name, None)
        job = self.job(name, run).job
        name = f"{job.id}@{job.cluster}"
        for source in (self._site, self.own if self._reads_own() else None):
            runs = source.runs(name) if source is not None else []
            numbers = [number for number, it in enumerate(runs, 1) if it.start == job.start]
            if source is not None and numbers and len(found := read(source, name, numbers[0])):
                return found
        return none

    def _source(self, name: str) -> JobSource:
        """Return the one whose record `job` returns."""
        own, there = self._find_both(JobQuery(name))
        if there is None or isinstance(there, LookupError) or self._site is None:
            return self.own
        return self._site if _choose(name, own, there) is there else self.own

    # Reference models

    def models(self) -> list[ReferenceModel]:
        return [it for it, _ in self.listed_models()]

    def listed_models(self) -> list[tuple[ReferenceModel, str]]:
        own = self.own.models() if self._reads_own() else []
        there = self._ask(lambda site: site.models()) or []
        found = [*((it, OWN) for it in own), *((it, SITE) for it in there)]
        return sorted(found, key=lambda pair: pair[0].name)

    def model(self, name: str) -> ReferenceModel:
        """Return the own one, if both have one of that name."""
        from joblens.store.models import NoModelError

        try:
            if self._reads_own():
                return self.own.model(name)
        except NoModelError:
            if self._site is None:
                raise
        return self._ask(lambda site: site.model(name)) or self.own.model(name)

    # Maintenance

    @property
    def home(self) -> Home:
        return self.own.home

    def running(self) -> list[str]:
        return self.own.running()

    def compact(self, progress: Progress | None = None) -> int:
        return self.own.compact(progress)

    def check(self, progress: Progress | None = None) -> int:
        return self.own.check(progress)

    def retain(self, days: int) -> int:
        return self.own.retain(days)

    def info(self) -> StoreInfo:
        return self.own.info()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
        if self._site is not None:
            self._site.close()


def merge(own: list[Listed], there: list[Listed], wanted: JobFilter) -> list[Listed]:
    """Each job once, in the order that is asked for, and not more than that."""
    found = {_identity(it.job): Listed(it.job, SITE) for it in there}
    for it in own:
        same = found.get(_identity(it.job))
        if same is None or _is_better(it.job, same.job):
            found[_identity(it.job)] = Listed(it.job, OWN)
    rows = sort_rows((it.job for it in found.values()), wanted)[: wanted.limit or None]
    return [found[_identity(job)] for job in rows]


def _identity(job: JobRow) -> tuple[str, str, float | None]:
    return job.cluster, job.id, job.start


def _is_better(own: JobRow, there: JobRow) -> bool:
    """A site knows more of a batch job, unless it has only the accounting of it."""
    return own.source == "run" or (there.processes is None and own.processes is not None)


def _attempt(find: Callable[[], _Kind]) -> _Kind | LookupError:
    try:
        return find()
    except LookupError as error:
        return error


def _choose(name: str, own: JobRecord | LookupError, there: JobRecord | LookupError | None) -> JobRecord:
    """Of two jobs the one with exactly that id, else the newest. At least one is a record."""
    if there is None or isinstance(there, LookupError):
        return _unless_ambiguous(name, own, there)
    if isinstance(own, LookupError):
        return _unless_ambiguous(name, there, own)
    if _is_same_job(known := _runs_of(own), theirs := _runs_of(there)):
        _number(own, runs := _union(known, theirs))
        _number(there, runs)
    if _identity_of(own) == _identity_of(there):
        better = own.job.source == "run" or (own.data.samples and not there.data.samples)
        return own if better else there
    return max(there, own, key=lambda it: (_is_exact(name, it), it.job.start))


def _unless_ambiguous(
    name: str, found: JobRecord | LookupError, other: JobRecord | LookupError | None
) -> JobRecord:
    if isinstance(found, LookupError):
        raise found
    if isinstance(other, AmbiguousError) and not _is_exact(name, found):
        raise other
    return found


def _is_exact(name: str, record: JobRecord) -> bool:
    return name.partition("@")[0] in (record.job.id, record.job.shown_id)


def _identity_of(record: JobRecord) -> tuple[str, str, float]:
    return record.job.cluster, record.job.id, record.job.start


def _runs_of(record: JobRecord | LookupError | None) -> list[Run]:
    from joblens.store.catalog.queries import Run

    if record is None or isinstance(record, LookupError) or not isinstance(record.runs, list):
        return []
    return [Run(it.cluster, it.id, it.start, it.end, it.state) for it in record.runs]


def _runs_meant(
    name: str, own: JobRecord | LookupError, there: JobRecord | LookupError | None
) -> tuple[list[Run], list[Run]]:
    """Return the runs of each source. If these are different jobs, as for `last`, only of the one meant."""
    known, theirs = _runs_of(own), _runs_of(there)
    if not known or not theirs or _is_same_job(known, theirs):
        return known, theirs
    return ([], theirs) if _choose(name, own, there) is there else (known, [])


def _is_same_job(own: list[Run], there: list[Run]) -> bool:
    """Whether both have runs of one id of one cluster."""
    return not {run[:2] for run in own}.isdisjoint(run[:2] for run in there)


def _union(own: list[Run], there: list[Run]) -> list[Run]:
    found = {run[:3]: run for run in (*own, *there)}
    return sorted(found.values(), key=lambda run: (run.start, run.id))


def _index(runs: list[Run], wanted: Run) -> int:
    return next(number for number, run in enumerate(runs) if run[:3] == wanted[:3])


def _number(record: JobRecord, runs: list[Run]) -> None:
    from joblens.api.lookup import number_runs

    number_runs(record, runs)
