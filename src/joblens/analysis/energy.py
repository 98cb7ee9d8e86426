"""The energy of a job and its source: meters measure nodes, and jobs share nodes.

Meters overlap (joblens.collectors.energy.collector), so most of them are left out. On a node shared by
several jobs, one job's part cannot be measured: it is an estimate, which states its method.
"""

from __future__ import annotations

from typing import Any

from joblens.analysis.node_context import of_all_cores
from joblens.analysis.series.rates import increase
from joblens.collectors.energy.reading import (
    ACCELERATOR,
    CPU,
    DRAM,
    MEMORY,
    MODULE,
    NODE,
    PACKAGE,
    PLATFORM,
    SCHEMA,
)  # fmt: skip
from joblens.core.model import ABSENT, Rows
from joblens.core.named_tuple import NamedTuple
from joblens.record.report import Energy, GpuUse
from joblens.store.reader import Reader, Series, Span

_BUSY = ("user_seconds", "nice_seconds", "system_seconds", "irq_seconds", "softirq_seconds")
_KWH = 3_600_000  # joules
_SHORTEST = 1.0  # seconds: meters are renewed ten times a second, some less often
_POINTS = 1000
_COLUMNS = ("energy_joules", "power_watts")
_OF_GPUS = {"counter": "the counters of its GPUs", "power": "the power of its GPUs over time"}

# Domains that are more than a part of a processor, and their names in reports.
_WORDS = {
    PLATFORM: "platform",
    MODULE: "module",
    PACKAGE: "CPU",
    CPU: "CPU",
    DRAM: "memory",
    MEMORY: "memory",
}


class _Part(NamedTuple):
    joules: float
    how: str
    has_gpus: bool  # whether those of the job are in it


def find_energy(
    reader: Reader,
    span: Span,
    seconds: float,
    gpus: list[GpuUse],
    cpu_seconds: float | None,
    grams_per_kwh: float | None,
    exclusive: bool = False,
    around: Span | None = None,
) -> Energy | None:
    """None where nothing measures it, or the job was too short for that. `around`: whose meters are meant."""
    if seconds < _SHORTEST:
        return None
    nodes = _find_nodes(reader, span, around or span, gpus, cpu_seconds, exclusive)
    known = [gpu for gpu in gpus if gpu.energy_joules is not None]
    if not nodes and not known:
        return None
    apart = [gpu for gpu in known if not (gpu.node in nodes and nodes[gpu.node].has_gpus)]
    joules = sum(part.joules for part in nodes.values()) + sum(gpu.energy_joules or 0.0 for gpu in apart)
    words = [*(part.how for part in nodes.values()), *(_OF_GPUS[gpu.energy_from or "power"] for gpu in apart)]
    return Energy(
        joules,
        " and ".join(dict.fromkeys(words)),
        gpu_joules=sum(gpu.energy_joules or 0.0 for gpu in known) if known else None,
        watts_mean=joules / seconds,
        carbon_grams=None if grams_per_kwh is None else joules / _KWH * grams_per_kwh,
    )


def _find_nodes(
    reader: Reader, span: Span, around: Span, gpus: list[GpuUse], cpu_seconds: float | None, exclusive: bool
) -> dict[str, _Part]:
    """By node, the job's part of what its meters count."""
    meters: dict[str, dict[tuple[str, ...], Series]] = {}
    found_by = reader.split(around, SCHEMA.set, ("node", *SCHEMA.labels), _COLUMNS, _POINTS)
    for labels, series in found_by.items():
        meters.setdefault(labels[0], {})[labels[1:]] = series
    if not meters:
        return {}
    jobs = reader.split(span, "job", ("node",), ("cpu_seconds",), _POINTS)
    own = {labels[0]: increase(series.last.get("cpu_seconds") or []) for labels, series in jobs.items()}
    if len(meters) == 1 and len(around.nodes) < 2:  # then the kernel's total is the node's, and that is exact
        own = dict.fromkeys(meters, cpu_seconds)
    busy = of_all_cores(reader, around, _BUSY)
    found = {}
    for node, some in meters.items():
        joules = sum(gpu.energy_joules or 0.0 for gpu in gpus if gpu.node == node)
        part = _share(some, joules, own.get(node), busy.get(node), exclusive)
        if part:
            found[node] = part
    return found


