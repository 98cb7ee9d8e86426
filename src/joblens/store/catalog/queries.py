"""Questions about jobs that both catalogs answer with the same SQL, and what else a catalog can do."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from joblens.core.named_tuple import NamedTuple
from joblens.store.catalog.dialect import Dialect
from joblens.store.catalog.listing import COLUMNS, SEVERAL, Identity, JobFilter, JobRow, check_id, name_nodes
from joblens.store.catalog.plan import Term, make_terms, plan, prefix_term
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.lake.columns import storable

if TYPE_CHECKING:
    from joblens.record.report import JobRecord

NAMES = ", ".join(f'"{name}"' for name in COLUMNS)
LISTED = f"{NAMES}, tags"


class Run(NamedTuple):
    """One of those that an id has had."""

    cluster: str
    id: str
    start: float
    end: float | None
    state: str | None


def _border(end: float, start: float) -> float:
    """Of two runs, with a microsecond for a row at the end of the first, which is also the other's start."""
    return (min(end, start) + start) / 2 + 1e-6


def choose_run(runs: Sequence[Run], number: int) -> Run:
    """Counted from 1. LookupError if there is none."""
    if not 1 <= number <= len(runs):
        have = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        raise LookupError(f"there is no run {number}: this id has {have}")
    return runs[number - 1]


_NEAR = 180.0  # seconds between two runs, whose late and early samples can be mixed
_DIGITS = "0123456789"
_IDENTITY = "cluster, id, start"
IS_IDENTITY = f"({_IDENTITY}) = (?, ?, ?)"
_AT_ONCE = 1000  # identities in one query


def _begins_with(text: str) -> Term:
    """A number goes on with no further digit: that would be another number."""
    is_number = text[0] in _DIGITS and text[-1] in _DIGITS
    further = f" AND substr({{0}}, {len(text) + 1}, 1) NOT BETWEEN '0' AND '9'"
    return prefix_term(text, of_both=further if is_number else "")


