"""Series of node_exporter, the DCGM exporter and Omnistat, read as columns of joblens' sets.

They are per node, not per job. A job is then everything that its nodes did while it ran, which is right if it
had them exclusively; each report says so with `ABOUT`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from joblens.record.report import ProcessUse
from joblens.store.reader import NO_LABELS, Break, Span
from joblens.store.tsdb.promql import PromSeries, Server, duration, quote
from joblens.store.tsdb.reader import TsdbReader
from joblens.store.tsdb.series import Amount, JobSeries

ABOUT = "measured per node by {}: includes what other jobs did on its nodes meanwhile"
_NODE_EXPORTER, _DCGM, _OMNISTAT = "node_exporter", "the DCGM exporter", "Omnistat"
_MIB = 1 << 20
_MOST_STEPS = 2000
_LONGEST_INTERVAL = 120.0  # seconds between two scrapes: after more, a series is stale
_PROBE_SECONDS = 600.0  # of samples from which the scrape interval is found
_ENDING = re.compile(r"(:[0-9]+)?$")
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_BUSY = 'mode=~"user|nice|system|irq|softirq"'


class _Source(NamedTuple):
    """The source of a column. In the query, @ stands for the matcher of the nodes."""

    exporter: str
    query: str
    factor: float = 1.0
    counts_from: str = ""  # "start": a counter from 0 at the job's start; "power": integrated over time
    labels: Mapping[str, str] = {}  # our label and theirs; `=TEXT` is a constant


_CORES = {"cpu": "=total"}
_CARD = {"gpu": "UUID", "index": "gpu", "model": "modelName", "given": "=exporter"}
_ROCM = {"gpu": "card", "index": "card", "given": "=exporter"}
_ALL = "{@}"


def _dcgm(name: str, factor: float = 1.0) -> _Source:
    return _Source(_DCGM, f"max by (instance, gpu, UUID, modelName) ({name}{_ALL})", factor, "", _CARD)


def _rocm(query: str, factor: float = 1.0) -> _Source:
    return _Source(_OMNISTAT, query, factor, "", _ROCM)


_FB = " + ".join(
    f"max by (instance, gpu, UUID, modelName) (DCGM_FI_DEV_FB_{it}{_ALL})" for it in ("USED", "FREE")
)
_VRAM = f"max by (instance, card) (rocm_vram_total_bytes{_ALL})"
_CPU = f"sum by (instance) (node_cpu_seconds_total{{@,{_BUSY}}})"
_KERNEL = 'sum by (instance) (node_cpu_seconds_total{@,mode=~"system|irq|softirq"})'

# By set and column: the first source that the server has is used.
SOURCES: Mapping[str, Mapping[str, Sequence[_Source]]] = {
    "cpu": {
        f"{state}_seconds": (
            _Source(
                _NODE_EXPORTER,
                f'sum by (instance) (node_cpu_seconds_total{{@,mode="{state}"}})',
                labels=_CORES,
            ),
        )
        for state in _STATES
    },
    "load": {
        "load1": (
            _Source(_NODE_EXPORTER, f"node_load1{_ALL}"),
            _Source(_OMNISTAT, f"omnistat_host_cpu_load1{_ALL}"),
        )
    },
    "memory": {
        "mem_total_bytes": (
            _Source(_NODE_EXPORTER, f"node_memory_MemTotal_bytes{_ALL}"),
            _Source(_OMNISTAT, f"omnistat_mem_total_bytes{_ALL}"),
        ),
        "mem_available_bytes": (
            _Source(_NODE_EXPORTER, f"node_memory_MemAvailable_bytes{_ALL}"),
            _Source(_OMNISTAT, f"omnistat_mem_available_bytes{_ALL}"),
        ),
    },
    "job": {
        "cpu_seconds": (
            _Source(_NODE_EXPORTER, _CPU, counts_from="start"),
            _Source(_OMNISTAT, f"omnistat_host_cpu_aggregate_core_utilization{_ALL}", counts_from="power"),
        ),
        "system_seconds": (_Source(_NODE_EXPORTER, _KERNEL, counts_from="start"),),
        "memory_bytes": (
            _Source(
                _NODE_EXPORTER,
                f"sum by (instance) (node_memory_MemTotal_bytes{_ALL})"
                f" - sum by (instance) (node_memory_MemAvailable_bytes{_ALL})",
            ),
            _Source(
                _OMNISTAT,
                f"sum by (instance) (omnistat_mem_total_bytes{_ALL})"
                f" - sum by (instance) (omnistat_mem_available_bytes{_ALL})",
            ),
        ),
    },
    "job_gpu": {
        "busy_ratio": (
            _dcgm("DCGM_FI_DEV_GPU_UTIL", 0.01),
            _rocm(f"max by (instance, card) (rocm_utilization_percentage{_ALL})", 0.01),
        ),
        "memory_used_bytes": (
            _dcgm("DCGM_FI_DEV_FB_USED", _MIB),
            _rocm(f"max by (instance, card) (rocm_vram_used_percentage{_ALL}) * {_VRAM}", 0.01),
        ),
        "memory_total_bytes": (_Source(_DCGM, _FB, _MIB, "", _CARD), _rocm(_VRAM)),
        "power_watts": (
            _dcgm("DCGM_FI_DEV_POWER_USAGE"),
            _rocm(f"max by (instance, card) (rocm_average_socket_power_watts{_ALL})"),
        ),
        "energy_joules": (
            _dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 0.001),
            _rocm(f"max by (instance, card) (rocm_energy_joules{_ALL})"),
        ),
    },
}


class ExporterSeries(JobSeries):
    """Columns of joblens from other exporters' series, always as raw samples: scrapes are few."""

    def __init__(self, server: Server, nodes: Sequence[str], label: str) -> None:
        super().__init__(server)
        self.nodes, self._label = {_short(node): node for node in nodes}, label
        self._cache: dict[tuple[str, str, Span], list[PromSeries]] = {}
        self.scrape_intervals: dict[str, float] = {}
        self.exporters: list[str] = []  # those with samples

    def names(self, span: Span, set_name: str) -> dict[str, str]:
        known = SOURCES.get(set_name, {})
        return {name: f"{set_name}.{name}" for name in known if self._found(span, set_name, name)}

    def amount(self, span: Span, name: str, only: Mapping[str, str] = NO_LABELS) -> Amount:
        """Return zero: all samples are fetched anyway."""
        return Amount(0.0, 0, 0.0, [])

    def fullest(self, span: Span, names: Sequence[str]) -> str:
        return names[0]

    def raws(self, span: Span, names: Sequence[str], more: Iterable[str] = ()) -> dict[str, list[PromSeries]]:
        """`more` is not needed: cores are already summed."""
        return {name: self._found(span, *name.split(".")) for name in names}

    def timestamps(self, span: Span, name: str) -> list[PromSeries]:
        return self.raws(span, [name])[name]

    def _found(self, span: Span, set_name: str, column: str) -> list[PromSeries]:
        span = span._replace(job="", cluster="", nodes=())
        key = set_name, column, span
        if key not in self._cache:
            sources = SOURCES.get(set_name, {}).get(column, ())
            results = (self._query(span, source) for source in sources)
            self._cache[key] = next(filter(None, results), [])
        return self._cache[key]

    def _query(self, span: Span, source: _Source) -> list[PromSeries]:
        interval = self._scrape_interval(source.exporter, span)
        if not interval:
            return []
        step = max(interval, (span.end - span.start) / _MOST_STEPS)
        query = re.sub(
            r"([a-zA-Z_]+)\{([^}]*)\}", rf"last_over_time(\1{{\2}}[{duration(1.5 * step)}])", source.query
        )
        raw = self.server.range(query.replace("@", self._chosen()), span.start, span.end, step)
        found = [self._named(one, source) for one in raw if one.times]
        if found and source.exporter not in self.exporters:
            self.exporters.append(source.exporter)
        return [_counted(one, source) for one in found]

    def _scrape_interval(self, exporter: str, span: Span) -> float:
        """Return the seconds between two scrapes, or 0 if these nodes have no samples."""
        if exporter not in self.scrape_intervals:
            probe = {_NODE_EXPORTER: "node_load1", _DCGM: "DCGM_FI_DEV_GPU_UTIL"}.get(exporter)
            names = [probe] if probe else ["rocm_utilization_percentage", "omnistat_mem_total_bytes"]
            # The last minutes are mostly enough; a long scrape interval has few samples anyway.
            windows = (_PROBE_SECONDS, max(span.end - span.start, _PROBE_SECONDS))
            answers = (self._intervals(name, span.end, window) for window in windows for name in names)
            found = sorted(next(filter(None, answers), []))
            median = found[len(found) // 2] if found else 0.0
            self.scrape_intervals[exporter] = min(max(median, 0.1), _LONGEST_INTERVAL) if found else 0.0
        return self.scrape_intervals[exporter]

    def _intervals(self, name: str, end: float, seconds: float) -> list[float]:
        found = self.server.timestamps(f"{name}{{{self._chosen()}}}[{duration(seconds)}]", end)
        return [b - a for one in found for a, b in zip(one.times, one.times[1:])]

    def _chosen(self) -> str:
        names = "|".join(re.sub(r"[^A-Za-z0-9_-]", lambda it: "\\" + it[0], name) for name in self.nodes)
        pattern = "(" + names + r")(\..*)?(:[0-9]+)?"
        return f"{self._label}=~{quote(pattern)}"

    def _named(self, one: PromSeries, source: _Source) -> PromSeries:
        theirs = one.labels.get(self._label, "")
        labels = {"node": self.nodes.get(_short(theirs), _ENDING.sub("", theirs)), "cluster": ""}
        for ours, name in source.labels.items():
            labels[ours] = name[1:] if name.startswith("=") else one.labels.get(name, "")
        return PromSeries(labels, one.times, [value * source.factor for value in one.values])


class ExporterReader(TsdbReader):
    """A reader of some nodes, named by `label` as HOST or HOST:PORT."""

    def __init__(self, server: Server, nodes: Sequence[str], label: str = "instance") -> None:
        self._exported = ExporterSeries(server, nodes, label)
        super().__init__(server, self._exported)

    @property
    def scrape_interval(self) -> float:
        """Seconds between two scrapes, 0 if unknown."""
        return round(max(self._exported.scrape_intervals.values(), default=0.0), 1)

    @property
    def exporters(self) -> list[str]:
        """Names of the exporters that have samples."""
        return self._exported.exporters

    def _broken(self, span: Span, set_name: str, names: list[str], longest: float) -> list[str]:
        return sorted(self._exported.nodes.values())

    def breaks(
        self, span: Span, set_name: str, counters: Sequence[str], longest: float
    ) -> dict[str, list[Break]]:
        """A missed scrape is not a gap: these counters are the kernel's."""
        return super().breaks(span, set_name, counters, math.inf)

    def processes(self, span: Span) -> list[ProcessUse]:
        return []


def _short(name: str) -> str:
    """Return c1 for c1.example.org:9100."""
    return _ENDING.sub("", name).partition(".")[0]


def _counted(one: PromSeries, source: _Source) -> PromSeries:
    if source.counts_from == "start":
        return one._replace(values=[value - one.values[0] for value in one.values])
    if source.counts_from == "power":
        total, values, before = 0.0, list[float](), one.times[0]
        for time, value in zip(one.times, one.values):
            total += value * (time - before)
            before = time
            values.append(total)
        return one._replace(values=values)
    return one
