"""Usage of a job: the kernel's totals where there are any, else samples."""

from __future__ import annotations

from joblens.analysis.demand import add_demand, find_unsampled
from joblens.analysis.rule_input import mean
from joblens.analysis.series.timeline import steady
from joblens.record.job import IoTotals, Totals
from joblens.record.report import Point, ProcessUse, Used
from joblens.store.reader import Series

_MARK = "the kernel's mark of the largest process"


def find_used(
    duration: float,
    totals: Totals,
    series: Series,
    points: list[Point],
    processes: list[ProcessUse],
    is_exact: bool,
    shared_quota: float | None,
    interval: float = 0.0,
    end: float | None = None,
) -> Used:
    """`shared_quota`: cores that a cgroup allows the job together with others; None for a group of its own.

    Both are bounds from below (the kernel does not count who was not waited for): the larger holds."""
    io = totals.io or IoTotals()
    parts = [it for it in (totals.user_seconds, totals.system_seconds) if it is not None]
    both = sum(parts) if parts else None
    exact = _largest(both, totals.cpu_seconds) if totals.is_known else None
    cpu = _largest(exact, _last(series, "cpu_seconds"))
    peak, source = find_memory_peak(totals.largest_rss_bytes, points, processes)
    cores = cpu / duration if cpu is not None and duration > 0 else None
    seen = max((p.cores for p in steady(points) if p.cores is not None), default=None)
    used = Used(
        duration_seconds=duration,
        cpu_seconds=cpu,
        cpu_seconds_exact=exact,
        user_seconds=totals.user_seconds,
        system_seconds=totals.system_seconds,
        cores_mean=cores,
        cores_peak=None if seen is None else _largest(seen, cores),  # samples miss what was short
        memory_peak_bytes=peak,
        memory_from=source,
        memory_mean_bytes=_mean_memory(series, points, peak),
        read_bytes=_largest(io.read, _last(series, "read_bytes")),
        written_bytes=_largest(io.written, _last(series, "written_bytes")),
        read_chars_bytes=_largest(io.read_chars, _last(series, "read_chars_bytes")),
        written_chars_bytes=_largest(io.written_chars, _last(series, "written_chars_bytes")),
        major_faults=totals.major_faults,
        involuntary_switches=totals.involuntary_switches,
        processes=max(len(processes), 1 if totals.is_known else 0),
        threads_peak=max((p.threads for p in points if p.threads is not None), default=None),
        unsampled_seconds=find_unsampled(cpu, is_exact, processes, interval, end),
    )
    add_demand(used, series, points, processes, _quota_part(cpu, duration, shared_quota))
    return used


def _quota_part(cpu: float | None, duration: float, quota: float | None) -> float:
    """While a group is stopped it has used all of its quota: what of that the job has used."""
    if quota is None:
        return 1.0
    return min((cpu or 0.0) / (quota * duration), 1.0) if quota * duration > 0 else 0.0


def _mean_memory(series: Series, points: list[Point], peak: float | None) -> float | None:
    """Return the mean of the series: points have maxima, which over a long interval exceed the mean.

    The last sample, taken after the job's end, is in the series only; so the mean is limited to the peak.
    """
    if not points:
        return None
    means = series.mean.get("memory_bytes") or []
    stretches = zip((points[0].start, *series.times), series.times, means)
    found = mean([(value, end - start) for start, end, value in stretches if value is not None])
    return found if found is None or peak is None else min(found, float(peak))


def find_memory_peak(
    mark: float | None, points: list[Point], processes: list[ProcessUse]
) -> tuple[float | None, str]:
    """Return the peak of anonymous and shared memory, and its source.

    A peak between two samples shows in the kernel's high-water mark of one process. That includes pages of
    files: those of the largest process are subtracted. If they are a large part, the rest may be files too.
    """
    seen = max((point.memory for point in points if point.memory is not None), default=None)
    largest = max(processes, key=lambda process: process.memory_peak_bytes or 0, default=None)
    of_files = (largest.file_peak_bytes or 0) if largest else 0
    if mark is not None and seen is not None and (mark - of_files <= seen or of_files > mark / 4):
        mark = None
    if mark is not None:
        return max(mark - of_files, 0), _MARK
    if seen is not None:
        return int(seen), "samples"
    return None, "unknown"


def _largest(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _last(series: Series, name: str) -> float | None:
    return next((value for value in reversed(series.last.get(name, [])) if value is not None), None)
