"""Use of each GPU of a job, also of those that it held and never used."""

from __future__ import annotations

from joblens.analysis.rule_input import mean
from joblens.analysis.series.rates import increase, rates
from joblens.record.report import HELD, GpuPoint, GpuUse, Used
from joblens.store.reader import Reader, Series, Span

_CARD = ("node", "gpu")
_LABELS = (*_CARD, "index", "model", "given")
_COLUMNS = (
    "processes", "busy_ratio", "busy_seconds", "memory_used_bytes", "memory_total_bytes", "power_watts",
    "energy_joules",
)  # fmt: skip
_IDLE = 0.02  # a driver's own work shows as a percent or so
_ENOUGH = 0.5  # of the time must be known for a mean of it


def find_gpus(reader: Reader, span: Span, points: int, longest: float) -> list[GpuUse]:
    """By node and index."""
    found = reader.split(span, "job_gpu", _CARD, _COLUMNS, points)
    seen = ("processes", "busy_ratio")  # one of them is always sampled
    names = _names(reader.split(span, "job_gpu", _LABELS, seen, points)) if found else {}
    every = [_gpu(names[card], series, longest) for card, series in found.items() if card in names]
    return sorted(every, key=lambda gpu: (gpu.node, len(gpu.index), gpu.index, gpu.gpu))


def _names(found: dict[tuple[str, ...], Series]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """A card can be known in several ways, one after the other: that it was given counts, then how long."""
    ordered = sorted(found, key=lambda labels: (labels[-1] in HELD, len(found[labels].times)))
    return {labels[:2]: labels for labels in ordered}


def _gpu(labels: tuple[str, ...], series: Series, longest: float) -> GpuUse:
    found = make_gpu_points(series, longest)
    times = _times_of_use(series, found)
    busy = [(point.busy, point.seconds) for point in found if point.busy is not None]
    whole = sum(point.seconds for point in found)
    joules, source = _energy(series, found)
    node, gpu, index, model, given = labels
    return GpuUse(
        node,
        gpu,
        index,
        model,
        given,
        used=bool(times),
        first_use=min(times, default=None),
        last_use=max(times, default=None),
        watched_seconds=sum(point.seconds for point in found if point.is_known),
        processes_seen=all(point.processes is not None for point in found if point.is_known),
        busy_mean=mean(busy) if sum(seconds for _, seconds in busy) >= _ENOUGH * whole else None,
        busy_peak=max((value for value, _ in busy), default=None),
        memory_peak_bytes=_most(series, "memory_used_bytes"),
        memory_total_bytes=_most(series, "memory_total_bytes"),
        energy_joules=joules,
        energy_from=source,
        timeline=found,
    )


def _times_of_use(series: Series, points: list[GpuPoint]) -> list[float]:
    """With a process on it, or busy: processes may be others' by name, as with MPS, or not seen at all."""
    counts = series.peak.get("processes") or []
    times = [time for time, count in zip(series.times, counts) if count]
    return times + [moment for p in points if (p.busy or 0.0) > _IDLE for moment in (p.start, p.end)]


def make_gpu_points(series: Series, longest: float) -> list[GpuPoint]:
    """Return a point from each sample to the next, with the values of the sample at its end."""
    times = series.times
    unknown: list[float | None] = [None] * len(times)
    rate = rates(times, series.last.get("busy_seconds") or unknown, longest)
    ratio, power = (series.mean.get(name) or unknown for name in ("busy_ratio", "power_watts"))
    processes, memory = (series.peak.get(name) or unknown for name in ("processes", "memory_used_bytes"))
    found = []
    for n in range(1, len(times)):
        if times[n] - times[n - 1] <= longest:
            load = ratio[n] if ratio[n] is not None else rate[n - 1]
            busy = None if load is None else min(load, 1.0)
            found.append(GpuPoint(times[n - 1], times[n], processes[n], busy, memory[n], power[n]))
    return found


def _energy(series: Series, points: list[GpuPoint]) -> tuple[float | None, str]:
    """By the card's own counter, else by its power over time."""
    counted = increase(series.last.get("energy_joules") or [])
    if counted is not None:
        return counted, "counter"
    power = [point.power * point.seconds for point in points if point.power is not None]
    return (sum(power), "power") if power else (None, "")


def _most(series: Series, name: str) -> float | None:
    return max((value for value in series.peak.get(name) or [] if value is not None), default=None)


def sum_up(gpus: list[GpuUse], used: Used) -> None:
    """Add the figures of all cards to what the job used."""
    busy = [gpu.busy_mean for gpu in gpus if gpu.busy_mean is not None]
    energy = [gpu.energy_joules for gpu in gpus if gpu.energy_joules is not None]
    memory = [gpu.memory_peak_bytes for gpu in gpus if gpu.memory_peak_bytes is not None]
    used.gpus = sum(gpu.used for gpu in gpus)
    used.gpus_mean = sum(busy) if busy else None
    used.gpu_memory_peak_bytes = sum(memory) if memory else None
    used.gpu_energy_joules = sum(energy) if energy else None
