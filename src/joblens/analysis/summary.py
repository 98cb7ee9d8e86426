"""One function that returns what is known of a job as plain data; every report shows this and no more."""

from __future__ import annotations

from typing import Any

from joblens.analysis.findings import find
from joblens.analysis.rates import gaps, rates
from joblens.analysis.view import Point, View, mean
from joblens.store.reader import ProcessUse, Reader, Series, Span

_POINTS = 120
_MOST_PROCESSES = 200
_JOB_COLUMNS = (
    "cpu_seconds", "system_seconds", "memory_bytes", "read_bytes", "written_bytes", "read_chars_bytes",
    "written_chars_bytes", "processes", "threads",
)  # fmt: skip


def summarise(facts: dict[str, Any], end: dict[str, Any] | None, reader: Reader) -> dict[str, Any]:
    """From the facts at its start, the kernel's totals at its end if there are any, and the samples."""
    start = float((end or facts)["start"])
    looked = reader.sample_times(Span(facts["id"], start - 60, float(end["end"]) + 60 if end else 4e9))
    finish = float(end["end"]) if end else (looked[-1] if looked else start)
    span = Span(facts["id"], start, max(finish, start) + 1.0)
    interval = float(facts["interval"])
    series = reader.series(span, "job", _JOB_COLUMNS, _POINTS)
    pressure = reader.series(span, "pressure", ("some_seconds",), _POINTS)
    processes = reader.processes(span)
    longest = max(3 * interval, 3 * (finish - start) / _POINTS, 1.0)
    points = make_points(start, finish, series, pressure, longest)
    job = _job(facts, end, start, finish)
    asked = {"cores": facts.get("cores"), "memory_bytes": facts.get("memory"), "time_seconds": None}
    used = _used(job, end, series, points, processes)
    holes = gaps(looked, start, finish, max(3 * interval, 0.5))
    view = View(job, asked, used, points)
    found = find(view)
    return {
        "job": job,
        "asked": asked,
        "used": used,
        "verdict": verdict(view, [finding.rule for finding in found]),
        "findings": [finding.plain() for finding in found],
        "timeline": [point._asdict() for point in points],
        "processes": [_process(process) for process in _worth_showing(processes)],
        "gaps": [{"from": first, "to": last} for first, last in holes],
        "data": {
            "samples": len(looked),
            "interval_seconds": interval,
            "exact": end is not None,
            "problems": list((end or {}).get("problems") or []),
        },
    }


def make_points(start: float, end: float, series: Series, pressure: Series, longest: float) -> list[Point]:
    """Each from one moment to the next. A job's counters are zero at its start, so that is the first."""
    if not series.times:
        return []
    times = [start, *series.times]
    if times[1] <= start:
        times[1] = start + 1e-6

    def rate(name: str) -> list[float | None]:
        counter = series.last.get(name)
        return rates(times, [0.0, *counter], longest) if counter else [None] * len(series.times)

    def peak(name: str) -> list[float | None]:
        return series.peak.get(name) or [None] * len(series.times)

    waited = dict(
        zip(pressure.times[1:], rates(pressure.times, pressure.last.get("some_seconds", []), longest))
    )
    cores, system, read, written = (
        rate(name) for name in ("cpu_seconds", "system_seconds", "read_bytes", "written_bytes")
    )
    memory, threads, processes = peak("memory_bytes"), peak("threads"), peak("processes")
    columns = (cores, system, memory, read, written, threads, processes)
    found = [
        Point._make([times[n], times[n + 1], *(c[n] for c in columns), waited.get(series.times[n])])
        for n in range(len(series.times))
        if times[n + 1] > times[n]
    ]
    return [point for point in found if point.start < end + 1e-3]


def _job(facts: dict[str, Any], end: dict[str, Any] | None, start: float, finish: float) -> dict[str, Any]:
    kept = (
        "id",
        "cluster",
        "name",
        "user",
        "uid",
        "node",
        "source",
        "command",
        "folder",
        "tags",
        "environment",
    )
    job = {name: facts.get(name) for name in kept}
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


