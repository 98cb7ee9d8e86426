"""From a filter to SQL that reads few rows, whatever is asked for.

There are two ways. If a condition holds for few rows, these are found by its index, checked and sorted; they
are counted beforehand. Else the index of the order is followed, and each row is checked until the page is
full. Conditions on user, account, partition, state and cluster, and the scope, are one condition on the kind
of a job: there are few kinds, and each index of an order contains them. So conditions that hold for many jobs
each and for none together are counted together, and rows that do not match are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from joblens.core.errors import UsageError
from joblens.store.catalog.cursor import Cursor, is_upwards, parse_cursor
from joblens.store.catalog.dialect import SQLITE, Dialect
from joblens.store.catalog.listing import KIND, SORTS, JobFilter
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.lake.columns import storable

Count = Callable[[str, Sequence[Any]], int]
_FEW = 50_000  # rows that are found by an index and sorted in less than 100 ms
_MOST = 1 << 31  # of a limit; SQLite has 63 bits
_NEVER_UNKNOWN = frozenset(("start", "user", "name"))
_LEAST = {"user": "''", "name": "''"}  # of others 0: times and amounts are not negative
_LAST = "\U0010ffff"


class Term(NamedTuple):
    """A condition in two forms: to find rows by an index, and to check a row."""

    rows: str  # selects the numbers of the jobs
    check: str
    values: list[Any]
    indexed: bool = False  # whether `check` itself uses an index
    order: str = ""  # `start`, or the column that has one value: that index is in order of start

    @property
    def find(self) -> str:
        return self.check if self.indexed else f"number IN ({self.rows})"

    def is_sorted(self, sort: str) -> bool:
        """Whether the index is in this order."""
        return self.order != "" and sort in ("start", self.order)


class Query(NamedTuple):
    condition: str
    values: list[Any]
    order: str
    sorted_by_index: bool = True  # else the rows that are found are to be sorted


class _Condition(NamedTuple):
    """A part of a condition on a row of jobs. The text is empty if there is none."""

    text: str
    values: list[Any]


def make_terms(wanted: JobFilter, scope: Scope = ALL, dialect: Dialect = SQLITE) -> list[Term]:
    """Return the conditions of a filter; those that usually hold for the fewest jobs come first."""
    times, kinds = _times(wanted), _kinds(wanted, scope, dialect)
    found = [_named("tags", *pair) for pair in wanted.tags]
    found += [_named("annotations", *pair) for pair in wanted.annotations]
    if wanted.array is not None:
        found.append(prefix_term(storable(f"{wanted.array}_"), " AND shown_id = id"))
    if wanted.node is not None:
        found.append(_node_term(storable(wanted.node)))
    if wanted.exit_code is not None:
        code = _Condition("exit_code = ?", [max(-_MOST, min(wanted.exit_code, _MOST))])
        found.append(_indexed([code, times], "exit_code"))
    user = _single_user(wanted, scope)
    if user is not None:
        found.append(_indexed([_Condition('"user" = ?', [user]), times], "user"))
    if wanted.name is not None:
        found.append(_name_term(storable(wanted.name), kinds, times, dialect))
    if kinds.text:
        found.append(_indexed([kinds, times]))
    elif times.text:
        found.append(_indexed([times], "start"))
    return found


def _single_user(wanted: JobFilter, scope: Scope) -> str | None:
    if wanted.user is not None:
        return storable(wanted.user)
    users = () if scope.everything or scope.accounts else scope.condition()[1]
    return users[0] if len(users) == 1 else None


def _times(wanted: JobFilter) -> _Condition:
    between = [(">=", wanted.since), ("<=", wanted.until)]
    found = [(f"start {sign} ?", value) for sign, value in between if value is not None]
    return _Condition(" AND ".join(text for text, _ in found), [value for _, value in found])


def _kinds(wanted: JobFilter, scope: Scope, dialect: Dialect) -> _Condition:
    equal = {name: getattr(wanted, name) for name in KIND}
    conditions = [f'"{name}" = ?' for name, value in equal.items() if value is not None]
    values = [storable(value) for value in equal.values() if value is not None]
    if not scope.everything:
        allowed, names = scope.condition()
        conditions.append(allowed)
        values += names
    if not conditions:
        return _Condition("", [])
    numbers = f"SELECT number FROM kinds WHERE {' AND '.join(conditions)}"
    return _Condition(dialect.one_of.format("kind", numbers), values)


def _union(conditions: Iterable[str]) -> str:
    return " UNION ALL ".join(f"SELECT number FROM jobs WHERE {it}" for it in conditions)


def _indexed(parts: Iterable[_Condition], order: str = "") -> Term:
    """A condition that begins with the column of an index."""
    known = [part for part in parts if part.text]
    text = " AND ".join(part.text for part in known)
    values = [value for part in known for value in part.values]
    return Term(_union([text]), text, values, indexed=True, order=order)


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


def _name_term(pattern: str, kinds: _Condition, times: _Condition, dialect: Dialect) -> Term:
    """With * and ?. There are usually far fewer names than jobs. The index of names contains the kind."""
    if "*" not in pattern and "?" not in pattern:
        return _indexed([_Condition("name = ?", [pattern]), times], "name")
    values = [dialect.make_pattern(pattern), *kinds.values]
    more = f" AND {dialect.plus}{kinds.text}" if kinds.text else ""
    matches = dialect.matches
    if pattern.find("*") == len(pattern) - 1 and "?" not in pattern:
        # A range of the index (https://www.sqlite.org/optoverview.html#the_like_optimization).
        found = matches.format("name") + more
        return Term(_union([found]), found, values)
    of_names = "SELECT jobs.number FROM names CROSS JOIN jobs WHERE jobs.name = names.name AND "
    return Term(of_names + matches.format("names.name") + more, matches.format("name") + more, values)


def prefix_term(text: str, of_id: str = "", of_both: str = "") -> Term:
    """Jobs whose id, as their scheduler or as people write it, begins with a text."""
    begins = "{0} > ? AND {0} < ?" + of_both
    either = [begins.format("id") + of_id, begins.format("shown_id") + " AND shown_id != id"]
    return Term(_union(either), f"({' OR '.join(either)})", [text, text + _LAST] * 2)


def indexes(wanted: JobFilter, scope: Scope) -> set[str]:
    """Return the names of the indexes that a plan may use."""
    needed = {wanted.sort, "start"} | {
        it for it in ("node", "name", "array") if getattr(wanted, it) is not None
    }
    needed |= {"nodes"} if wanted.node is not None else set()
    needed |= {it for it in ("tags", "annotations") if getattr(wanted, it)}
    needed |= {"exit"} if wanted.exit_code is not None else set()
    needed |= {"user"} if _single_user(wanted, scope) is not None else set()
    return needed | ({"kind"} if _kinds(wanted, scope, SQLITE).text else set())


def plan(wanted: JobFilter, terms: Sequence[Term], count: Count, dialect: Dialect = SQLITE) -> list[Query]:
    """Return queries whose rows, one after the other, are the page. Raises UsageError."""
    if wanted.sort not in SORTS:
        raise UsageError(f"jobs can be sorted by {', '.join(SORTS)}, and not by {wanted.sort!r}")
    cursor = parse_cursor(wanted)
    best = _choose(terms, count, wanted.sort)
    found = "" if best is None else best.find
    conditions = [found, *(f"{dialect.plus}({it.check})" for it in terms if it is not best)]
    values = [
        *(best.values if best else ()),
        *(it for term in terms if term is not best for it in term.values),
    ]
    parts = _parts(wanted, cursor)
    if best is None or best.is_sorted(wanted.sort):
        return [_query(wanted, [*conditions, part], [*values, *more], "") for part, more in parts]
    either = " OR ".join(f"({part or 'TRUE'})" for part, _ in parts)
    rest = [value for _, more in parts for value in more]
    found_rows = _query(
        wanted, [*conditions, f"{dialect.plus}({either})"], [*values, *rest], dialect.plus, " NULLS LAST"
    )
    return [found_rows._replace(sorted_by_index=False)]


def _choose(terms: Sequence[Term], count: Count, sort: str) -> Term | None:
    """Return the condition to find rows by; None if each holds for very many."""
    fewest, best = _FEW, None
    for term in terms:
        number = count(f"SELECT count(*) FROM ({term.rows} LIMIT {fewest}) AS found", term.values)
        if number < fewest:
            fewest, best = max(number, 1), term
    return best or next((term for term in terms if term.is_sorted(sort)), None)


def _parts(wanted: JobFilter, cursor: Cursor | None) -> list[tuple[str, list[Any]]]:
    """Return conditions that cut the order into parts, so that an index can be followed in each of them."""
    column, after = f'"{SORTS[wanted.sort]}"', ">" if wanted.reverse else "<"
    unknown: list[tuple[str, list[Any]]] = []
    if wanted.sort not in _NEVER_UNKNOWN:
        unknown = [(f"{column} IS NULL", [])]
    if cursor is None:
        # All that are known: with a limit of a few rows SQLite would sort the whole table, but for a range.
        return [(f"{column} >= {_LEAST.get(wanted.sort, '0')}", []), *unknown]
    tie = "(start, id, cluster)" if wanted.sort != "start" else "(id, cluster)"
    places = (
        [cursor.start, cursor.id, cursor.cluster] if wanted.sort != "start" else [cursor.id, cursor.cluster]
    )
    rest = f"{tie} {after} ({', '.join('?' * len(places))})"
    if cursor.value is None:
        return [(f"{condition} AND {rest}", places) for condition, _ in unknown] or [("FALSE", [])]
    beyond = f"{column} {'>' if is_upwards(wanted) else '<'} ?"
    return [(f"{column} = ? AND {rest}", [cursor.value, *places]), (beyond, [cursor.value]), *unknown]


def _query(
    wanted: JobFilter, conditions: Sequence[str], values: list[Any], sign: str, nulls: str = ""
) -> Query:
    columns = dict.fromkeys((SORTS[wanted.sort], "start", "id", "cluster"))
    way = "ASC" if wanted.reverse else "DESC"
    order = [f'{sign}"{column}" {way}' for column in columns]
    order[0] = f'{sign}"{SORTS[wanted.sort]}" {"ASC" if is_upwards(wanted) else "DESC"}{nulls}'
    limit = f" LIMIT {min(wanted.limit, _MOST):d}" if wanted.limit > 0 else ""
    return Query(" AND ".join(filter(None, conditions)), values, f"ORDER BY {', '.join(order)}{limit}")
