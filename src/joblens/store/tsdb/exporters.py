"""What other exporters put into a server that speaks PromQL, read as if joblens had: node_exporter, the DCGM
exporter and Omnistat.

They tell of nodes and not of jobs. A job is then all that its nodes did while it ran, which is right where it
had them alone; `ABOUT` says so, and belongs into each report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from joblens.store.reader import NO_LABELS, Break, ProcessUse, Span
from joblens.store.tsdb.promql import Server
from joblens.store.tsdb.promql_answer import Found
from joblens.store.tsdb.promql_text import lasting, quote
from joblens.store.tsdb.reader import TsdbReader
from joblens.store.tsdb.series import Amount, JobSeries

ABOUT = "it is told by {}, by node: what others did on its nodes meanwhile is in it"
_NODE_EXPORTER, _DCGM, _OMNISTAT = "node_exporter", "the DCGM exporter", "Omnistat"
_MIB = 1 << 20
_MOST_STEPS = 2000
_LONGEST_DISTANCE = 120.0  # seconds between two scrapes: with more, a server takes a series for ended
_PROBE_SECONDS = 600.0  # in which it is looked how often is scraped
_ENDING = re.compile(r"(:[0-9]+)?$")
_STATES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_BUSY = 'mode=~"user|nice|system|irq|softirq"'


class _Source(NamedTuple):
    """Where a column of a set comes from. In the query, @ stands for what chooses the nodes."""

    exporter: str
    query: str
    factor: float = 1.0
    counts_from: str = (
        ""  # "start": from 0 at the job's start on; "power": a level that is added up over time
    )
    labels: Mapping[str, str] = {}  # our name of a label, and theirs; `=TEXT` is always that


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

# By set and column, the first that the server has counts.
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
    """Columns of ours by what they are made of, all of it as samples: scrapes are few."""

    def __init__(self, server: Server, nodes: Sequence[str], label: str) -> None:
        super().__init__(server)
        self.nodes, self._label = {_short(node): node for node in nodes}, label
        self._answers: dict[tuple[str, str, Span], list[Found]] = {}
        self.pace: dict[str, float] = {}
        self.exporters: list[str] = []  # those that have told something

    def names(self, span: Span, set_name: str) -> dict[str, str]:
        known = SOURCES.get(set_name, {})
        return {name: f"{set_name}.{name}" for name in known if self._found(span, set_name, name)}

    def amount(self, span: Span, name: str, only: Mapping[str, str] = NO_LABELS) -> Amount:
        """As little: here they are already."""
        return Amount(0.0, 0, 0.0, [])

    def fullest(self, span: Span, names: Sequence[str]) -> str:
        return names[0]

    def raws(self, span: Span, names: Sequence[str], more: Iterable[str] = ()) -> dict[str, list[Found]]:
        """Where there is a sum over all cores, there is nothing but that sum: nothing is left to choose."""
        return {name: self._found(span, *name.split(".")) for name in names}

    def moments(self, span: Span, name: str) -> list[Found]:
        return self.raws(span, [name])[name]

    def _found(self, span: Span, set_name: str, column: str) -> list[Found]:
        span = span._replace(job="", cluster="", nodes=())
        key = set_name, column, span
        if key not in self._answers:
            sources = SOURCES.get(set_name, {}).get(column, ())
            answers = (self._ask(span, source) for source in sources)
            self._answers[key] = next(filter(None, answers), [])
        return self._answers[key]

    def _ask(self, span: Span, source: _Source) -> list[Found]:
        pace = self._find_pace(source.exporter, span)
        if not pace:
            return []
        step = max(pace, (span.end - span.start) / _MOST_STEPS)
        query = re.sub(
            r"([a-zA-Z_]+)\{([^}]*)\}", rf"last_over_time(\1{{\2}}[{lasting(1.5 * step)}])", source.query
        )
        asked = self.server.range(query.replace("@", self._chosen()), span.start, span.end, step)
        found = [self._named(one, source) for one in asked if one.times]
        if found and source.exporter not in self.exporters:
            self.exporters.append(source.exporter)
        return [_counted(one, source) for one in found]

    def _find_pace(self, exporter: str, span: Span) -> float:
        """Seconds from one scrape to the next, 0 if the nodes are not told of at all."""
        if exporter not in self.pace:
            probe = {_NODE_EXPORTER: "node_load1", _DCGM: "DCGM_FI_DEV_GPU_UTIL"}.get(exporter)
            names = [probe] if probe else ["rocm_utilization_percentage", "omnistat_mem_total_bytes"]
            # At its end, where that is enough; what is scraped seldom has few samples anyway.
            windows = (_PROBE_SECONDS, max(span.end - span.start, _PROBE_SECONDS))
            answers = (self._distances(name, span.end, window) for window in windows for name in names)
            found = sorted(next(filter(None, answers), []))
            median = found[len(found) // 2] if found else 0.0
            self.pace[exporter] = min(max(median, 0.1), _LONGEST_DISTANCE) if found else 0.0
        return self.pace[exporter]

    def _distances(self, name: str, end: float, seconds: float) -> list[float]:
        found = self.server.moments(f"{name}{{{self._chosen()}}}[{lasting(seconds)}]", end)
        return [b - a for one in found for a, b in zip(one.times, one.times[1:])]

    def _chosen(self) -> str:
        names = "|".join(re.sub(r"[^A-Za-z0-9_-]", lambda it: "\\" + it[0], name) for name in self.nodes)
        pattern = "(" + names + r")(\..*)?(:[0-9]+)?"
        return f"{self._label}=~{quote(pattern)}"

    def _named(self, one: Found, source: _Source) -> Found:
        theirs = one.labels.get(self._label, "")
        labels = {"node": self.nodes.get(_short(theirs), _ENDING.sub("", theirs)), "cluster": ""}
        for ours, name in source.labels.items():
            labels[ours] = name[1:] if name.startswith("=") else one.labels.get(name, "")
        return Found(labels, one.times, [value * source.factor for value in one.values])


class ExporterReader(TsdbReader):
    """Of these nodes; `label` is the label that names them, as HOST or HOST:PORT."""

    def __init__(self, server: Server, nodes: Sequence[str], label: str = "instance") -> None:
        self._of = ExporterSeries(server, nodes, label)
        super().__init__(server, self._of)

    @property
    def pace(self) -> float:
        """Seconds from one scrape to the next, 0 if unknown."""
        return round(max(self._of.pace.values(), default=0.0), 1)

    @property
    def exporters(self) -> list[str]:
        """Those that have told something."""
        return self._of.exporters

    def _broken(self, span: Span, set_name: str, names: list[str], longest: float) -> list[str]:
        return sorted(self._of.nodes.values())

    def breaks(
        self, span: Span, set_name: str, counters: Sequence[str], longest: float
    ) -> dict[str, list[Break]]:
        """A scrape that was missed is no break: their counters are the kernel's."""
        return super().breaks(span, set_name, counters, math.inf)

    def processes(self, span: Span) -> list[ProcessUse]:
        return []


def _short(name: str) -> str:
    """c1 of c1.example.org:9100."""
    return _ENDING.sub("", name).partition(".")[0]


def _counted(one: Found, source: _Source) -> Found:
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
