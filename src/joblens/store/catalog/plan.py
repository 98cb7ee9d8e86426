"""From a filter to SQL that reads few rows, whatever is asked for.

There are two ways. If a condition holds for few rows, these are found by its index, checked and sorted; they
are counted beforehand. Else the index of the order is followed, and each row is checked until the page is
full: since every condition holds for many rows, that is soon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from joblens.core.errors import UsageError
from joblens.store.catalog.cursor import Cursor, is_upwards, parse_cursor
from joblens.store.catalog.listing import SORTS, JobFilter
from joblens.store.catalog.scope import Scope
from joblens.store.lake.columns import storable

Count = Callable[[str, Sequence[Any]], int]
_FEW = 50_000  # rows that are found by an index and sorted in less than 100 ms
_MOST = 1 << 31  # of a limit; SQLite has 63 bits
_NEVER_UNKNOWN = frozenset(("start", "user", "name"))
_INDEXED = ("user", "account", "partition", "state", "cluster", "node", "name", "array")
_LAST = "\U0010ffff"


class Term(NamedTuple):
    """A condition in two forms: to find rows by an index, and to check a row."""

    rows: str  # selects the numbers of the jobs
    check: str
    values: list[Any]
    direct: bool = False  # whether `check` itself uses an index that continues with the start

    @property
    def find(self) -> str:
        return self.check if self.direct else f"number IN ({self.rows})"


class Query(NamedTuple):
    condition: str
    values: list[Any]
    order: str


def scope_terms(scope: Scope) -> list[Term]:
    """Return the condition of a scope, unless it is everything."""
    if scope.everything:
        return []
    condition, values = scope.condition()
    if len(values) == 1:
        return [_direct(condition, values)]
    # Each column has its index: a condition on both would use neither.
    parts = (scope._replace(accounts=frozenset()), scope._replace(users=frozenset()))
    return [Term(_union(part.condition()[0] for part in parts), condition, values)]


def _union(conditions: Iterable[str]) -> str:
    return " UNION ALL ".join(f"SELECT number FROM jobs WHERE {it}" for it in conditions)


def _direct(condition: str, values: list[Any]) -> Term:
    return Term(_union([condition]), condition, values, direct=True)


def filter_terms(wanted: JobFilter) -> list[Term]:
    """Return the conditions of a filter; those that usually hold for the fewest jobs come first."""
    found = [_named("tags", *pair) for pair in wanted.tags]
    found += [_named("annotations", *pair) for pair in wanted.annotations]
    if wanted.array is not None:
        found.append(prefix_term(storable(f"{wanted.array}_"), " AND shown_id = id"))
    if wanted.node is not None:
        found.append(_node_term(storable(wanted.node)))
    if wanted.user is not None:
        found.append(_equal("user", wanted.user))
    if wanted.name is not None:
        found.append(_name_term(storable(wanted.name)))
    found += [
        _equal(column, value)
        for column in ("account", "partition", "state", "cluster")
        if (value := getattr(wanted, column)) is not None
    ]
    times = [(">=", wanted.since), ("<=", wanted.until)]
    if between := [(f"start {sign} ?", value) for sign, value in times if value is not None]:
        condition = " AND ".join(text for text, _ in between)
        found.append(_direct(condition, [value for _, value in between]))
    return found


def _equal(column: str, value: str) -> Term:
    return _direct(f"{column} = ?", [storable(value)])


def _named(table: str, name: str, value: str) -> Term:
    return _linked(table, "it.name = ? AND it.value = ?", [storable(name), storable(value)])


def _node_term(name: str) -> Term:
    """The first node of a job is in its own row."""
    others = _linked("job_nodes", "it.node = ?", [name])
    rows = f"{_union(['node = ?'])} UNION ALL {others.rows}"
    return Term(rows, f"(node = ? OR {others.check})", [name, name])


def _linked(table: str, condition: str, values: list[Any]) -> Term:
    """A condition on rows of another table that belong to a job."""
    check = f"EXISTS (SELECT 1 FROM {table} AS it WHERE job = number AND {condition})"
    return Term(f"SELECT job FROM {table} AS it WHERE {condition}", check, values)


def _name_term(pattern: str) -> Term:
    """With * and ?. There are usually far fewer names than jobs."""
    if "*" not in pattern and "?" not in pattern:
        return _equal("name", pattern)
    values = [pattern.replace("[", "[[]")]
    if pattern.find("*") == len(pattern) - 1 and "?" not in pattern:
        # A range of the index (https://www.sqlite.org/optoverview.html#the_like_optimization).
        return Term(_union(["name GLOB ?"]), "name GLOB ?", values)
    rows = "SELECT number FROM names CROSS JOIN jobs USING (name) WHERE names.name GLOB ?"
    return Term(rows, "name GLOB ?", values)


def prefix_term(text: str, of_id: str = "", of_both: str = "") -> Term:
    """Jobs whose id, as their scheduler or as people write it, begins with a text."""
    begins = "{0} > ? AND {0} < ?" + of_both
    either = [begins.format("id") + of_id, begins.format("shown_id") + " AND shown_id != id"]
    return Term(_union(either), f"({' OR '.join(either)})", [text, text + _LAST] * 2)


def indexes(wanted: JobFilter, scope: Scope) -> set[str]:
    """Return the names of the indexes that a plan may use."""
    needed = {wanted.sort, "start"} | {it for it in _INDEXED if getattr(wanted, it) is not None}
    needed |= {"nodes"} if wanted.node is not None else set()
    needed |= {it for it in ("tags", "annotations") if getattr(wanted, it)}
    needed |= {"user"} if scope.users else set()
    return needed | ({"account"} if scope.accounts else set())


def plan(wanted: JobFilter, terms: Sequence[Term], count: Count) -> list[Query]:
    """Return queries whose rows, one after the other, are the page. Raises UsageError."""
    if wanted.sort not in SORTS:
        raise UsageError(f"jobs can be sorted by {', '.join(SORTS)}, and not by {wanted.sort!r}")
    cursor = parse_cursor(wanted)
    best = _choose(terms, count, wanted.sort == "start")
    found = "" if best is None else best.find
    conditions = [found, *(f"+({it.check})" for it in terms if it is not best)]
    values = [
        *(best.values if best else ()),
        *(it for term in terms if term is not best for it in term.values),
    ]
    parts = _parts(wanted, cursor)
    in_order = best is None or (
        best.direct and (wanted.sort == "start" or best.check == f"{wanted.sort} = ?")
    )
    if in_order:
        return [_query(wanted, [*conditions, part], [*values, *more], "") for part, more in parts]
    # A plus keeps SQLite from following an index (https://www.sqlite.org/optoverview.html#uplus).
    either = " OR ".join(f"({part or 1})" for part, _ in parts)
    rest = [value for _, more in parts for value in more]
    return [_query(wanted, [*conditions, f"+({either})"], [*values, *rest], "+")]


def _choose(terms: Sequence[Term], count: Count, by_start: bool) -> Term | None:
    """Return the condition to find rows by; None if each holds for very many."""
    fewest, best = _FEW, None
    for term in terms:
        number = count(f"SELECT count(*) FROM ({term.rows} LIMIT {fewest})", term.values)
        if number < fewest:
            fewest, best = max(number, 1), term
    if best is None and by_start:
        return next((term for term in terms if term.direct), None)
    return best


def _parts(wanted: JobFilter, cursor: Cursor | None) -> list[tuple[str, list[Any]]]:
    """Return conditions that cut the order into parts, so that an index can be followed in each of them."""
    column, after = SORTS[wanted.sort], ">" if wanted.reverse else "<"
    unknown: list[tuple[str, list[Any]]] = []
    if wanted.sort not in _NEVER_UNKNOWN:
        unknown = [(f"{column} IS NULL", [])]
    if cursor is None:
        return [(f"{column} IS NOT NULL", []), *unknown] if unknown else [("", [])]
    tie = "(start, id, cluster)" if wanted.sort != "start" else "(id, cluster)"
    places = (
        [cursor.start, cursor.id, cursor.cluster] if wanted.sort != "start" else [cursor.id, cursor.cluster]
    )
    rest = f"{tie} {after} ({', '.join('?' * len(places))})"
    if cursor.value is None:
        return [(f"{condition} AND {rest}", places) for condition, _ in unknown] or [("0", [])]
    beyond = f"{column} {'>' if is_upwards(wanted) else '<'} ?"
    return [(f"{column} = ? AND {rest}", [cursor.value, *places]), (beyond, [cursor.value]), *unknown]


def _query(wanted: JobFilter, conditions: Sequence[str], values: list[Any], sign: str) -> Query:
    columns = dict.fromkeys((SORTS[wanted.sort], "start", "id", "cluster"))
    way = "ASC" if wanted.reverse else "DESC"
    order = [f"{sign}{column} {way}" for column in columns]
    order[0] = f"{sign}{SORTS[wanted.sort]} {'ASC' if is_upwards(wanted) else 'DESC'}"
    if sign:
        order[0] += " NULLS LAST"
    limit = f" LIMIT {min(wanted.limit, _MOST):d}" if wanted.limit > 0 else ""
    return Query(" AND ".join(filter(None, conditions)), values, f"ORDER BY {', '.join(order)}{limit}")
