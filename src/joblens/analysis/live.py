"""Current rates of nodes and jobs, from two successive samples of their counters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from joblens.analysis.series.rates import rates
from joblens.record.fields import read
from joblens.wire.live import LivePage, LiveSet

_NS = 1e9
_SHORTEST = 0.5  # seconds between two samples: rates over less are noise
_LONGEST = 300.0
_REMEMBERED = 5  # samples
# Made of other interfaces or disks, which count the same bytes, or seen by this machine alone.
_NOT_CABLES = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "cali", "tap", "tun", "vnet", "bond",
               "team", "dummy")  # fmt: skip
_NOT_DISKS = ("dm-", "md")

Figures = dict[str, float | None]
Key = tuple[str, ...]


class NodeNow(NamedTuple):
    cluster: str
    node: str
    state: str
    age: float
    cores: int | None
    cpu: float | None  # cores that are in use
    load: float | None
    memory: float | None
    memory_total: float | None
    read: float | None  # bytes per second, as all that follow
    written: float | None
    received: float | None
    sent: float | None
    gpus: int
    gpu_busy: float | None  # GPUs that are in use
    jobs: int


class JobNow(NamedTuple):
    cluster: str
    job: str
    user: str
    nodes: tuple[str, ...]
    cpu: float | None
    cores: float | None  # that it may use
    memory: float | None
    memory_limit: float | None
    read: float | None
    written: float | None
    gpus: int
    gpu_busy: float | None
    processes: float | None


class _SetSample(NamedTuple):
    time_ns: int
    cores: int | None
    rows: dict[Key, Figures]  # by labels


class _Node:
    def __init__(self) -> None:
        self.state, self.age = "", 0.0
        self.samples: dict[str, list[_SetSample]] = {}  # by set, the newest last

    def add(self, name: str, sample: _SetSample) -> None:
        samples = [it for it in self.samples.get(name, []) if it.time_ns != sample.time_ns]
        self.samples[name] = sorted([*samples, sample], key=lambda it: it.time_ns)

    def forget_after(self, newest: dict[str, int]) -> None:
        """Drop samples that are newer than the newest: they precede a step of the node's clock."""
        for name, time_ns in newest.items():
            kept = [it for it in self.samples[name] if it.time_ns <= time_ns]
            self.samples[name] = kept[-_REMEMBERED:]

    def latest(self, name: str) -> _SetSample | None:
        samples = self.samples.get(name)
        return samples[-1] if samples else None

    def value(self, name: str, key: Key, column: str) -> float | None:
        sample = self.latest(name)
        return None if sample is None else sample.rows.get(key, {}).get(column)

    def rate(self, name: str, key: Key, column: str) -> float | None:
        samples = self.samples.get(name) or []
        for before in reversed(samples[:-1]):
            if samples[-1].time_ns - before.time_ns >= _SHORTEST * _NS:
                pair = before, samples[-1]
                first, last = (it.rows.get(key, {}).get(column) for it in pair)
                if first is not None and last is not None and last < first:
                    return None  # it restarted: its values need not be of the same moment
                times = [it.time_ns / _NS - before.time_ns / _NS for it in pair]
                return rates(times, [first, last], _LONGEST)[0]
        return None


