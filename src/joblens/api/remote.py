"""Jobs, series and processes from a service: the same methods as those of a store on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from joblens.api import responses
from joblens.api.connection import Connection, Pairs, encode
from joblens.api.source import CutError, JobQuery, JobSource, Listed, NotFoundError, not_found
from joblens.core.errors import MalformedError, ServerError, UsageError, printable
from joblens.store.catalog.listing import JobFilter, JobRow, make_filter

if TYPE_CHECKING:
    from joblens.api.lookup import Tsdb
    from joblens.record.model import ReferenceModel
    from joblens.record.report import JobRecord, ProcessUse
    from joblens.schedulers.facts import BatchJob
    from joblens.store.catalog.queries import Run
    from joblens.store.end_groups import GroupUse
    from joblens.store.end_table import EndTable
    from joblens.store.reader import End, Series

_MOST_ON_A_PAGE = 1000
_MOST_PAGES = 10_000
_Kind = TypeVar("_Kind")


class RemoteStore(JobSource):
    """A service, as `joblens.open(server=…)` returns it: what this user may see. For one thread."""

    def __init__(self, address: str, token_file: str = "", ca_file: str = "") -> None:
        self._connection = Connection(address, token_file, ca_file)
        self._problems: list[str] = []

    @property
    def name(self) -> str:
        return self._connection.name

    @property
    def problems(self) -> list[str]:
        return self._problems

    def jobs(self, wanted: JobFilter | None = None, **filters: Any) -> list[JobRow]:
        wanted = wanted or make_filter(**filters)
        found: list[JobRow] = []
        for page in self._pages(wanted):
            found += page.jobs
            self._report(page.problems)
            if wanted.limit and len(found) >= wanted.limit:
                return found[: wanted.limit]
        return found

    def _pages(self, wanted: JobFilter) -> Iterator[responses.Page]:
        cursor = wanted.cursor
        for _ in range(_MOST_PAGES):
            query = [*_first_page(wanted), ("cursor", cursor)]
            page = self._get("/jobs", responses.parse_jobs, query)
            yield page
            if page.next is None:
                return
            if not page.jobs or page.next == cursor:
                break
            cursor = page.next
        raise self._malformed("the list of jobs has no end")

    def _report(self, problems: list[str]) -> None:
        words = [printable(it, 1000) for it in problems]
        self._problems += [it for it in words if it not in self._problems]

    def listed(self, wanted: JobFilter) -> list[Listed]:
        return [Listed(job) for job in self.jobs(wanted)]

    def why_empty(self) -> str:
        me = self.page("/me")
        user = str(me.get("user", "")) if isinstance(me, dict) else ""
        return f"{self.name} has no job that user {printable(user, 100)} may see"

    def find(
        self, query: JobQuery, *, tsdb: Callable[[], Tsdb] | None = None, session: BatchJob | None = None
    ) -> JobRecord:
        return self._get(_job(query.id), lambda data: responses.parse_report(self.name, data), _part(query))

    def begin_find(self, query: JobQuery) -> None:
        """Let the service work on it while the caller does something else."""
        with suppress(NotFoundError):  # which `find` raises
            self._connection.begin(_job(query.id), _part(query))

    def begin_listed(self, wanted: JobFilter) -> None:
        self._connection.begin("/jobs", _first_page(wanted))

    def runs(self, name: str) -> list[Run]:
        from joblens.store.catalog.queries import Run

        try:
            found = self.job(name).runs
        except NotFoundError:
            return []
        if not isinstance(found, list):
            return []
        return [Run(it.cluster, it.id, it.start, it.end, it.state) for it in found]

    def split(
        self,
        name: str,
        set_name: str,
        labels: tuple[str, ...],
        columns: tuple[str, ...] = (),
        points: int = 1000,
    ) -> dict[tuple[str, ...], Series]:
        if isinstance(columns, str) or isinstance(labels, str):
            raise UsageError("columns and labels are tuples of names, and not a text")
        query = [
            ("set", set_name),
            ("columns", ",".join(columns)),
            ("by", ",".join(labels)),
            ("points", points),
        ]
        return self._get(
            _job(name) + "/series", lambda data: responses.parse_series(data, tuple(labels)), query
        )

    def columns(self, name: str) -> dict[str, tuple[str, ...]]:
        return self._get(_job(name) + "/sets", responses.parse_sets)

    def processes(self, name: str) -> list[ProcessUse]:
        return self._get(_job(name) + "/processes", responses.parse_processes)

    def ends(self, name: str, kind: type[End], run: int | None = None) -> list[End]:
        from joblens.record.ends import NOUNS

        found, cut = self._ends(name, kind, run)
        if cut:
            self._report([f"{self.name} sends the first {len(found):,} {NOUNS[kind]} of job {name} only"])
        return found

    def _ends(self, name: str, kind: type[End], run: int | None) -> tuple[list[End], bool]:
        """Return them, and whether there are more."""
        from joblens.record.ends import NOUNS

        path = f"{_job(name)}/ended/{NOUNS[kind]}"
        return self._get(path, lambda data: responses.parse_ends(data, kind), [("run", run)])

    def whole_table(self, name: str, kind: type[End], run: int | None = None) -> EndTable[End]:
        from joblens.record.ends import NOUNS
        from joblens.store.end_table import table_of

        found, cut = self._ends(name, kind, run)
        if cut:
            raise self._cut(
                f"job {name} has more than {len(found):,} {NOUNS[kind]}, and {self.name} sends no more: its "
                "timeline, operations and threads are unknown"
            )
        return table_of(found, kind)

    def groups_of(self, name: str, by: Iterable[str], run: int | None = None) -> list[GroupUse]:
        """What is not known as a whole is unknown, and reported."""
        columns = tuple(by)
        query = [("by", ",".join(columns)), ("run", run)]
        try:
            found, cut = self._get(f"{_job(name)}/ended/groups", responses.parse_groups, query)
        except NotFoundError:  # also from a service of an older version
            return self._group_here(name, columns, run)
        if not cut:
            return found
        self._cut(f"{self.name} sends no more than {len(found):,} groups of processes: job {name} has more")
        return []

    def _group_here(self, name: str, by: tuple[str, ...], run: int | None) -> list[GroupUse]:
        from joblens.record.ends import EndedProcess
        from joblens.store.end_groups import group_processes

        try:
            table = self.whole_table(name, EndedProcess, run)
        except CutError:
            return []
        return group_processes(table.rows(range(len(table))), by)

    def _cut(self, problem: str) -> CutError:
        self._report([problem])
        return CutError(problem)

    def models(self) -> list[ReferenceModel]:
        try:
            found, problems = self._get("/models", responses.parse_models)
        except NotFoundError:
            raise ServerError(f"{self.name} has no models: its version of joblens is older") from None
        self._report(problems)
        return found

    def model(self, name: str) -> ReferenceModel:
        from joblens.store.models import NoModelError, parse_model

        missing = NoModelError(f"model {printable(name, 100)}: not found, or not yours")
        if not name or "/" in name or name in (".", ".."):  # its page would be another one
            raise missing
        try:
            return self._get(f"/models/{encode(name)}", lambda data: parse_model(self.name, data))
        except NotFoundError:
            raise missing from None

    def page(self, path: str) -> Any:
        """Return `/now`, `/sets` or `/me` as plain data."""
        from joblens.core.json_file import parse_json

        return self._get(path, parse_json)

    def close(self) -> None:
        self._connection.close()

    def _get(self, path: str, parse: Callable[[bytes], _Kind], query: Pairs = ()) -> _Kind:
        data = self._connection.get(path, query)
        try:
            return parse(data)
        except MalformedError as error:
            raise self._malformed(error.what) from None
        except (ValueError, RecursionError) as error:
            raise self._malformed(str(error)) from None

    def _malformed(self, what: str) -> ServerError:
        return ServerError(f"{self.name} is not a joblens service, or of another version: {what:.200}")


def _part(query: JobQuery) -> Pairs:
    return list(zip(("run", "between", "step", "from", "to"), query[1:]))


def _first_page(wanted: JobFilter) -> Pairs:
    return [*_query(wanted), ("limit", min(wanted.limit or _MOST_ON_A_PAGE, _MOST_ON_A_PAGE))]


def _query(wanted: JobFilter) -> Pairs:
    """A parameter that is not given has the service's default."""
    for name, value in wanted._asdict().items():
        if name in ("tags", "annotations"):
            yield from ((name[:-1], f"{key}:{text}") for key, text in value)
        elif name == "reverse":
            yield (name, "true" if value else None)
        elif name in ("since", "until"):
            yield name, None if value is None else repr(float(value))
        elif name not in ("limit", "cursor"):  # these are of a page
            yield name, value


def _job(name: str) -> str:
    """Raises NotFoundError for what is no id: its page would be another one, or none."""
    if not name or "/" in name or name in (".", ".."):
        raise NotFoundError(not_found(name))
    return f"/jobs/{encode(name)}"
