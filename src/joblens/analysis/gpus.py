"""What a job did with each of its GPUs, also with those that it held and never used."""

from __future__ import annotations

from typing import Any

from joblens.analysis.rates import rates
from joblens.analysis.view import Gpu, GpuPoint, mean
from joblens.store.reader import Reader, Series, Span

_LABELS = ("node", "gpu", "index", "model", "given")
_COLUMNS = (
    "processes", "busy_ratio", "busy_seconds", "memory_used_bytes", "memory_total_bytes", "power_watts",
    "energy_joules",
)  # fmt: skip
_IDLE = 0.02  # a driver's own work shows as a percent or so


def find_gpus(reader: Reader, span: Span, points: int, longest: float) -> list[Gpu]:
    """By node and index."""
    found = reader.split(span, "job_gpu", _LABELS, _COLUMNS, points)
    every = [_gpu(labels, series, span, longest) for labels, series in _joined(found).items()]
    return sorted(every, key=lambda gpu: (gpu.node, len(gpu.number), gpu.number, gpu.gpu))


def _joined(found: dict[tuple[str, ...], Series]) -> dict[tuple[str, ...], Series]:
    """A card can be known in two ways one after the other: it counts as the one that was seen longest."""
    best: dict[tuple[str, ...], tuple[str, ...]] = {}
    for labels, series in found.items():
        before = best.get(labels[:2])
        if before is None or len(series.times) > len(found[before].times):
            best[labels[:2]] = labels
    return {labels: found[labels] for labels in best.values()}


def _gpu(labels: tuple[str, ...], series: Series, span: Span, longest: float) -> Gpu:
    found = make_gpu_points(series, longest)
    uses = [n for n, count in enumerate(series.peak.get("processes") or []) if count]
    busy = [(point.busy, point.seconds) for point in found if point.busy is not None]
    times = [series.times[n] for n in uses]
    if not times:  # processes that are not seen, as from inside a container, still keep it busy
        times = [moment for p in found if (p.busy or 0) > _IDLE for moment in (p.start, p.end)]
    node, gpu, index, model, given = labels
    return Gpu(
        node,
        gpu,
        index,
        model,
        given,
        bool(times),
        min(times, default=None),
        max(times, default=None),
        mean(busy),
        max((value for value, _ in busy), default=None),
        _most(series, "memory_used_bytes"),
        _most(series, "memory_total_bytes"),
        _energy(series, found),
        found,
    )


def make_gpu_points(series: Series, longest: float) -> list[GpuPoint]:
    """Each from one moment to the next; what is told of a stretch was seen at its end."""
    times = series.times
    ratios = series.mean.get("busy_ratio") or [None] * len(times)
    counter = series.last.get("busy_seconds") or [None] * len(times)
    rate = rates(times, counter, longest)
    memory = series.peak.get("memory_used_bytes") or [None] * len(times)
    power = series.mean.get("power_watts") or [None] * len(times)
    found = []
    for number in range(1, len(times)):
        if times[number] - times[number - 1] > longest:
            continue
        busy = ratios[number] if ratios[number] is not None else rate[number - 1]
        busy = None if busy is None else min(busy, 1.0)
        found.append(GpuPoint(times[number - 1], times[number], busy, memory[number], power[number]))
    return found


def _energy(series: Series, points: list[GpuPoint]) -> float | None:
    """By the card's own counter, else by its power over time."""
    counter = series.last.get("energy_joules") or []
    known = [value for value in counter if value is not None]
    if len(known) > 1:
        return sum(now - before if now >= before else now for before, now in zip(known, known[1:]))
    power = [(point.power, point.seconds) for point in points if point.power is not None]
    return sum(watts * seconds for watts, seconds in power) if power else None


def _most(series: Series, name: str) -> float | None:
    return max((value for value in series.peak.get(name) or [] if value is not None), default=None)


def sum_up(gpus: list[Gpu]) -> dict[str, Any]:
    """Over all cards, for `used`."""
    busy = [gpu.busy_mean for gpu in gpus if gpu.busy_mean is not None]
    energy = [gpu.energy_joules for gpu in gpus if gpu.energy_joules is not None]
    memory = [gpu.memory_peak_bytes for gpu in gpus if gpu.memory_peak_bytes is not None]
    return {
        "gpus": sum(gpu.used for gpu in gpus),
        "gpus_mean": sum(busy) if busy else None,  # so many were busy on average
        "gpu_memory_peak_bytes": sum(memory) if memory else None,
        "gpu_energy_joules": sum(energy) if energy else None,
    }
