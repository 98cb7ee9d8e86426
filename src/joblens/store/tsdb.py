"""The interface of joblens.store.reader over a server that speaks PromQL.

Few samples are fetched as they are, and come to the same answers as those of the lake. Of many, the server
puts together what lies in one point, and times are the ends of points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from time import time as wall_clock
from typing import NamedTuple

from joblens.store.promql import Found, Server, equals, lasting, one_of, quote
from joblens.store.reader import (
    KEYS,
    LOOKS_AROUND,
    NO_LABELS,
    WAITING_FOR_DISK,
    Break,
    ProcessUse,
    Series,
    Span,
    find_breaks,
)

# Sets whose names begin with that of another: `joblens_job_gpu_busy` is none of `job`.
LONG_SETS = (
    "collector_error", "gpu_amd", "gpu_driver", "gpu_intel", "gpu_jetson_rail", "gpu_jetson_zone",
    "gpu_nvidia", "gpu_process", "job_gpu", "job_info", "kernel_event", "kernel_log", "nfs_operation",
    "process_pss", "push_error",
)  # fmt: skip
_MOST_RAW = 60_000  # samples that are fetched as they are
_MOST_LOOKS = 400_000
_LEVEL_FOLDS = ("avg_over_time", "max_over_time")
_MOST_COUNTED = 40  # columns among which the one with the most samples is looked for
_WHICH = "joblens_question"
_NOTHING = Series([], {}, {}, {})
_MOST = ("user_seconds", "system_seconds", "threads", "read_bytes", "written_bytes", "rss_file_bytes")
_MEMORY = ("rss_anon_bytes", "rss_shmem_bytes")
_FINEST = 120  # stretches in which it is looked for when a process was there, and waited


class TsdbReader:
    """What was asked is kept: a report asks for much of it several times."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._known: dict[Span, list[str]] = {}
        self._amounts: dict[tuple[Span, str], Amount] = {}
        self._looks: dict[tuple[Span, str], dict[tuple[str, str], list[float]]] = {}

    def series(self, span: Span, set_name: str, columns: Sequence[str], points: int) -> Series:
        return self.split(span, set_name, (), columns, points).get((), _NOTHING)

    def split(
        self,
        span: Span,
        set_name: str,
        labels: Sequence[str],
        columns: Sequence[str],
        points: int,
        only: Mapping[str, str] = NO_LABELS,
    ) -> dict[tuple[str, ...], Series]:
        span = _until_now(span)
        known = self._names(span, set_name)
        chosen = {name: known[name] for name in dict.fromkeys(columns) if name in known}
        if not chosen or span.end < span.start:
            return {}
        width = max((span.end - span.start) / max(points, 1), 1e-6)
        amount = self._amount(span, next(iter(chosen.values())))
        if self._is_little(amount, len(chosen)):
            return self._fold(span, labels, chosen, width, only)
        return self._folded(span, labels, chosen, max(width, 2 * amount.distance), only)

    def measured(self, span: Span, set_name: str) -> tuple[str, ...]:
        return tuple(name for name in self._names(span, set_name) if name not in KEYS)

    def processes(self, span: Span) -> list[ProcessUse]:
        around = _until_now(span._replace(start=span.start - LOOKS_AROUND, end=span.end + LOOKS_AROUND))
        known = self._names(around, "process")
        if "threads" not in known:
            return []
        wanted = {name: known[name] for name in (*_MOST, *_MEMORY, "state") if name in known}
        amount = self._amount(around, known["threads"])
        few = self._is_little(amount, len(wanted))
        uses = self._all_looks(around, wanted) if few else self._most(around, wanted, amount.distance)
        plain = [use.plain(*identity) for identity, use in uses.items() if use.looks]
        return sorted(plain, key=lambda it: (it.first, it.pid, it.start, it.node))

    def _all_looks(self, span: Span, wanted: dict[str, str]) -> _Uses:
        uses: _Uses = {}
        anonymous: dict[tuple[_Identity, float], float] = {}
        found = self._raws(span, list(wanted.values()))
        for name, series in wanted.items():
            for one in found[series]:
                identity = _identity(one.labels)
                use = _use(uses, one.labels, max(one.times, default=0.0))
                if name == "threads":
                    use.seen(one.times)
                    use.looks += len(one.times)
                elif name == "state":
                    use.waiting += one.values.count(WAITING_FOR_DISK)
                elif name == "rss_anon_bytes":
                    anonymous.update(((identity, time), value) for time, value in zip(one.times, one.values))
                elif name == "rss_shmem_bytes":
                    for time, value in zip(one.times, one.values):
                        if (identity, time) in anonymous:
                            use.keep("memory", value + anonymous[identity, time])
                if name in _MOST and one.values:
                    use.keep(name, max(one.values))
        return uses

    def _most(self, span: Span, wanted: dict[str, str], distance: float) -> _Uses:
        """As the server finds it: when a process was there and waited is looked for in steps."""
        uses: _Uses = {}
        window = lasting(span.end - span.start)
        pace = max(distance, (span.end - span.start) / _FINEST)
        fine = lasting(pace)
        selected = {name: self._select(span, series) for name, series in wanted.items()}
        by = "by (node, pid, start)"
        queries = {name: f"max_over_time({selected[name]}[{window}])" for name in _MOST if name in wanted}
        if all(name in wanted for name in _MEMORY):
            queries["memory"] = " + ".join(f"max_over_time({selected[name]}[{window}])" for name in _MEMORY)
        threads = selected["threads"]
        # One of them tells all of the labels, which are long.
        queries = {n: q if n == "threads" else f"max {by} ({q})" for n, q in queries.items()}
        queries["looks"] = f"sum {by} (count_over_time({threads}[{window}]))"
        if "state" in wanted:
            waits = f"({selected['state']} == {WAITING_FOR_DISK})"
            queries["waiting"] = f"sum {by} (count_over_time({waits}[{window}:{fine}]))"
        for found in self._instant(_together(queries), span):
            name, value = found.labels.get(_WHICH, ""), found.values[0]
            use = uses.setdefault(_identity(found.labels), _Use())
            use.labels = found.labels if name == "threads" else use.labels
            if name == "looks":
                use.looks += round(value)
            elif name == "waiting":
                use.waiting += round(value * pace / max(distance, 1e-6))
            else:
                use.keep(name, value)
        there = f"count {by} (last_over_time({threads}[{fine}]))"
        for found in self.server.range(there, span.start + pace, span.end + pace, pace):
            if found.times and _identity(found.labels) in uses:
                first, last = found.times[0] - pace, min(found.times[-1], span.end)
                uses[_identity(found.labels)].seen([first, last])
        return uses

    def sample_times(self, span: Span) -> list[float]:
        return sorted({time for times in self.looks(span, "job").values() for time in times})

    def looks(self, span: Span, set_name: str) -> dict[tuple[str, str], list[float]]:
        span = _until_now(span)
        key = span, set_name
        if key not in self._looks:
            known = self._names(span, set_name)
            self._looks[key] = self._find_looks(span, list(known.values())) if known else {}
        return self._looks[key]

    def _find_looks(self, span: Span, names: list[str]) -> dict[tuple[str, str], list[float]]:
        name = self._fullest(span, names)
        amount = self._amount(span, name)
        selected = self._select(span, name)
        if amount.samples <= _MOST_LOOKS:
            raw = self._raw(span, name)
        else:
            step = max((span.end - span.start) * amount.series / _MOST_LOOKS, 2 * amount.distance)
            grouped = f"count by (cluster, node) (last_over_time({selected}[{lasting(step)}]))"
            raw = self.server.range(grouped, span.start + step, span.end + step, step)
        found: dict[tuple[str, str], set[float]] = {}
        for one in raw:
            key = one.labels.get("cluster", ""), one.labels.get("node", "")
            found.setdefault(key, set()).update(one.times)
        return {key: sorted(times) for key, times in sorted(found.items())}

    def breaks(
        self, span: Span, set_name: str, counters: Sequence[str], longest: float
    ) -> dict[str, list[Break]]:
        span = _until_now(span)
        known = self._names(span, set_name)
        chosen = {name: known[name] for name in counters if name in known}
        nodes = self._broken(span, set_name, chosen, longest)
        if not nodes:
            return {}
        at: dict[str, dict[float, dict[str, float]]] = {}
        raw = self._raws(span, list(chosen.values()), [one_of("node", nodes)])
        for name, series in chosen.items():
            for one in raw[series]:
                moments = at.setdefault(one.labels.get("node", ""), {})
                for time, value in zip(one.times, one.values):
                    values = moments.setdefault(time, {})
                    values[name] = values.get(name, 0.0) + value
        found = {
            node: find_breaks(sorted(moments.items()), counters, longest) for node, moments in at.items()
        }
        return {node: some for node, some in sorted(found.items()) if some}

    # What is asked

    def _names(self, span: Span, set_name: str) -> dict[str, str]:
        """Of the columns that the set has in that time, the series."""
        key = span._replace(start=math.floor(span.start), end=math.ceil(span.end))
        if key not in self._known:
            matching = f'{{__name__=~"joblens_.+",{",".join(_matchers(span))}}}'
            self._known[key] = self.server.names(matching, span.start, span.end)
        begin = f"joblens_{set_name}"
        longer = tuple(f"joblens_{it}" for it in LONG_SETS if it.startswith(f"{set_name}_"))
        found = {}
        for name in self._known[key]:
            column = name.removeprefix(begin)
            if not name.startswith(begin) or (longer and name.startswith(longer)):
                continue
            if column[:1] in ("", "_"):
                found[column.removeprefix("_").removesuffix("_total") or "value"] = name
        return found

    def _select(self, span: Span, name: str, more: Iterable[str] = ()) -> str:
        return f"{name}{{{','.join([*_matchers(span), *more])}}}"

    def _instant(self, query: str, span: Span) -> list[Found]:
        return [found for found in self.server.instant(query, span.end) if found.values]

    def _amount(self, span: Span, name: str) -> Amount:
        key = span, name
        if key not in self._amounts:
            window = lasting(span.end - span.start)
            selected = self._select(span, name)
            counts = [it.values[0] for it in self._instant(f"count_over_time({selected}[{window}])", span)]
            most = max(counts, default=0.0)
            distance = (span.end - span.start) / most if most else 0.0
            self._amounts[key] = Amount(sum(counts), len(counts), distance)
        return self._amounts[key]

    def _fullest(self, span: Span, names: list[str]) -> str:
        """Not every column is known at every look: the one with the most samples is."""
        if len(names) == 1 or len(names) > _MOST_COUNTED:
            return names[0]
        window = lasting(span.end - span.start)
        counts = {name: f"sum(count_over_time({self._select(span, name)}[{window}]))" for name in names}
        found = {it.labels.get(_WHICH, ""): it.values[0] for it in self._instant(_together(counts), span)}
        return max(names, key=lambda name: found.get(name, 0.0))

    def _raw(self, span: Span, name: str) -> list[Found]:
        return self._raws(span, [name])[name]

    def _raws(self, span: Span, names: Sequence[str], more: Iterable[str] = ()) -> dict[str, list[Found]]:
        """By name, all samples: here a server keeps the names, and so one question is enough."""
        found: dict[str, list[Found]] = {name: [] for name in names}
        window = lasting(span.end - span.start + 0.001)
        selected = self._select_all(span, names, more)
        for one in self.server.instant(f"{selected}[{window}]", span.end) if names else ():
            found.setdefault(one.labels.get("__name__", ""), []).append(_within(one, span))
        return found

    def _select_all(self, span: Span, names: Sequence[str], more: Iterable[str] = ()) -> str:
        matchers = [one_of("__name__", names), *_matchers(span), *more]
        return f"{{{','.join(matchers)}}}"

    def _is_little(self, amount: Amount, columns: int) -> bool:
        return amount.samples * columns <= _MOST_RAW

    def _fold(
        self, span: Span, labels: Sequence[str], chosen: dict[str, str], width: float, only: Mapping[str, str]
    ) -> dict[tuple[str, ...], Series]:
        """From all samples: those of one moment are added up, then those of one point put together."""
        groups: dict[tuple[str, ...], dict[float, dict[str, float]]] = {}
        raw = self._raws(span, list(chosen.values()), _equal(only))
        for column, name in chosen.items():
            for one in raw[name]:
                moments = groups.setdefault(tuple(one.labels.get(label, "") for label in labels), {})
                for time, value in zip(one.times, one.values):
                    values = moments.setdefault(time, {})
                    values[column] = values.get(column, 0.0) + value
        found = {key: _point_by_point(moments, span.start, width, chosen) for key, moments in groups.items()}
        return {key: series for key, series in sorted(found.items()) if series.times}

    def _folded(
        self, span: Span, labels: Sequence[str], chosen: dict[str, str], step: float, only: Mapping[str, str]
    ) -> dict[tuple[str, ...], Series]:
        """The server puts them together. What a counter was last is also what it was at most."""
        groups: dict[tuple[str, ...], dict[float, dict[tuple[int, str], float]]] = {}
        by, window = ", ".join(labels), lasting(step)
        columns = {name: column for column, name in chosen.items()}
        selected = self._select_all(span, list(columns), _equal(only))
        queries = [f"sum by ({', '.join(['__name__', *labels])}) (last_over_time({selected}[{window}]))"]
        for fold in _LEVEL_FOLDS:
            levels = [name for name in columns if not name.endswith("_total")]
            folds = {
                name: f"sum by ({by}) ({fold}({self._select(span, name, _equal(only))}[{window}]))"
                for name in levels
            }
            queries.append(_together(folds))
        for which, query in enumerate(queries):
            found = self.server.range(query, span.start + step, span.end + step, step) if query else []
            for one in found:
                column = columns.get(one.labels.get(_WHICH if which else "__name__", ""))
                if column is None:
                    continue
                parts = (which,) if which or not chosen[column].endswith("_total") else (0, 1, 2)
                points = groups.setdefault(tuple(one.labels.get(label, "") for label in labels), {})
                for time, value in zip(one.times, one.values):
                    for part in parts:
                        points.setdefault(time, {})[part, column] = value
        return {key: _as_series(points, span.end, chosen) for key, points in sorted(groups.items())}

    def _broken(self, span: Span, set_name: str, chosen: dict[str, str], longest: float) -> list[str]:
        """Nodes on which something is to be looked for."""
        looks = self.looks(span, set_name)
        nodes = {
            node
            for (_, node), times in looks.items()
            if any(b - a > longest for a, b in zip(times, times[1:]))
        }
        window = lasting(span.end - span.start)
        again = {
            name: f"sum by (node) (resets({self._select(span, name)}[{window}])) > 0"
            for name in chosen.values()
        }
        nodes.update(one.labels.get("node", "") for one in self._instant(_together(again), span))
        return sorted(nodes)