class JobCatalog(ABC):
    """The jobs of a store: the index of record files, or the tables of a database."""

    dialect: Dialect

    def __init__(self) -> None:
        self.problems: list[str] = []
        # For which new records are not looked for again; another connection to the same file indexes them.
        self.fresh_seconds = 0.0

    @abstractmethod
    def _ask(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query that contains ? for each value."""

    @abstractmethod
    def report(self, identity: Identity, scope: Scope = ALL) -> JobRecord:
        """All of it, from its record. LookupError if that was just removed."""

    @abstractmethod
    def prepare(self) -> None:
        """Create all indexes, so that no later question has to."""

    @abstractmethod
    def forget(self, day: str) -> None:
        """Index a day again: its record files have changed."""

    @abstractmethod
    def remove(self, identities: Collection[Identity]) -> None:
        """Remove the records of jobs, all versions of them. Raises OutsideError and OSError."""

    @abstractmethod
    def check(self) -> None:
        """Compare what is listed with the records, and repair it; `problems` says what was wrong."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection."""

    # Asking. Each question is restricted to a scope: jobs outside of it do not exist for it.

    def jobs(self, wanted: JobFilter, scope: Scope = ALL) -> list[JobRow]:
        """Return one page, or all if there is no limit. Raises UsageError."""
        return [_listed(row) for row in self._page(LISTED, wanted, scope)]

    def shown_ids(self, wanted: JobFilter, scope: Scope = ALL) -> set[str]:
        """Return the ids as people write them, without the rest of the rows. Raises UsageError."""
        return {str(row[0]) for row in self._page("shown_id", wanted, scope)}

    def _page(self, columns: str, wanted: JobFilter, scope: Scope, more: Sequence[Term] = ()) -> list[Any]:
        def ask(query: str, values: Sequence[Any]) -> Any:
            rows = self._ask(query, values)
            return rows[0][0] if rows else None

        found: list[Any] = []
        terms = [*more, *make_terms(wanted, scope, self.dialect, ask)]
        for queries in plan(wanted, terms, ask, self.dialect):
            found = []
            for query in queries:
                condition = query.condition or "TRUE"
                text = query.form.format(
                    columns=columns, listed=LISTED, condition=condition, order=query.order
                )
                found += self._ask(text, query.values)
                if 0 < wanted.limit <= len(found):
                    return found[: wanted.limit]
        return found

    def count(self, scope: Scope = ALL) -> int:
        return int(self._select("count(*)", "", (), "", scope)[0][0])

    def find(self, text: str, scope: Scope = ALL) -> list[Identity]:
        """Jobs with that id, or else whose id begins so, the newest first; `last` is the newest of all.

        An id can be written as the scheduler shows it, 4200_7 and 4300+1, and with its cluster: 4242@lab.
        4242 is the beginning of 4242_7 and of 4242.server, and not of 42420.
        """
        found = [] if text == "last" else self._with_id(text, scope)[-1:]
        return [(run.cluster, run.id, run.start) for run in found] or self._without_id(text, scope)

    def _without_id(self, text: str, scope: Scope) -> list[Identity]:
        """Return the jobs that are meant by something else than a whole id."""
        if text == "last":
            return self._page(_IDENTITY, JobFilter(limit=1), scope)
        if not text:
            return []
        return self._page(_IDENTITY, JobFilter(limit=20), scope, [_begins_with(storable(text))])

    def name_of(self, identity: Identity, scope: Scope = ALL) -> str:
        found = self._select("shown_id", IS_IDENTITY, identity, "", scope)
        return str(found[0][0]) if found else identity[1]

    def runs(self, text: str, scope: Scope = ALL) -> list[Run]:
        """All with the id of the job that is meant, the oldest first; nothing if it could be several jobs."""
        found = self._with_id(text, scope)
        if not found and len(meant := self._without_id(text, scope)) == 1:
            cluster, id, _ = meant[0]
            found = self._with_id(f"{id}@{cluster}", scope)
        return found

    def _with_id(self, text: str, scope: Scope) -> list[Run]:
        """Return the runs with this id: jobs are requeued, ids are reused, and clusters have their own."""
        check_id(text)
        columns, oldest = f'{_IDENTITY}, "end", state', "ORDER BY start, id"
        # A separate index serves this condition: most jobs have only one id.
        either = "(id = ? OR (shown_id = ? AND shown_id != id))"
        found = self._select(columns, either, [storable(text)] * 2, oldest, scope)
        name, at, cluster = text.rpartition("@")
        if not found and at:
            values = [storable(name), storable(name), storable(cluster)]
            found = self._select(
                columns, f"{either} AND {self.dialect.plus}cluster = ?", values, oldest, scope
            )
        return [Run(*row) for row in found]

    def borders(self, identity: Identity, last: float) -> tuple[float, float]:
        """Return the moments halfway to the runs with this id before and after it, which ended `last`.

        A row in between belongs to this run. Where no other run is near, they are infinite.
        """
        cluster, id, start = identity
        columns, named = 'start, coalesce("end", start)', f"id = ? AND {self.dialect.plus}cluster = ?"
        runs = self._select(columns, named, [id, cluster], "ORDER BY start", ALL)
        ends = [end for begin, end in runs if begin < start < end + _NEAR]
        starts = [begin for begin, _ in runs if start < begin < last + _NEAR]
        return (
            _border(ends[-1], start) if ends else -math.inf,
            _border(last, starts[0]) if starts else math.inf,
        )

    def written(self, identities: Iterable[Identity], scope: Scope = ALL) -> dict[Identity, int]:
        """Return when their records were written, for those that are known."""
        allowed, more = scope.condition()
        found: dict[Identity, int] = {}
        rest = iter(identities)
        while some := list(islice(rest, _AT_ONCE)):
            places = ", ".join(["(?, ?, ?)"] * len(some))
            condition = f"(id, cluster, start) IN (VALUES {places}) AND {allowed}"
            values = [it for cluster, id, start in some for it in (id, cluster, start)]
            rows = self._ask(f"SELECT {_IDENTITY}, written FROM jobs WHERE {condition}", [*values, *more])
            found |= {(row[0], row[1], row[2]): int(row[3]) for row in rows}
        return found

    def _select(
        self, columns: str, condition: str, values: Sequence[Any], order: str, scope: Scope
    ) -> list[Any]:
        allowed, more = scope.condition(self.dialect.plus if condition else "")
        conditions = " AND ".join(filter(None, (condition, "" if scope.everything else allowed)))
        where = f"WHERE {conditions}" if conditions else ""
        return self._ask(f"SELECT {columns} FROM jobs {where} {order}", [*values, *more])


def _listed(row: Sequence[Any]) -> JobRow:
    """Make a row of a listing from one of the catalog."""
    found = JobRow._make((*row[:-1], dict(sorted(json.loads(row[-1]).items())) if row[-1] else {}))
    if found.nodes and SEVERAL in found.nodes:
        return found._replace(nodes=name_nodes(found.nodes.split(SEVERAL)))
    return found


def identity_of(record: JobRecord) -> Identity:
    return record.job.cluster, record.job.id, record.job.start
