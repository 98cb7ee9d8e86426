"""What a job wanted of the machine and did not get: cores that others had, a quota, storage.

All are shares of what it wanted, so that they do not depend on how many processes and cores it has.
"""

from __future__ import annotations

from typing import Any

from joblens.analysis.rates import increase
from joblens.analysis.view import Point, mean
from joblens.store.reader import ProcessUse, Reader, Series, Span

_POINTS = 120
_MOST_UNSAMPLED = 10.0  # times the CPU time of sampled processes
# A device that others are made of carries the same bytes once more.
_MADE_OF_OTHERS = ("dm-", "md", "loop", "zram", "ram", "bcache")


def find_demand(
    cpu: float | None, series: Series, points: list[Point], processes: list[ProcessUse], quota_part: float
) -> dict[str, Any]:
    """`run_delay_share`: of the time that its threads were ready to run or ran, that without a core.

    Processes that end between two samples leave no run-queue delay behind, so the share is that of the
    sampled ones. `quota_part`: how much of the cgroup's CPU quota the job itself has used, 1 if the cgroup
    is its own. A quota that others share stops them too.
    """
    throttled = _last(series, "throttled_seconds")
    delayed = [it for it in processes if it.run_delay_seconds is not None]
    waited = sum(it.run_delay_seconds or 0.0 for it in delayed)
    if throttled is not None:
        throttled *= quota_part
    waited = max(waited - (throttled or 0.0), 0.0)
    ran = sum((it.user_seconds or 0.0) + (it.system_seconds or 0.0) for it in delayed)
    share = waited / (waited + ran) if delayed and waited + ran > 0 else None
    held = throttled / (throttled + cpu) if throttled and cpu is not None else None
    kills = _last(series, "oom_kills")
    return {
        "run_delay_seconds": _last(series, "run_delay_seconds"),
        "run_delay_share": share,
        "throttled_seconds": throttled,
        "throttled_share": held,
        "oom_kills": None if kills is None else int(kills),
        "cores_delayed": _delayed(points, throttled, cpu, ran),
        **_blocked(points),
    }


def _delayed(points: list[Point], throttled: float | None, cpu: float | None, sampled: float) -> float | None:
    """Threads that were ready to run and had no core, on average; those of processes that no sample saw as
    often as the others."""
    known = [point for point in points if point.delayed is not None]
    found = mean([(point.delayed or 0.0, point.seconds) for point in known])
    if found is None:
        return None
    found -= (throttled or 0.0) / sum(point.seconds for point in known)
    return max(found, 0.0) * unsampled_factor(cpu, sampled)


def unsampled_factor(cpu: float | None, sampled: float) -> float:
    return min(max((cpu or 0.0) / sampled, 1.0), _MOST_UNSAMPLED) if sampled > 0 else 1.0


def _blocked(points: list[Point]) -> dict[str, float | None]:
    """Processes that waited for storage on average, and that as a share of all that had something to do."""
    known = [point for point in points if point.blocked is not None and point.cores is not None]
    blocked = mean([(point.blocked or 0.0, point.seconds) for point in known])
    active = mean([((point.cores or 0.0) + (point.delayed or 0.0), point.seconds) for point in known])
    if blocked is None or active is None or blocked + active <= 0:
        return {"blocked_mean": blocked, "blocked_share": None}
    return {"blocked_mean": blocked, "blocked_share": blocked / (blocked + active)}


def find_unsampled(cpu: float | None, exact: bool, processes: list[ProcessUse]) -> float | None:
    """CPU seconds of processes that were too short to be sampled; None where the total is no exact one."""
    if cpu is None or not exact:
        return None
    seen = sum((it.user_seconds or 0.0) + (it.system_seconds or 0.0) for it in processes)
    return max(cpu - seen, 0.0)


def find_forks(reader: Reader, span: Span) -> int | None:
    """Processes and threads that the kernel created on the job's nodes meanwhile, by whomever."""
    found = reader.split(span, "kernel", ("node",), ("forks",), _POINTS)
    counts = [increase(series.last.get("forks") or []) for series in found.values()]
    known = [count for count in counts if count is not None]
    return int(sum(known)) if known else None


def find_device(reader: Reader, span: Span) -> str:
    """The disk that carried most meanwhile, for whomever; "" if none did."""
    found = reader.split(span, "disk", ("device",), ("read_bytes", "written_bytes"), _POINTS)
    sums = {
        device: sum(increase(values) or 0.0 for values in series.last.values())
        for (device,), series in found.items()
        if not device.startswith(_MADE_OF_OTHERS)
    }
    # Of a disk and its only partition, the disk.
    busiest = max(sums, key=lambda device: (sums[device], -len(device)), default="")
    return busiest if sums.get(busiest) else ""


def _last(series: Series, name: str) -> float | None:
    return next((value for value in reversed(series.last.get(name, [])) if value is not None), None)