class Amount(NamedTuple):
    samples: float
    series: int
    distance: float  # seconds from one sample to the next


def _equal(only: Mapping[str, str]) -> list[str]:
    return [equals(name, text) for name, text in only.items()]


def _until_now(span: Span) -> Span:
    """A server counts back from the end, and one far away would have it look at nothing."""
    return span._replace(end=max(min(span.end, math.ceil(wall_clock()) + 60.0), span.start))


def _together(queries: dict[str, str]) -> str:
    """Several as one question; a label says which of them an answer is to."""
    return " or ".join(
        f'label_replace({query}, "{_WHICH}", {quote(name)}, "", "")' for name, query in queries.items()
    )


def _matchers(span: Span) -> list[str]:
    """Rows of no job have no `jobid`, or an empty one."""
    found = [one_of("jobid", (span.job, "")) if span.nodes else equals("jobid", span.job)]
    if span.nodes:
        found.append(one_of("node", span.nodes))
    if span.cluster:
        found.append(equals("cluster", span.cluster))
    return found


def _within(one: Found, span: Span) -> Found:
    first, last = span.start - 0.0005, span.end + 0.0005  # a server's times are in milliseconds
    chosen = [(time, value) for time, value in zip(one.times, one.values) if first <= time <= last]
    return Found(one.labels, [time for time, _ in chosen], [value for _, value in chosen])


