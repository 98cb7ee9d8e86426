"""The interface of joblens.store.reader over a server that speaks PromQL.

Few samples are fetched as they are, and come to the same answers as those of the lake. Of many, the server
puts together what lies in one point, and times are the ends of points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from joblens.store.promql import Found, Server, equals, lasting, one_of
from joblens.store.reader import KEYS, LOOKS_AROUND, WAITING_FOR_DISK, Break, ProcessUse, Series, Span

# Sets whose names begin with that of another: `joblens_job_gpu_busy` is none of `job`.
LONG_SETS = (
    "collector_error", "gpu_amd", "gpu_driver", "gpu_intel", "gpu_jetson_rail", "gpu_jetson_zone",
    "gpu_nvidia", "gpu_process", "job_gpu", "job_info", "kernel_event", "kernel_log", "nfs_operation",
    "process_pss", "push_error",
)  # fmt: skip
_MOST_RAW = 60_000  # samples that are fetched as they are
_MOST_LOOKS = 400_000
_FOLDS = ("last_over_time", "avg_over_time", "max_over_time")
_NOTHING = Series([], {}, {}, {})
_MOST = ("user_seconds", "system_seconds", "threads", "read_bytes", "written_bytes", "rss_file_bytes")
_MEMORY = ("rss_anon_bytes", "rss_shmem_bytes")
_FINEST = 500  # stretches in which it is looked for when a process was there, and waited


class TsdbReader:
    def __init__(self, server: Server) -> None:
        self.server = server
        self._known: dict[tuple[str, Span], dict[str, str]] = {}

    def series(self, span: Span, set_name: str, columns: Sequence[str], points: int) -> Series:
        return self.split(span, set_name, (), columns, points).get((), _NOTHING)

    def split(
        self, span: Span, set_name: str, labels: Sequence[str], columns: Sequence[str], points: int
    ) -> dict[tuple[str, ...], Series]:
        known = self._names(span, set_name)
        chosen = {name: known[name] for name in dict.fromkeys(columns) if name in known}
        if not chosen or span.end < span.start:
            return {}
        width = max((span.end - span.start) / max(points, 1), 1e-6)
        amount = self._amount(span, next(iter(chosen.values())))
        if amount.samples * len(chosen) <= _MOST_RAW:
            return self._fold(span, labels, chosen, width)
        return self._folded(span, labels, chosen, max(width, 2 * amount.distance))

    def measured(self, span: Span, set_name: str) -> tuple[str, ...]:
        return tuple(name for name in self._names(span, set_name) if name not in KEYS)

    def processes(self, span: Span) -> list[ProcessUse]:
        around = span._replace(start=span.start - LOOKS_AROUND, end=span.end + LOOKS_AROUND)
        known = self._names(around, "process")
        if "threads" not in known:
            return []
        wanted = {name: known[name] for name in (*_MOST, *_MEMORY, "state") if name in known}
        amount = self._amount(around, known["threads"])
        few = amount.samples * len(wanted) <= _MOST_RAW
        uses = self._all_looks(around, wanted) if few else self._most(around, wanted, amount.distance)
        plain = [use.plain(*identity) for identity, use in uses.items() if use.looks]
        return sorted(plain, key=lambda it: (it.first, it.pid, it.start, it.node))

    def _all_looks(self, span: Span, wanted: dict[str, str]) -> _Uses:
        uses: _Uses = {}
        anonymous: dict[tuple[_Identity, float], float] = {}
        for name, series in wanted.items():
            for one in self._raw(span, series):
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
        fine = lasting(max(distance, (span.end - span.start) / _FINEST))
        selected = {name: self._select(span, series) for name, series in wanted.items()}
        queries = {name: f"max_over_time({selected[name]}[{window}])" for name in _MOST if name in wanted}
        if all(name in wanted for name in _MEMORY):
            queries["memory"] = " + ".join(f"max_over_time({selected[name]}[{window}])" for name in _MEMORY)
        for name, query in queries.items():
            for found in self._instant(query, span):
                _use(uses, found.labels).keep(name, found.values[0])
        threads = selected["threads"]
        for which in ("min", "max"):
            for found in self._instant(f"{which}_over_time(timestamp({threads})[{window}:{fine}])", span):
                _use(uses, found.labels).seen(found.values)
        for found in self._instant(f"count_over_time({threads}[{window}])", span):
            _use(uses, found.labels).looks += round(found.values[0])
        if "state" in wanted:
            waits = f"({selected['state']} == {WAITING_FOR_DISK})"
            for found in self._instant(f"count_over_time({waits}[{window}:{fine}])", span):
                _use(uses, found.labels).waiting += round(found.values[0])
        return uses

    def sample_times(self, span: Span) -> list[float]:
        return sorted({time for times in self.looks(span, "job").values() for time in times})

    def looks(self, span: Span, set_name: str) -> dict[tuple[str, str], list[float]]:
        known = self._names(span, set_name)
        if not known:
            return {}
        # Not every column is known at every look: the one with the most samples is.
        amounts = {name: self._amount(span, name) for name in known.values()} if len(known) < 20 else {}
        name = max(amounts, key=lambda it: amounts[it].samples) if amounts else next(iter(known.values()))
        amount = amounts.get(name) or self._amount(span, name)
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
        known = self._names(span, set_name)
        chosen = {name: known[name] for name in counters if name in known}
        nodes = self._broken(span, set_name, chosen, longest)
        if not nodes:
            return {}
        at: dict[str, dict[float, dict[str, float]]] = {}
        for name, series in chosen.items():
            for one in self._raw(span, series, [one_of("node", nodes)]):
                moments = at.setdefault(one.labels.get("node", ""), {})
                for time, value in zip(one.times, one.values):
                    values = moments.setdefault(time, {})
                    values[name] = values.get(name, 0.0) + value
        found = {node: _breaks(moments, counters, longest) for node, moments in sorted(at.items())}
        return {node: some for node, some in found.items() if some}

    # What is asked

    def _names(self, span: Span, set_name: str) -> dict[str, str]:
        """Of the columns that the set has in that time, the series."""
        key = set_name, span._replace(start=math.floor(span.start), end=math.ceil(span.end))
        if key not in self._known:
            begin = f"joblens_{set_name}"
            longer = tuple(f"joblens_{it}" for it in LONG_SETS if it.startswith(f"{set_name}_"))
            matching = f'{{__name__=~"{begin}(_.+)?",{",".join(_matchers(span))}}}'
            found = {}
            for name in self.server.names(matching, span.start, span.end):
                column = name.removeprefix(begin).removeprefix("_").removesuffix("_total")
                if not name.startswith(longer) or not longer:
                    found[column or "value"] = name
            self._known[key] = found
        return self._known[key]

    def _select(self, span: Span, name: str, more: Iterable[str] = ()) -> str:
        return f"{name}{{{','.join([*_matchers(span), *more])}}}"

    def _instant(self, query: str, span: Span) -> list[Found]:
        return [found for found in self.server.instant(query, span.end) if found.values]

    def _amount(self, span: Span, name: str) -> _Amount:
        window = lasting(span.end - span.start)
        selected = self._select(span, name)
        counts = [it.values[0] for it in self._instant(f"count_over_time({selected}[{window}])", span)]
        most = max(counts, default=0.0)
        return _Amount(sum(counts), len(counts), (span.end - span.start) / most if most else 0.0)

    def _raw(self, span: Span, name: str, more: Iterable[str] = ()) -> list[Found]:
        window = lasting(span.end - span.start + 0.001)
        found = self.server.instant(f"{self._select(span, name, more)}[{window}]", span.end)
        return [_within(one, span) for one in found]

    def _fold(
        self, span: Span, labels: Sequence[str], chosen: dict[str, str], width: float
    ) -> dict[tuple[str, ...], Series]:
        """From all samples: those of one moment are added up, then those of one point put together."""
        groups: dict[tuple[str, ...], dict[float, dict[str, float]]] = {}
        for column, name in chosen.items():
            for one in self._raw(span, name):
                moments = groups.setdefault(tuple(one.labels.get(label, "") for label in labels), {})
                for time, value in zip(one.times, one.values):
                    values = moments.setdefault(time, {})
                    values[column] = values.get(column, 0.0) + value
        found = {key: _point_by_point(moments, span.start, width, chosen) for key, moments in groups.items()}
        return {key: series for key, series in sorted(found.items()) if series.times}

    def _folded(
        self, span: Span, labels: Sequence[str], chosen: dict[str, str], step: float
    ) -> dict[tuple[str, ...], Series]:
        """The server puts them together."""
        groups: dict[tuple[str, ...], dict[float, dict[tuple[int, str], float]]] = {}
        by = f" by ({', '.join(labels)})" if labels else ""
        for column, name in chosen.items():
            selected = self._select(span, name)
            for which, fold in enumerate(_FOLDS):
                query = f"sum{by} ({fold}({selected}[{lasting(step)}]))"
                for one in self.server.range(query, span.start + step, span.end + step, step):
                    key = tuple(one.labels.get(label, "") for label in labels)
                    for time, value in zip(one.times, one.values):
                        groups.setdefault(key, {}).setdefault(time, {})[which, column] = value
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
        for name in chosen.values():
            again = f"sum by (node) (resets({self._select(span, name)}[{window}])) > 0"
            nodes.update(one.labels.get("node", "") for one in self._instant(again, span))
        return sorted(nodes)


class _Amount(NamedTuple):
    samples: float
    series: int
    distance: float  # seconds from one sample to the next


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


def _breaks(moments: dict[float, dict[str, float]], counters: Sequence[str], longest: float) -> list[Break]:
    found: list[Break] = []
    known: dict[str, float | None] = dict.fromkeys(counters)
    before: float | None = None
    for time in sorted(moments):
        now = {name: moments[time].get(name) for name in counters}
        pairs = {name: (known[name], now[name]) for name in counters}
        back = any(old is not None and new is not None and new < old for old, new in pairs.values())
        if before is not None and (back or time - before > longest):
            found.append(Break(before, time, pairs))
        before = time
        known.update((name, value) for name, value in now.items() if value is not None)
    return found


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