def _used(
    job: dict[str, Any],
    end: dict[str, Any] | None,
    series: Series,
    points: list[Point],
    processes: list[ProcessUse],
) -> dict[str, Any]:
    """The kernel's totals where it gave them, else what sampling saw; where both are bounds, the larger."""
    duration = max(job["end"] - job["start"], 0.0)
    totals = (end or {}).get("totals") or {}
    io = totals.get("io") or {}
    exact = totals.get("user_seconds", 0.0) + totals.get("system_seconds", 0.0) if totals else None
    cpu = _largest(exact, _last(series, "cpu_seconds"))
    sampled = [point.memory for point in points if point.memory is not None]
    busy = [(point.cores, point.seconds) for point in points if point.cores is not None]
    looks = sum(process.looks for process in processes)
    return {
        "duration_seconds": duration,
        "cpu_seconds": cpu,
        "cpu_seconds_exact": exact,
        "user_seconds": totals.get("user_seconds"),
        "system_seconds": totals.get("system_seconds"),
        "cores_mean": cpu / duration if cpu is not None and duration > 0 else None,
        "cores_peak": _steady_peak(busy),
        **_memory(totals, sampled, processes),
        "memory_mean_bytes": mean([(p.memory, p.seconds) for p in points if p.memory is not None]),
        "read_bytes": _largest(io.get("read"), _last(series, "read_bytes")),
        "written_bytes": _largest(io.get("written"), _last(series, "written_bytes")),
        "read_chars_bytes": _largest(io.get("read_chars"), _last(series, "read_chars_bytes")),
        "written_chars_bytes": _largest(io.get("written_chars"), _last(series, "written_chars_bytes")),
        "major_faults": totals.get("major_faults"),
        "involuntary_switches": totals.get("involuntary_switches"),
        "processes": max(len(processes), 1 if end else 0),
        "threads_peak": max((p.threads for p in points if p.threads is not None), default=None),
        "io_wait_part": sum(p.looks_waiting for p in processes) / looks if looks else None,
    }


def _memory(totals: dict[str, Any], sampled: list[float], processes: list[ProcessUse]) -> dict[str, Any]:
    """Anonymous and shared memory. A peak between two looks shows in the kernel's mark for one process."""
    seen = max(sampled, default=None)
    mark = totals.get("largest_rss_bytes")
    if mark is not None:
        # The mark has pages of files in it, which are not memory used; the largest process had these.
        largest = max(processes, key=lambda process: process.memory_peak_bytes or 0, default=None)
        mark -= (largest.file_peak_bytes or 0) if largest else 0
    if seen is None and mark is None:
        return {"memory_peak_bytes": None, "memory_from": "unknown"}
    if seen is None or (mark is not None and mark > seen):
        return {
            "memory_peak_bytes": int(mark or 0),
            "memory_from": "the kernel's mark of the largest process",
        }
    return {"memory_peak_bytes": int(seen), "memory_from": "samples"}


def _largest(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _last(series: Series, name: str) -> float | None:
    return next((value for value in reversed(series.last.get(name, [])) if value is not None), None)


def _steady_peak(busy: list[tuple[float, float]]) -> float | None:
    """The most cores in use over a stretch that counts: in 20 ms one tick of the kernel is half a core."""
    long = [cores for cores, seconds in busy if seconds >= 0.25]
    return max(long or [cores for cores, _ in busy], default=None)


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


def verdict(view: View, rules: list[str]) -> str:
    """One sentence."""
    used, cores = view.used["cores_mean"], view.cores
    if view.job["state"] == "UNKNOWN":
        return "How it ended is not known: joblens was stopped before it."
    if "failed early" in rules:
        how = f"signal {view.job['signal']}" if view.job["signal"] else f"exit code {view.job['exit_code']}"
        return f"It failed with {how} before it did much."
    prefix = "It failed, and " if view.job["state"] == "FAILED" else "It "
    if used is None or view.duration < 1:
        return prefix + "was too short to judge how it used what it had."
    share = f"{used:.1f} of {cores:g} cores" if cores else f"{used:.1f} cores"
    sayings = {
        "I/O wait": f"waited for storage much of the time and used {share}.",
        "idle cores": f"used {share}; the others had nothing to do.",
        "memory growth": f"used {share}, and its memory grew to the end.",
        "serial phase": f"used {share}; for a part of the time only one worked.",
        "more threads than cores": f"used {share}, with more threads than these can run.",
    }
    for rule in rules:
        if rule in sayings:
            return prefix + sayings[rule]
    return prefix + (f"used {share}: well." if cores and used >= 0.75 * cores else f"used {share}.")
