"""From a filter to SQL that reads few rows, whatever is asked for.

There are two ways. If a condition holds for few rows, these are found by its index, checked and sorted; they
are counted beforehand. Else the index of the order is followed, and each row is checked until the page is
full. Conditions on user, account, partition, state and cluster, and the scope, are one condition on the kind
of a job: there are few kinds, and each index of an order contains them. So conditions that hold for many jobs
each and for none together are counted together, and rows that do not match are not read.

For thousands of rows, to read them all costs more than to follow the order a little: this is tried first, as
far as twice the entries in which the page should be. If it is not full then, the rows are found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from joblens.core.errors import UsageError
from joblens.core.named_tuple import NamedTuple
from joblens.store.catalog.cursor import Cursor, is_upwards, parse_cursor
from joblens.store.catalog.dialect import SELECT, SQLITE, Dialect
from joblens.store.catalog.listing import KIND, SORTS, JobFilter
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.lake.columns import storable

Ask = Callable[[str, Sequence[Any]], Any]  # for the first value of the first row, None if there is no row
_FEW = 50_000  # rows that are found by an index and sorted in some 200 ms
_MANY_ENTRIES = 10  # of an index are read in the time of finding and sorting one row
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
    of_kind: bool = False  # whether each index of an order contains what is checked

    def find(self, dialect: Dialect) -> str:
        return self.check if self.indexed else dialect.one_of.format("number", self.rows)

    def is_sorted(self, sort: str) -> bool:
        """Whether the index is in this order."""
        return self.order != "" and sort in ("start", self.order)


class Query(NamedTuple):
    condition: str
    values: list[Any]
    order: str
    form: str = SELECT


class _Condition(NamedTuple):
    """A part of a condition on a row of jobs. The text is empty if there is none."""

    text: str
    values: list[Any]
    sorts: bool = True  # whether it is on the known values of the order


def make_terms(
    wanted: JobFilter, scope: Scope = ALL, dialect: Dialect = SQLITE, ask: Ask | None = None
) -> list[Term]:
    """Return the conditions of a filter; those that usually hold for the fewest jobs come first."""
    times, kinds = _times(wanted), _kinds(wanted, scope, dialect, ask)
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
        found.append(_indexed([_Condition('"user" = ?', [user]), times], "user", of_kind=True))
    if wanted.name is not None:
        found.append(_name_term(storable(wanted.name), kinds, times, dialect))
    if kinds.text:
        found.append(_indexed([kinds, times], of_kind=True))
    elif times.text:
        found.append(_indexed([times], "start", of_kind=True))
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


def _kinds(wanted: JobFilter, scope: Scope, dialect: Dialect, ask: Ask | None = None) -> _Condition:
    equal = {name: getattr(wanted, name) for name in KIND}
    conditions = [f'"{name}" = ?' for name, value in equal.items() if value is not None]
    values = [storable(value) for value in equal.values() if value is not None]
    if not scope.everything:
        allowed, names = scope.condition()
        conditions.append(allowed)
        values += names
    if not conditions:
        return _Condition("", [])
    condition = " AND ".join(conditions)
    if ask is not None and dialect.all_kinds:
        numbers = ask(dialect.all_kinds.format(condition=condition), values)
        return _Condition(dialect.is_kind, [numbers or "{}"])
    return _Condition(dialect.one_of.format("kind", f"SELECT number FROM kinds WHERE {condition}"), values)


def _union(conditions: Iterable[str]) -> str:
    return " UNION ALL ".join(f"SELECT number FROM jobs WHERE {it}" for it in conditions)


def _indexed(parts: Iterable[_Condition], order: str = "", *, of_kind: bool = False) -> Term:
    """A condition that begins with the column of an index."""
    known = [part for part in parts if part.text]
    text = " AND ".join(part.text for part in known)
    values = [value for part in known for value in part.values]
    return Term(_union([text]), text, values, indexed=True, order=order, of_kind=of_kind)


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


def plan(
    wanted: JobFilter, terms: Sequence[Term], ask: Ask, dialect: Dialect = SQLITE
) -> Iterator[list[Query]]:
    """Yield queries whose rows, one after the other, are the page if it is full. The last are in any case.

    Raises UsageError.
    """
    if wanted.sort not in SORTS:
        raise UsageError(f"jobs can be sorted by {', '.join(SORTS)}, and not by {wanted.sort!r}")
    parts = _parts(wanted, parse_cursor(wanted))
    best, number = _choose(terms, ask, wanted.sort)
    if best is None or best.is_sorted(wanted.sort):
        yield _follow(wanted, terms, best, parts, dialect)
        return
    ahead = _ahead(wanted, terms, number, ask, parts, dialect)
    if ahead:
        yield _follow(wanted, terms, None, ahead, dialect)
    checks, values = _conditions(terms, best, dialect)
    either = " OR ".join(f"({part.text or 'TRUE'})" for part in parts)
    values += [value for part in parts for value in part.values]
    found_rows = _query(wanted, [*checks, f"{dialect.plus}({either})"], values, dialect.plus, " NULLS LAST")
    yield [found_rows._replace(form=dialect.find_then_sort)]


def _conditions(terms: Sequence[Term], best: Term | None, dialect: Dialect) -> tuple[list[str], list[Any]]:
    """Return them with their values: rows are found by the best, if any, and checked by the others."""
    others = [term for term in terms if term is not best and term.order != "user"]  # a kind has one user
    texts = ["" if best is None else best.find(dialect), *(f"{dialect.plus}({it.check})" for it in others)]
    return texts, [value for term in ([best] if best else []) + others for value in term.values]


def _follow(
    wanted: JobFilter, terms: Sequence[Term], best: Term | None, parts: Iterable[_Condition], dialect: Dialect
) -> list[Query]:
    checks, values = _conditions(terms, best, dialect)
    queries = [_query(wanted, [*checks, part.text], [*values, *part.values], "") for part in parts]
    in_index = wanted.limit > 0 and all(term.of_kind for term in terms)
    return [it._replace(form=dialect.in_order if in_index else SELECT) for it in queries]


def _choose(terms: Sequence[Term], ask: Ask, sort: str) -> tuple[Term | None, int]:
    """Return the condition to find rows by, and how many it finds; None if each holds for very many."""
    fewest, best = _FEW, None
    for term in terms:
        number = ask(f"SELECT count(*) FROM ({term.rows} LIMIT {fewest}) AS found", term.values)
        if number < fewest:
            fewest, best = max(number, 1), term
    return best or next((term for term in terms if term.is_sorted(sort)), None), fewest


def _ahead(
    wanted: JobFilter,
    terms: Sequence[Term],
    number: int,
    ask: Ask,
    parts: Sequence[_Condition],
    dialect: Dialect,
) -> list[_Condition]:
    """Return the parts of the order in which the page should be, if these are read faster than the rows."""
    if wanted.limit <= 0 or not all(term.of_kind for term in terms):
        return []
    entries = 2 * wanted.limit * int(ask(dialect.count_jobs, []) or 0) // number
    if entries > _MANY_ENTRIES * number:
        return []
    column, upwards = f'"{SORTS[wanted.sort]}"', is_upwards(wanted)
    known = [part for part in parts if part.sorts]
    if not known:
        return []
    *before, last = known
    way = "ASC" if upwards else "DESC"
    query = f"SELECT {column} FROM jobs WHERE {last.text} ORDER BY {column} {way} LIMIT 1 OFFSET {entries}"
    end = ask(query, last.values)
    if end is None:
        return []
    within = _Condition(f"{column} {'<=' if upwards else '>='} ?", [end])
    if upwards or before:  # else it is the bound itself: of two SQLite would use any
        within = _Condition(f"{last.text} AND {within.text}", [*last.values, end])
    return [*before, within]


def _parts(wanted: JobFilter, cursor: Cursor | None) -> list[_Condition]:
    """Return conditions that cut the order into parts, so that an index can be followed in each of them."""
    column, after = f'"{SORTS[wanted.sort]}"', ">" if wanted.reverse else "<"
    unknown: list[_Condition] = []
    if wanted.sort not in _NEVER_UNKNOWN:
        unknown = [_Condition(f"{column} IS NULL", [], sorts=False)]
    if cursor is None:
        # All that are known: with a limit of a few rows SQLite would sort the whole table, but for a range.
        return [_Condition(f"{column} >= {_LEAST.get(wanted.sort, '0')}", []), *unknown]
    tie = "(start, id, cluster)" if wanted.sort != "start" else "(id, cluster)"
    places = (
        [cursor.start, cursor.id, cursor.cluster] if wanted.sort != "start" else [cursor.id, cursor.cluster]
    )
    rest = f"{tie} {after} ({', '.join('?' * len(places))})"
    if cursor.value is None:
        last = [_Condition(f"{it.text} AND {rest}", places, sorts=False) for it in unknown]
        return last or [_Condition("FALSE", [], sorts=False)]
    beyond = f"{column} {'>' if is_upwards(wanted) else '<'} ?"
    equal = _Condition(f"{column} = ? AND {rest}", [cursor.value, *places])
    return [equal, _Condition(beyond, [cursor.value]), *unknown]


def _query(
    wanted: JobFilter, conditions: Sequence[str], values: list[Any], sign: str, nulls: str = ""
) -> Query:
    columns = dict.fromkeys((SORTS[wanted.sort], "start", "id", "cluster"))
    way = "ASC" if wanted.reverse else "DESC"
    order = [f'{sign}"{column}" {way}' for column in columns]
    order[0] = f'{sign}"{SORTS[wanted.sort]}" {"ASC" if is_upwards(wanted) else "DESC"}{nulls}'
    limit = f" LIMIT {min(wanted.limit, _MOST):d}" if wanted.limit > 0 else ""
    return Query(" AND ".join(filter(None, conditions)), values, f"ORDER BY {', '.join(order)}{limit}")
