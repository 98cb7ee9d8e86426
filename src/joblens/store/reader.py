"""The one interface through which samples are read, and its implementation over the lake.

joblens.store.memory_reader has another, over samples in memory. Counters come raw;
`joblens.analysis.series.rates` makes rates of them. SQL does not leave this module.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from joblens.core.errors import OutsideError
from joblens.core.named_tuple import NamedTuple
from joblens.record.ends import SETS, TEXTS, EndedProcess, EndedThread, merge_sources
from joblens.record.report import ProcessUse
from joblens.store.end_table import ORDER, EndTable, table_of, without_mask
from joblens.store.lake.columns import identifier

if TYPE_CHECKING:
    from joblens.store.lake.columns import Arrays
    from joblens.store.lake.lake import Files, Lake

# The columns that name what was measured, and the numbers among those that only describe it.
KEYS = frozenset("time pid start parent group session terminal uid tid state".split())
NO_LABELS: Mapping[str, str] = {}
SPAN_MARGIN = 60.0  # seconds: the last sample follows the end
WAITING_FOR_DISK = 68  # the letter D of proc_pid_stat(5)
# Columns of a process whose highest value is taken, and those whose sum is its memory.
PEAKS = (
    "user_seconds", "system_seconds", "threads", "read_bytes", "written_bytes", "rss_file_bytes",
    "run_delay_seconds",
)  # fmt: skip
MEMORY = ("rss_anon_bytes", "rss_shmem_bytes")
_NUMBERS = ("BIGINT", "DECIMAL", "DOUBLE", "HUGEINT", "INTEGER", "FLOAT")
_SAMPLE = {"time": "TIMESTAMP_NS"} | dict.fromkeys(("cluster", "jobid", "node"), "VARCHAR")
_NODE = "coalesce(node, '')"
_MOST_BREAKS = 10_000
_IN_ORDER = f"ORDER BY {', '.join(ORDER)}, place"
_PROCESS = _SAMPLE | dict.fromkeys(("name", "command"), "VARCHAR") | dict.fromkeys(
    (
        "pid", "start", "parent", "threads", "state", "rss_anon_bytes", "rss_shmem_bytes", "rss_file_bytes",
        "read_bytes", "written_bytes",
    ),
    "BIGINT",
) | dict.fromkeys(("user_seconds", "system_seconds", "run_delay_seconds"), "DOUBLE")  # fmt: skip


End = TypeVar("End", EndedProcess, EndedThread)


class Span(NamedTuple):
    """The job, and the time in seconds since 1970 that is meant."""

    job: str
    start: float
    end: float
    cluster: str = ""  # where it is given, only of this one: two clusters can have a job of one number
    nodes: tuple[str, ...] = ()  # if given, all samples of these, also those without a job
    after: float = -math.inf  # what began until then is of an earlier run with this id
    before: float = math.inf  # and what began later, of the next

    def dates(self) -> tuple[str, str]:
        """The first and the last."""
        first, last = (time.strftime("%Y-%m-%d", time.gmtime(max(t, 0))) for t in (self.start, self.end))
        return first, last

    def nanoseconds(self) -> dict[str, int]:
        return {"first": int(self.start * 1e9), "last": int(self.end * 1e9)}

    def around(self) -> Span:
        """Return it with what is sampled shortly before its start and after its end."""
        start, end = self.start - SPAN_MARGIN, self.end + SPAN_MARGIN
        return self._replace(start=max(start, self.after), end=min(end, self.before))

    def has_begin(self, moment: float) -> bool:
        return self.after < moment <= self.before

    def has_node(self, node: str) -> bool:
        return not self.nodes or node in self.nodes


class Series(NamedTuple):
    """Samples put together to at most so many points. Unknown is None."""

    times: list[float]  # of the last sample in each point
    last: dict[str, list[float | None]]  # what a counter stood at
    mean: dict[str, list[float | None]]
    peak: dict[str, list[float | None]]


class Break(NamedTuple):
    """Two successive samples of a job on a node, between which its counters were reset or not sampled."""

    before: float
    after: float
    counters: dict[str, tuple[float | None, float | None]]  # what they stood at, before and after


def find_breaks(
    looks: Iterable[tuple[float, Mapping[str, float | None]]], counters: Sequence[str], longest: float
) -> list[Break]:
    """Find breaks in all samples of a job on one node, in order of time."""
    found: list[Break] = []
    known: dict[str, float | None] = dict.fromkeys(counters)
    before: float | None = None
    for moment, values in looks:
        pairs = {name: (known[name], values.get(name)) for name in counters}
        back = any(old is not None and new is not None and new < old for old, new in pairs.values())
        if before is not None and (back or moment - before > longest):
            found.append(Break(before, moment, pairs))
        before = moment
        known.update((name, now) for name, (_, now) in pairs.items() if now is not None)
    return found


def _where(span: Span) -> tuple[str, dict[str, str | float]]:
    """A condition, and the values in it."""
    nodes = {f"node{number}": node for number, node in enumerate(span.nodes)}
    text = "time BETWEEN make_timestamp_ns($first) AND make_timestamp_ns($last) AND "
    text += "jobid IN ($job, '')" if nodes else "jobid = $job"
    if nodes:
        text += f" AND node IN ({', '.join('$' + name for name in nodes)})"
    if span.cluster:
        text += " AND cluster = $cluster"
    return text, {
        "job": span.job,
        **span.nanoseconds(),
        **nodes,
        **({"cluster": span.cluster} if span.cluster else {}),
    }


def _where_ended(span: Span) -> tuple[str, dict[str, str | float]]:
    """The same for rows of processes and threads, which can be written when the next run has begun."""
    text, values = _where(span)
    for sign, name, moment in ((">", "after", span.after), ("<=", "before", span.before)):
        if math.isfinite(moment):
            text += f" AND coalesce(began_seconds, epoch_ns(time) / 1e9) {sign} ${name}"
            values[name] = moment
    return text, values


def _make_series(rows: list[tuple[Any, ...]], names: list[str]) -> Series:
    """From the time of a stretch, and of each column what it was last, on average, and at most."""
    last, mean, peak = (
        {name: [row[1 + 3 * number + which] for row in rows] for number, name in enumerate(names)}
        for which in range(3)
    )
    return Series([float(row[0]) for row in rows], last, mean, peak)


def _end_type(name: str) -> str:
    return "VARCHAR" if name in TEXTS else "DOUBLE" if name.endswith("_seconds") else "BIGINT"


def _known(kind: type[End], name: str) -> str:
    """Return a column in SQL: unknown ones have their default, which is '' or a number."""
    default = kind._field_defaults[name]
    return identifier(name) if default is None else f"coalesce({identifier(name)}, {default!r})"


class Reader(Protocol):
    def series(self, span: Span, set_name: str, columns: Sequence[str], points: int) -> Series:
        """Over all that the set has a row for (devices, interfaces), added up."""
        return self.split(span, set_name, (), columns, points).get((), Series([], {}, {}, {}))

    def split(
        self,
        span: Span,
        set_name: str,
        labels: Sequence[str],
        columns: Sequence[str],
        points: int,
        only: Mapping[str, str] = NO_LABELS,
    ) -> dict[tuple[str, ...], Series]:
        """One for each combination of these labels, as texts; `only` of rows that have these labels."""

    def measured(self, span: Span, set_name: str) -> tuple[str, ...]: ...

    def processes(self, span: Span) -> list[ProcessUse]: ...

    def ends(self, span: Span, kind: type[End], most: int | None = None) -> list[End]:
        """Return the processes or threads recorded at their end, in order of their start; at most from that
        many rows, of which two can be of one process."""

    def count_ends(self, span: Span) -> tuple[int, int]:
        """Return how many processes were recorded at their end, and how many of these exactly."""

    def sample_times(self, span: Span) -> list[float]: ...

    def times_by_node(self, span: Span, set_name: str) -> dict[tuple[str, str], list[float]]:
        """Return the times of rows of the set, by cluster and node."""

    def breaks(
        self, span: Span, set_name: str, counters: Sequence[str], longest: float
    ) -> dict[str, list[Break]]:
        """Return, by node, where a counter decreased, or samples are further apart than that."""


class LakeReader(Reader):
    def __init__(self, lake: Lake) -> None:
        self.lake = lake

    def _files(self, set_name: str, span: Span) -> Files:
        times = span.nanoseconds()
        near = times["first"], times["last"]
        return self.lake.files(set_name, span.dates(), span.job, near, span.nodes)

    def split(
        self,
        span: Span,
        set_name: str,
        labels: Sequence[str],
        columns: Sequence[str],
        points: int,
        only: Mapping[str, str] = NO_LABELS,
    ) -> dict[tuple[str, ...], Series]:
        files = self._files(set_name, span)
        known = self.lake.schema(files)
        chosen = [name for name in dict.fromkeys(columns) if name in known]
        if not chosen:
            return {}
        # Over other keys the values of one moment are added up first.
        sums = [f"sum({name}) AS {name}" for name in map(identifier, chosen)]
        folded = [f"arg_max({name}, t), avg({name}), max({name})" for name in map(identifier, chosen)]
        names = [f"coalesce({identifier(name)}, '')" for name in labels]
        where, values = _where(span)
        for number, (name, text) in enumerate(only.items()):
            where += f" AND coalesce({identifier(name)}, '') = $only{number}"
            values[f"only{number}"] = text
        keys = [f"l{number}" for number in range(len(names))]
        named = [f"{name} AS {key}" for name, key in zip(names, keys)]
        rows = self.lake.query(
            files,
            dict.fromkeys(chosen, "DOUBLE") | _SAMPLE | dict.fromkeys((*labels, *only), "VARCHAR"),
            f"SELECT {', '.join([*keys, 'max(t)', *folded])} FROM ("
            f" SELECT {', '.join(['epoch_ns(time) / 1e9 AS t', *named, *sums])}"
            f" FROM {{lake}} WHERE {where} GROUP BY {', '.join(['time', *names])}"
            f") GROUP BY {', '.join([*keys, 'floor((t - $start) / $width)'])} ORDER BY max(t)",
            {
                **values,
                "start": span.start,
                "width": max((span.end - span.start) / max(points, 1), 1e-6),
            },
        )
        found: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
        for row in rows:
            found.setdefault(tuple(row[: len(keys)]), []).append(row[len(keys) :])
        return {key: _make_series(some, chosen) for key, some in sorted(found.items())}

    def sets(self) -> tuple[str, ...]:
        """Return the sets with samples of any job."""
        return tuple(sorted(self.lake.sets()))

    def measured(self, span: Span, set_name: str) -> tuple[str, ...]:
        """Return the columns of a set with measured numbers, without keys."""
        known = self.lake.schema(self._files(set_name, span))
        return tuple(n for n, kind in known.items() if kind.startswith(_NUMBERS) and n not in KEYS)

    def processes(self, span: Span) -> list[ProcessUse]:
        around = span.around()
        where, values = _where(around)
        rows = self.lake.query(
            self._files("process", around),
            _PROCESS,
            "SELECT pid, start, coalesce(arg_min(parent, time), 0), coalesce(arg_max(name, time), ''), "
            "coalesce(arg_max(command, time), ''), coalesce(node, ''), "
            "epoch_ns(min(time)) / 1e9, epoch_ns(max(time)) / 1e9, max(user_seconds), max(system_seconds), "
            "max(rss_anon_bytes + rss_shmem_bytes), max(threads), "
            "max(read_bytes), max(written_bytes), max(rss_file_bytes), "
            f"count(*), count(*) FILTER (state = {WAITING_FOR_DISK}), max(run_delay_seconds) "
            f"FROM {{lake}} WHERE {where} AND pid IS NOT NULL AND start IS NOT NULL "
            "GROUP BY ALL ORDER BY min(time), pid, start, coalesce(node, '')",
            values,
        )
        return [ProcessUse(*row) for row in rows]

    def ends(self, span: Span, kind: type[End], most: int | None = None) -> list[End]:
        around = span._replace(end=span.end + SPAN_MARGIN)
        where, values = _where_ended(around)
        names = kind._fields
        rows = self.lake.query(
            self._files(SETS[kind], around),
            _SAMPLE | {name: _end_type(name) for name in names},
            f"SELECT {', '.join(_known(kind, name) for name in names)} FROM {{lake}} WHERE {where} "
            "ORDER BY began_seconds, pid, start" + ("" if most is None else f" LIMIT {most}"),
            values,
        )
        return merge_sources(list(map(kind._make, rows)))

    def end_table(self, span: Span, kind: type[End], most: int | None = None) -> EndTable[End]:
        """The same as a table, of which only those columns and rows are read that are asked for. `most`: if
        the agent has recorded some too, which takes making all rows."""
        files = self._files(SETS[kind], span._replace(end=span.end + SPAN_MARGIN))

        ask = partial(self._query_ends, files, span)

        def shown(name: str) -> str:
            return f"{_known(kind, name)} AS {identifier(name)}"

        counted = ask(("source",), "count(*), count(*) FILTER (source != '')")
        count, others = counted[0] if counted else (0, 0)
        if others or not count:
            return table_of(self.ends(span, kind, most), kind)

        def check(found: int, expected: int) -> None:
            if found != expected:
                raise OutsideError(f"the files of job {span.job:.100} have changed meanwhile; try again")

        known: list[list[int]] = []  # places in the files, in order of their start

        def order() -> list[int]:
            if not known:
                cells(())
            return known[0]

        def cells(names: Sequence[str]) -> list[tuple[Any, ...]]:
            found = ask(names, ", ".join([*map(shown, names), "place"]), _IN_ORDER)
            check(len(found), count)
            known[:] = [[row[-1] for row in found]]
            return [row[:-1] for row in found]

        def columns(names: Sequence[str]) -> Arrays:
            found = ask(names, ", ".join(map(shown, names)), query=self.lake.query_columns)
            check(len(next(iter(found.values()))) if found else 0, count)
            return {name: without_mask(column)[order()] for name, column in found.items()}

        def rows(places: Sequence[int]) -> list[End]:
            chosen = [order()[place] for place in places]
            ordered = sorted(set(chosen))
            only = f"WHERE place IN ({', '.join(map(str, ordered))})" if len(ordered) < count else ""
            found = ask(kind._fields, ", ".join(map(shown, kind._fields)), f"{only} ORDER BY place")
            check(len(found), len(ordered))
            made = dict(zip(ordered, map(kind._make, found)))
            return [made[place] for place in chosen]

        return EndTable(kind, count, columns, cells, rows)

    def _query_ends(
        self,
        files: Files,
        span: Span,
        names: Sequence[str],
        cells: str,
        rest: str = "",
        query: Callable[..., Any] | None = None,
    ) -> Any:
        """Return cells of all rows with their places in the files, from these columns."""
        where, values = _where_ended(span._replace(end=span.end + SPAN_MARGIN))
        kinds = _SAMPLE | {name: _end_type(name) for name in (*names, *ORDER)}
        inner = f"SELECT *, row_number() OVER () - 1 AS place FROM {{lake}} WHERE {where}"
        return (query or self.lake.query)(files, kinds, f"SELECT {cells} FROM ({inner}) {rest}", values)

    def count_ends(self, span: Span) -> tuple[int, int]:
        """Of several sources, the one with most: to merge them takes all rows."""
        around = span._replace(end=span.end + SPAN_MARGIN)
        where, values = _where_ended(around)
        rows = self.lake.query(
            self._files(SETS[EndedProcess], around),
            _SAMPLE | {"source": "VARCHAR", "exact": "BIGINT", "began_seconds": "DOUBLE"},
            "SELECT count(*)::BIGINT, coalesce(sum(exact), 0)::BIGINT FROM {lake} "
            f"WHERE {where} GROUP BY coalesce(source, '')",
            values,
        )
        return max(((int(ended), int(exact)) for ended, exact in rows), default=(0, 0))

    def end_groups(self, span: Span, by: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return processes that capture recorded, added up, see joblens.store.end_groups.GroupUse."""
        around = span._replace(end=span.end + SPAN_MARGIN)
        where, values = _where_ended(around)
        names = (*by, "began_seconds", "ended_seconds", "user_seconds", "system_seconds", "run_delay_seconds",
                 "memory_peak_bytes")  # fmt: skip
        keys = [f"coalesce({identifier(name)}, '')" for name in by]
        return self.lake.query(
            self._files(SETS[EndedProcess], around),
            _SAMPLE | {name: _end_type(name) for name in names},
            f"SELECT {', '.join(keys)}, count(*), min(began_seconds), "
            "coalesce(sum(user_seconds + system_seconds), 0.0), "
            "coalesce(sum(ended_seconds - began_seconds), 0.0), coalesce(sum(run_delay_seconds), 0.0), "
            f"coalesce(max(memory_peak_bytes), 0), max(ended_seconds) FROM {{lake}} WHERE {where} "
            f"GROUP BY {', '.join(keys)} ORDER BY min(began_seconds), {', '.join(keys)}",
            values,
        )

    def sample_times(self, span: Span) -> list[float]:
        where, values = _where(span)
        rows = self.lake.query(
            self._files("job", span),
            _SAMPLE,
            f"SELECT DISTINCT epoch_ns(time) / 1e9 AS t FROM {{lake}} WHERE {where} ORDER BY t",
            values,
        )
        return [float(row[0]) for row in rows]

    def times_by_node(self, span: Span, set_name: str) -> dict[tuple[str, str], list[float]]:
        where, values = _where(span)
        rows = self.lake.query(
            self._files(set_name, span),
            _SAMPLE,
            "SELECT c, n, list(t ORDER BY t) FROM (SELECT DISTINCT coalesce(cluster, '') AS c, "
            f"coalesce(node, '') AS n, epoch_ns(time) / 1e9 AS t FROM {{lake}} WHERE {where}) "
            "GROUP BY c, n ORDER BY c, n",
            values,
        )
        return {(cluster, node): times for cluster, node, times in rows}

    def breaks(
        self, span: Span, set_name: str, counters: Sequence[str], longest: float
    ) -> dict[str, list[Break]]:
        where, values = _where(span)
        names = [f"v{number}" for number in range(len(counters))]
        sums = [f"sum({identifier(column)}) AS {name}" for name, column in zip(names, counters)]
        lags = [f"lag({name} IGNORE NULLS) OVER samples AS b{name}" for name in names]
        pairs = [word for name in names for word in (f"b{name}", name)]
        rows = self.lake.query(
            self._files(set_name, span),
            dict.fromkeys(counters, "DOUBLE") | _SAMPLE,
            f"SELECT {', '.join(['n', 'before', 't', *pairs])} FROM ("
            f" SELECT {', '.join(['n', 't', 'lag(t) OVER samples AS before', *names, *lags])} FROM ("
            f"  SELECT {', '.join(['epoch_ns(time) / 1e9 AS t', _NODE + ' AS n', *sums])}"
            f"  FROM {{lake}} WHERE {where} GROUP BY time, {_NODE})"
            " WINDOW samples AS (PARTITION BY n ORDER BY t))"
            f" WHERE {' OR '.join(['t - before > $longest', *(f'{name} < b{name}' for name in names)])}"
            f" ORDER BY n, t LIMIT {_MOST_BREAKS}",
            {**values, "longest": longest},
        )
        found: dict[str, list[Break]] = {}
        for node, before, after, *pair in rows:
            values_of = dict(zip(counters, zip(pair[::2], pair[1::2])))
            found.setdefault(node, []).append(Break(before, after, values_of))
        return found
