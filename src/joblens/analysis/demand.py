"""Demand that was not met: cores that other processes had, a CPU quota, storage.

All are shares of what it wanted, so that they do not depend on how many processes and cores it has.
"""

from __future__ import annotations

from joblens.analysis.processes import cpu_of
from joblens.analysis.rule_input import mean
from joblens.analysis.series.rates import increase, increase_between
from joblens.record.report import Point, ProcessUse, Used
from joblens.store.reader import Reader, Series, Span

_POINTS = 120
_MOST_UNSAMPLED = 10.0  # times the CPU time of sampled processes
_TICKS = 0.02  # seconds: user and system time are in hundredths
_LEAST_SAMPLED = 0.25  # CPU seconds: how less than that waited says nothing about the others
_LEAST_CARRIED = 0.5  # of what the job moved, for a device to be the one that it waited for
_STORAGE = (
    ("disk", "device", ("read_bytes", "written_bytes")),
    ("nfs", "mount", ("server_read_bytes", "server_written_bytes")),
    ("lustre", "filesystem", ("read_bytes", "written_bytes")),
)
_BESIDE = 5.0  # seconds before its start and after its end in which a node is sampled once at least
# A device that others are made of carries the same bytes once more.
_MADE_OF_OTHERS = ("dm-", "md", "loop", "zram", "ram", "bcache")


def add_demand(
    used: Used, series: Series, points: list[Point], processes: list[ProcessUse], quota_part: float
) -> None:
    """Add to `used` what it waited for. `run_delay_share`: of the time ready or running, that without a core.

    Processes that end between two samples leave no run-queue delay behind, so the share is that of the
    sampled ones. `quota_part`: how much of the cgroup's CPU quota the job itself has used, 1 if the cgroup
    is its own. A quota that others share stops them too.
    """
    cpu, throttled = used.cpu_seconds, _last(series, "throttled_seconds")
    delayed = [it for it in processes if it.run_delay_seconds is not None]
    waited = sum(it.run_delay_seconds or 0.0 for it in delayed)
    if throttled is not None:
        throttled *= quota_part
    waited = max(waited - (throttled or 0.0), 0.0)
    ran = sum(cpu_of(it) or 0.0 for it in delayed)
    share = waited / (waited + ran) if delayed and waited + ran > 0 else None
    held = throttled / (throttled + cpu) if throttled and cpu is not None else None
    kills = _last(series, "oom_kills")
    used.run_delay_seconds = _last(series, "run_delay_seconds")
    used.run_delay_share = share
    used.throttled_seconds = throttled
    used.throttled_share = held
    used.oom_kills = None if kills is None else int(kills)
    used.cores_delayed = _delayed(points, used.run_delay_seconds, throttled, cpu, ran)
    used.blocked_mean, used.blocked_share = _blocked(points)


def raise_delay(used: Used, exact: float | None) -> None:
    """Samples miss what a process waited after the last of them, and processes that none of them saw."""
    if exact is None or exact <= (used.run_delay_seconds or 0.0):
        return
    used.run_delay_seconds = exact
    if used.cores_delayed is not None and used.duration_seconds:
        delayed = max(exact - (used.throttled_seconds or 0.0), 0.0) / used.duration_seconds
        used.cores_delayed = max(used.cores_delayed, delayed)


def _delayed(
    points: list[Point], total: float | None, throttled: float | None, cpu: float | None, sampled: float
) -> float | None:
    """Threads that were ready to run and had no core, on average; those of processes that no sample saw as
    often as the others.

    On a full node joblens waits for a core, too: what was added in a gap is in the counter.
    """
    known = [point for point in points if point.delayed is not None]
    if not known:
        return None
    waited, seconds = sum((p.delayed or 0.0) * p.seconds for p in known), sum(p.seconds for p in known)
    if total is not None and total > waited:
        waited, seconds = total, sum(point.seconds for point in points)
    return max(waited - (throttled or 0.0), 0.0) / seconds * unsampled_factor(cpu, sampled)


def unsampled_factor(cpu: float | None, sampled: float) -> float:
    return min(max((cpu or 0.0) / sampled, 1.0), _MOST_UNSAMPLED) if sampled >= _LEAST_SAMPLED else 1.0


def _blocked(points: list[Point]) -> tuple[float | None, float | None]:
    """Processes that waited for storage on average, and that as a share of all that had something to do."""
    known = [point for point in points if point.blocked is not None and point.cores is not None]
    blocked = mean([(point.blocked or 0.0, point.seconds) for point in known])
    active = mean([((point.cores or 0.0) + (point.delayed or 0.0), point.seconds) for point in known])
    if blocked is None or active is None or blocked + active <= 0:
        return blocked, None
    return blocked, blocked / (blocked + active)


def find_unsampled(
    cpu: float | None,
    exact: bool,
    processes: list[ProcessUse],
    interval: float = 0.0,
    end: float | None = None,
) -> float | None:
    """Return the CPU seconds of processes too short to be sampled; None if the total is not exact.

    Usage of a sampled process after its last sample is not included: up to an interval, or as much again for
    a shorter one. Until the job's `end`, each thread of the last sample may have used a core.
    """
    if cpu is None or not exact:
        return None
    seen = after = 0.0
    for it in processes:
        used = cpu_of(it) or 0.0  # unknown: no sample has seen it
        seen += used
        after += used * min(1.0, interval / max(it.last - it.first, interval, 0.001))
    missing = max(cpu - seen, 0.0)
    return missing - after / 2 if missing > max(after, _most_at_end(processes, end)) else 0.0


def _most_at_end(processes: list[ProcessUse], end: float | None) -> float:
    """CPU seconds that those of the last sample can have used after it, and two ticks each before it."""
    last = max((it.last for it in processes), default=0.0)
    busy = [it for it in processes if it.last == last and cpu_of(it)]
    return sum(max((end or last) - last, 0.0) * max(it.threads or 1, 1) + _TICKS for it in busy)


def find_forks(reader: Reader, span: Span) -> int | None:
    """Processes and threads that the kernel created on the job's nodes meanwhile, by whomever."""
    beside = max(_BESIDE, (span.end - span.start) / _POINTS)
    around = span._replace(start=span.start - beside, end=span.end + beside)
    found = reader.split(around, "kernel", ("node",), ("forks",), _POINTS)
    counts = [
        increase_between(series.times, series.last.get("forks") or [], span.start, span.end)
        for series in found.values()
    ]
    known = [count for count in counts if count is not None]
    return int(sum(known)) if known else None


def find_device(reader: Reader, span: Span, moved: float) -> str:
    """The disk or network file system that carried most meanwhile, for whomever.

    "" if none carried much of what the job has moved: then it was another.
    """
    sums: dict[str, float] = {}
    for kind, label, columns in _STORAGE:
        for (name,), series in reader.split(span, kind, (label,), columns, _POINTS).items():
            if kind != "disk" or not name.startswith(_MADE_OF_OTHERS):
                sums[name] = sum(increase(values) or 0.0 for values in series.last.values())
    # Of a disk and its only partition, the disk.
    busiest = max(sums, key=lambda name: (sums[name], -len(name)), default="")
    return busiest if sums.get(busiest, 0.0) > _LEAST_CARRIED * moved else ""


def _last(series: Series, name: str) -> float | None:
    return next((value for value in reversed(series.last.get(name, [])) if value is not None), None)