class Live:
    """Takes page after page of `/now`, of an agent or a hub."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, str], _Node] = {}

    def take(self, page: Any) -> None:
        """Raises ValueError if it is no such page."""
        there = {}
        for found in read(page, LivePage)["nodes"]:
            name = found["cluster"], found["node"]
            node = there[name] = self._nodes.get(name) or _Node()
            node.state, node.age = found["state"], _finite(found["age_seconds"]) or 0.0
            kept = {item["set"] for item in found["sets"]}
            if kept:  # a set that is no longer sent is unknown
                node.samples = {name: samples for name, samples in node.samples.items() if name in kept}
            newest: dict[str, int] = {}
            for item in found["sets"]:
                sample = _parse_sample(item)
                newest[item["set"]] = max(newest.get(item["set"], 0), sample.time_ns)
                node.add(item["set"], sample)
            node.forget_after(newest)
        self._nodes = there

    @property
    def has_rates(self) -> bool:
        """A user who shares nodes with others is shown the own jobs there, and no figures of the node."""
        seen = [*(node.cpu for node in self.nodes()), *(job.cpu for job in self.jobs())]
        return any(cpu is not None for cpu in seen)

    def nodes(self) -> list[NodeNow]:
        return [_node_now(*name, node) for name, node in self._nodes.items()]

    def jobs(self) -> list[JobNow]:
        parts: dict[tuple[str, str], list[tuple[_Node, Key]]] = {}
        for node in self._nodes.values():
            sample = node.latest("job")
            for key in sample.rows if sample else ():
                parts.setdefault((key[0], key[1]), []).append((node, key))
        users = self._users()
        return [_job_now(name, users.get(name, ""), found) for name, found in parts.items()]

    def _users(self) -> dict[tuple[str, str], str]:
        found = {}
        for node in self._nodes.values():
            sample = node.latest("job_info")
            for cluster, job, _, user, *_ in sample.rows if sample else ():
                found[cluster, job] = user
        return found


def _parse_sample(item: LiveSet) -> _SetSample:
    labels, columns = item["labels"], item["columns"]
    rows: dict[Key, Figures] = {}
    for row in item["rows"]:
        if len(row) != len(labels) + len(columns):
            raise ValueError("a row has not as many parts as are named")
        rows[tuple(map(str, row[: len(labels)]))] = dict(zip(columns, map(_finite, row[len(labels) :])))
    return _SetSample(item["time_ns"], item.get("cores"), rows)


def _finite(value: str | float | None) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) or not math.isfinite(value):
        raise ValueError(f"{value!r:.60} is not a number")
    return float(value)


def _node_now(cluster: str, name: str, node: _Node) -> NodeNow:
    cpu = node.latest("cpu")
    total = node.value("memory", (), "mem_total_bytes")
    free = node.value("memory", (), "mem_available_bytes")
    gpus = _cards(node)
    job = node.latest("job")
    return NodeNow(
        cluster,
        name,
        node.state,
        node.age,
        cpu.cores if cpu else None,
        _busy(node),
        node.value("load", (), "load1"),
        None if total is None or free is None else total - free,
        total,
        _sum_of(node, "disk", "read_bytes", _is_disk),
        _sum_of(node, "disk", "written_bytes", _is_disk),
        _sum_of(node, "network", "received_bytes", _is_cable),
        _sum_of(node, "network", "sent_bytes", _is_cable),
        len(gpus),
        _add(figures.get("busy_ratio") for figures in gpus),
        len(job.rows) if job else 0,
    )


def _busy(node: _Node) -> float | None:
    sample = node.latest("cpu")
    columns = sample.rows.get(("total",), {}) if sample else {}
    known = [column for column, value in columns.items() if value is not None]
    parts = [node.rate("cpu", ("total",), column) for column in known]
    return None if None in parts else _add(parts)  # the sum of some would be too little


def _sum_of(node: _Node, name: str, column: str, counts: Callable[[str], bool]) -> float | None:
    sample = node.latest(name)
    return _add(node.rate(name, key, column) for key in (sample.rows if sample else ()) if counts(key[0]))


def _is_disk(name: str) -> bool:
    return not name.startswith(_NOT_DISKS)


def _is_cable(name: str) -> bool:
    return not name.startswith(_NOT_CABLES) and "." not in name  # eth0.7 is a part of eth0


def _cards(node: _Node) -> list[Figures]:
    """Whole ones: `parent` is the last of the labels, and names the card that an instance is a part of."""
    sample = node.latest("gpu")
    return [figures for key, figures in sample.rows.items() if not key[-1]] if sample else []


def _job_now(name: tuple[str, str], user: str, parts: list[tuple[_Node, Key]]) -> JobNow:
    def rate(column: str) -> float | None:
        return _add(node.rate("job", key, column) for node, key in parts)

    def value(column: str) -> float | None:
        return _add(node.value("job", key, column) for node, key in parts)

    gpus = [figures for node, key in parts for figures in _gpus_of(node, key)]
    return JobNow(
        *name,
        user,
        tuple(sorted(key[2] for _, key in parts)),
        rate("cpu_seconds"),
        value("cpus"),
        value("memory_bytes"),
        value("memory_limit_bytes"),
        rate("read_bytes"),
        rate("written_bytes"),
        len(gpus),
        _add(figures.get("busy_ratio") for figures in gpus),
        value("processes"),
    )


def _gpus_of(node: _Node, job: Key) -> list[Figures]:
    sample = node.latest("job_gpu")
    return [figures for key, figures in sample.rows.items() if key[:3] == job[:3]] if sample else []


def _add(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
