"""What a job's energy was, with how that is known: meters measure nodes, and jobs share these."""

from __future__ import annotations

from typing import Any

from joblens.analysis.view import Gpu
from joblens.attribution.energy import node_energy, share
from joblens.collectors.energy_reading import SCHEMA
from joblens.model import ABSENT, Rows
from joblens.store.reader import Reader, Series, Span

_BUSY = ("user_seconds", "nice_seconds", "system_seconds", "irq_seconds", "softirq_seconds")
_KWH = 3_600_000  # joules


def find_energy(
    reader: Reader, span: Span, gpus: list[Gpu], cpu_seconds: float | None, grams_per_kwh: float | None
) -> dict[str, Any] | None:
    """None where nothing measures it."""
    of_gpus = [gpu.energy_joules for gpu in gpus if gpu.energy_joules is not None]
    own = sum(of_gpus) if of_gpus else None
    rest, how, has_gpus = _of_node(reader, span, own, cpu_seconds)
    if rest is None and own is None:
        return None
    joules = (rest or 0.0) + (0.0 if has_gpus else own or 0.0)
    words = [how] if how else []
    if own is not None and not has_gpus:
        words.append("the counters of its GPUs")
    return {
        "joules": joules,
        "gpu_joules": own,
        "watts_mean": joules / (span.end - span.start) if span.end > span.start else None,
        "how": " and ".join(words),
        "carbon_grams": None if grams_per_kwh is None else joules / _KWH * grams_per_kwh,
    }


def _of_node(
    reader: Reader, span: Span, gpu_joules: float | None, cpu_seconds: float | None
) -> tuple[float | None, str, bool]:
    """The job's part of what the node's meters count, how it was made, and whether its GPUs are in it."""
    meters = reader.split(span, SCHEMA.set, SCHEMA.labels, ("energy_joules",), 1000)
    used = {labels: increase(series, "energy_joules") for labels, series in meters.items()}
    known = [value for found in used.values() for value in (ABSENT, ABSENT if found is None else 0, ABSENT)]
    chosen = node_energy(Rows(SCHEMA, tuple(used), known))
    counted = list(used.values())
    joules = [counted[number] for number in chosen.rows]
    busy = _busy(reader, span) if joules else None
    if cpu_seconds is None or busy is None:
        return None, "", False
    inside = (gpu_joules or 0.0) if chosen.accelerators else 0.0
    found = share(
        sum(value or 0.0 for value in joules),
        cpu_seconds,
        busy,
        job_accelerator_joules=inside,
        accelerator_joules=inside,
        covers=chosen.covers,
    )
    return (found.joules, found.how, chosen.accelerators) if found else (None, "", False)


def _busy(reader: Reader, span: Span) -> float | None:
    """Core seconds that the node spent on anything."""
    series = reader.series(span, "cpu", _BUSY, 1000)
    parts = [increase(series, name) for name in _BUSY]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def increase(series: Series, name: str) -> float | None:
    """Of a counter from its first to its last sample. One that goes back has begun anew."""
    known = [value for value in series.last.get(name) or [] if value is not None]
    if len(known) < 2:
        return None
    return sum(now - before if now >= before else now for before, now in zip(known, known[1:]))