def _share(
    meters: dict[tuple[str, ...], Series],
    gpu_joules: float,
    cpu_seconds: float | None,
    busy: float | None,
    exclusive: bool,
) -> _Part | None:
    counted = {labels: increase(series.last.get("energy_joules") or []) for labels, series in meters.items()}
    covers, unit = _choose(counted), "energy"
    if not covers.rows:
        counted = {labels: _by_power(series) for labels, series in meters.items()}
        covers, unit = _choose(counted), "power over time"
    if not covers.rows or cpu_seconds is None or busy is None:
        return None
    values = list(counted.values())
    inside = gpu_joules if covers.accelerators else 0.0
    found = share(
        sum(values[number] or 0.0 for number in covers.rows),
        cpu_seconds,
        busy,
        job_accelerator_joules=inside,
        accelerator_joules=max(inside, _accelerators(counted)) if covers.accelerators else 0.0,
        covers=covers.covers,
        exclusive=exclusive,
    )
    if found is None:
        return None
    return _Part(found.joules, found.how.replace("energy", unit), covers.accelerators)


def _choose(counted: dict[tuple[str, ...], float | None]) -> Any:
    known = [
        value for found in counted.values() for value in (ABSENT, ABSENT if found is None else 0, ABSENT)
    ]
    return node_energy(Rows(SCHEMA, tuple(counted), known))


def _by_power(series: Series) -> float | None:
    """Each value stands for the time since the one before."""
    power = series.mean.get("power_watts") or []
    steps = [
        watts * (series.times[n] - series.times[n - 1])
        for n, watts in enumerate(power)
        if n and watts is not None
    ]
    return sum(steps) if steps else None


def _accelerators(counted: dict[tuple[str, ...], float | None]) -> float:
    """Energy of all accelerators in the node. Where there is a sum of them too, it includes the others."""
    known = {labels[2]: (labels[3], value) for labels, value in counted.items() if labels[1] == ACCELERATOR}
    return sum(value or 0.0 for above, value in known.values() if above not in known)


class NodeEnergy(NamedTuple):
    """Numbers of the rows that can be added without counting energy twice."""

    rows: tuple[int, ...]
    covers: str  # node, platform, module, CPU and memory, CPU
    accelerators: bool  # whether accelerators are included already


def node_energy(rows: Rows, column: str = "energy_joules") -> NodeEnergy:
    """Select from the set `energy`: the meter of the node, else of the platform, else packages and memory.

    With `power_watts` the same for power: an ACPI meter has no energy.
    """
    at, width = rows.schema.position(column), len(rows.schema.columns)
    known = [number for number in range(len(rows.keys)) if rows.values[number * width + at] != ABSENT]
    domains = {number: str(rows.keys[number][1]) for number in known}
    whole = [number for number in known if domains[number] == NODE]
    if whole:
        return NodeEnergy((whole[0],), "node", True)
    known = [number for number in known if domains[number] in _WORDS]
    chosen = [number for number in known if not _is_inside(rows, number, known)]
    # Two sources with processors refer to the same ones.
    chosen = [number for number in chosen if rows.keys[number][0] == rows.keys[chosen[0]][0]]
    words = list(dict.fromkeys(_WORDS[domains[number]] for number in chosen))
    # A module includes its GPU. The platform's counter includes what the board feeds: which cards is unknown.
    return NodeEnergy(tuple(chosen), " and ".join(words), "platform" in words or "module" in words)


def _is_inside(rows: Rows, number: int, others: list[int]) -> bool:
    """Whether another one includes its energy, through any number of sensors."""
    above = {str(key[2]): str(key[3]) for key in rows.keys}
    counted = {str(rows.keys[other][2]) for other in others}
    sensor, steps = str(rows.keys[number][3]), len(rows.keys)
    while sensor and steps:
        if sensor in counted:
            return True
        sensor, steps = above.get(sensor, ""), steps - 1
    return False


class Share(NamedTuple):
    joules: float
    how: str


def share(
    node_joules: float,
    job_cpu_seconds: float,
    busy_cpu_seconds: float,
    *,
    exclusive: bool = False,
    job_accelerator_joules: float = 0.0,
    accelerator_joules: float = 0.0,
    covers: str = "node",
) -> Share | None:
    """Return one job's part of a node's energy in the same time, None without a basis for it.

    `accelerator_joules` is the energy of all accelerators, if it is included in `node_joules`: each of them
    is used by one job, so it is known and not shared.
    """
    if exclusive:
        return Share(node_joules, f"all of the {covers}'s energy, as the job had the node alone")
    rest = max(node_joules - accelerator_joules, 0.0)
    own = min(max(job_accelerator_joules, 0.0), max(accelerator_joules, 0.0))
    words = ["that of the job's own accelerators"] if own else []
    part = 0.0
    if busy_cpu_seconds > 0:
        # The two are read one after the other, so a job can appear to have used more than the node.
        part = min(max(job_cpu_seconds, 0.0) / busy_cpu_seconds, 1.0)
        words.append(f"the {covers}'s {'other ' if own else ''}energy by share of busy core time")
    return Share(own + rest * part, ", ".join(words)) if words else None