def _point_by_point(
    moments: dict[float, dict[str, float]], start: float, width: float, columns: Iterable[str]
) -> Series:
    stretches: dict[int, list[float]] = {}
    for time in sorted(moments):
        stretches.setdefault(math.floor((time - start) / width), []).append(time)
    series = Series([times[-1] for times in stretches.values()], {}, {}, {})
    for name in columns:
        cells = [[moments[t][name] for t in times if name in moments[t]] for times in stretches.values()]
        if any(cells):
            series.last[name] = [found[-1] if found else None for found in cells]
            series.mean[name] = [sum(found) / len(found) if found else None for found in cells]
            series.peak[name] = [max(found, default=None) for found in cells]
    return series


def _as_series(
    points: dict[float, dict[tuple[int, str], float]], end: float, columns: Iterable[str]
) -> Series:
    times = sorted(points)
    parts = (
        {name: [points[time].get((which, name)) for time in times] for name in columns} for which in range(3)
    )
    return Series([min(time, end) for time in times], *parts)


class _Use:
    """What is known of one process. Its title can change, and then it has several series."""

    def __init__(self) -> None:
        self.most: dict[str, float] = {}
        self.labels: dict[str, str] = {}
        self.newest = 0.0
        self.first, self.last = math.inf, 0.0
        self.looks = self.waiting = 0

    def keep(self, name: str, value: float) -> None:
        self.most[name] = max(value, self.most.get(name, value))

    def seen(self, times: list[float]) -> None:
        self.first, self.last = min([self.first, *times]), max([self.last, *times])

    def plain(self, node: str, pid: int, start: int) -> ProcessUse:
        known, whole = self.most, {name: round(value) for name, value in self.most.items()}
        return ProcessUse(
            pid, start, _number(self.labels, "parent") or 0, self.labels.get("name", ""),
            self.labels.get("command", ""), node, min(self.first, self.last), self.last,
            known.get("user_seconds"), known.get("system_seconds"), whole.get("memory"), whole.get("threads"),
            whole.get("read_bytes"), whole.get("written_bytes"), whole.get("rss_file_bytes"), self.looks,
            self.waiting,
        )  # fmt: skip


_Identity = tuple[str, int, int]  # node, pid, start
_Uses = dict[_Identity, _Use]


def _identity(labels: dict[str, str]) -> _Identity:
    return labels.get("node", ""), _number(labels, "pid") or 0, _number(labels, "start") or 0


def _use(uses: _Uses, labels: dict[str, str], newest: float = 0.0) -> _Use:
    use = uses.setdefault(_identity(labels), _Use())
    if newest >= use.newest:
        use.labels, use.newest = labels, newest
    return use


def _number(labels: dict[str, str], name: str) -> int | None:
    text = labels.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
