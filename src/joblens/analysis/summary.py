"""One function that returns what is known of a job as plain data; every report shows this and no more."""

from __future__ import annotations

from typing import Any

from joblens.analysis.energy import find_energy
from joblens.analysis.events import find_events
from joblens.analysis.findings import find
from joblens.analysis.gpus import find_gpus, sum_up
from joblens.analysis.node import find_idle_cores, find_traffic
from joblens.analysis.points import make_points
from joblens.analysis.rates import gaps
from joblens.analysis.used import find_used
from joblens.analysis.verdict import verdict
from joblens.analysis.view import Gpu, View
from joblens.store.reader import ProcessUse, Reader, Span

_POINTS = 120
_MOST_PROCESSES = 200
_JOB_COLUMNS = (
    "cpu_seconds", "system_seconds", "memory_bytes", "read_bytes", "written_bytes", "read_chars_bytes",
    "written_chars_bytes", "processes", "threads",
)  # fmt: skip
_KEPT = "id cluster name user uid node source command folder tags environment".split()


def summarise(facts: dict[str, Any], end: dict[str, Any] | None, reader: Reader) -> dict[str, Any]:
    """From the facts at its start, the kernel's totals at its end if there are any, and the samples."""
    start = float((end or facts)["start"])
    looked = reader.sample_times(Span(facts["id"], start - 60, float(end["end"]) + 60 if end else 4e9))
    finish = float(end["end"]) if end else (looked[-1] if looked else start)
    span = Span(facts["id"], start, max(finish, start) + 1.0)
    interval = float(facts["interval"])
    series = reader.series(span, "job", _JOB_COLUMNS, _POINTS)
    processes = reader.processes(span)
    longest = max(3 * interval, 3 * (finish - start) / _POINTS, 1.0)
    points = make_points(start, finish, series, longest)
    job = _job(facts, end, start, finish)
    asked = {"cores": facts.get("cores"), "memory_bytes": facts.get("memory"), "time_seconds": None}
    totals = (end or {}).get("totals") or {}
    used = find_used(max(finish - start, 0.0), totals, series, points, processes, len(looked))
    used["node_idle_cores"] = find_idle_cores(reader, span)
    gpus = find_gpus(reader, span, _POINTS, longest)
    if gpus:
        asked |= {"gpus": sum(gpu.held for gpu in gpus) or None, **_gpu_memory(gpus)}
        used |= sum_up(gpus)
    holes = gaps(looked, start, finish, max(3 * interval, 0.5))
    view = View(job, asked, used, points, tuple(gpus))
    found = find(view)
    return {
        "job": job,
        "asked": asked,
        "used": used,
        "verdict": verdict(view, [finding.rule for finding in found]),
        "findings": [finding.plain() for finding in found],
        "timeline": [point._asdict() for point in points],
        "processes": [_process(process) for process in _worth_showing(processes)],
        "gpus": [gpu.plain() for gpu in gpus],
        "energy": find_energy(
            reader,
            span,
            finish - start,
            gpus,
            used["cpu_seconds"],
            facts.get("carbon_grams_per_kwh"),
            exclusive=_has_node_alone(facts, view),
        ),
        "traffic": find_traffic(reader, span),
        "events": [event.plain() for event in find_events(reader, span)],
        "gaps": [{"from": first, "to": last} for first, last in holes],
        "data": {
            "samples": len(looked),
            "interval_seconds": interval,
            "exact": end is not None,
            "problems": list((end or {}).get("problems") or []),
        },
    }


def _job(facts: dict[str, Any], end: dict[str, Any] | None, start: float, finish: float) -> dict[str, Any]:
    job = {name: facts.get(name) for name in _KEPT}
    signal = (end or {}).get("signal")
    code = (end or {}).get("exit_code")
    state = "UNKNOWN" if end is None else "COMPLETED" if code == 0 else "FAILED"
    return {
        **job,
        "start": start,
        "end": finish,
        "state": state,
        "exit_code": code,
        "signal": signal,
    }


def _has_node_alone(facts: dict[str, Any], view: View) -> bool:
    """A scheduler that gave it all cores gave them to nobody else."""
    return view.in_slurm and bool(facts.get("node_cores")) and view.cores >= float(facts["node_cores"])


def _gpu_memory(gpus: list[Gpu]) -> dict[str, Any]:
    sizes = [gpu.memory_total_bytes for gpu in gpus if gpu.memory_total_bytes is not None]
    return {"gpu_memory_bytes": sum(sizes) if sizes else None}


def _worth_showing(processes: list[ProcessUse]) -> list[ProcessUse]:
    """Those that used most, with their parents, in the order in which they began."""
    by_pid = {process.pid: process for process in processes}
    chosen: dict[tuple[int, int], ProcessUse] = {}
    for process in sorted(processes, key=_weight, reverse=True):
        current: ProcessUse | None = process
        while current is not None and (current.pid, current.start) not in chosen:
            if len(chosen) >= _MOST_PROCESSES:
                break
            chosen[(current.pid, current.start)] = current
            current = by_pid.get(current.parent)
    return [process for process in processes if (process.pid, process.start) in chosen]


def _weight(process: ProcessUse) -> tuple[float, int]:
    cpu = (process.user_seconds or 0) + (process.system_seconds or 0)
    return cpu, process.memory_peak_bytes or 0


def _process(process: ProcessUse) -> dict[str, Any]:
    found = process._asdict()
    return {
        **found,
        "cpu_seconds": (process.user_seconds or 0.0) + (process.system_seconds or 0.0),
        "exact": False,
    }
