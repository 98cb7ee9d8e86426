"""The energy of a job and its source: meters measure nodes, and jobs share nodes."""

from __future__ import annotations

from typing import Any

from joblens.analysis.node_context import of_all_cores
from joblens.analysis.series.rates import increase
from joblens.attribution.energy import node_energy, share
from joblens.collectors.energy.reading import ACCELERATOR, SCHEMA
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
