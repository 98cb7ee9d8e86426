"""What the rules look at: a job, what it asked for and used, and how that went over time."""

from __future__ import annotations

from typing import Any

from joblens.core.named_tuple import NamedTuple


class Point(NamedTuple):
    """A stretch of the job. Unknown is None."""

    start: float
    end: float
    cores: float | None  # in use, mean
    system: float | None  # of these, in the kernel
    memory: float | None  # bytes, at most
    read: float | None  # bytes per second from storage
    written: float | None
    threads: float | None
    processes: float | None
    delayed: float | None = None  # threads that were ready to run and had no core, mean
    blocked: float | None = None  # processes that waited for storage, mean

    @property
    def seconds(self) -> float:
        return self.end - self.start


class GpuPoint(NamedTuple):
    """A stretch of time. Unknown is None."""

    start: float
    end: float
    processes: float | None  # of the job on it
    busy: float | None  # of the time, 0 to 1
    memory: float | None  # bytes, at most
    power: float | None  # watts

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def is_known(self) -> bool:
        return self.processes is not None or self.busy is not None


HELD = ("file", "cgroup", "environment")  # ways in which a GPU is given to a job, and so to nobody else


class Gpu(NamedTuple):
    node: str
    gpu: str  # UUID
    number: str  # its index on the node
    model: str
    given: str  # how it is known to be the job's
    used: bool
    first_use: float | None
    last_use: float | None
    watched_seconds: float  # in which it is known whether it was used
    processes_seen: bool  # and that by its processes, and not only by how busy it was
    busy_mean: float | None
    busy_peak: float | None
    memory_peak_bytes: float | None
    memory_total_bytes: float | None
    energy_joules: float | None
    energy_from: str  # counter or power
    points: list[GpuPoint]

    @property
    def held(self) -> bool:
        return self.given in HELD

    def busy_between(self, start: float, end: float) -> float | None:
        inside = [p for p in self.points if p.busy is not None and p.start >= start and p.end <= end]
        return mean([(p.busy or 0.0, p.seconds) for p in inside])

    def plain(self) -> dict[str, Any]:
        found = self._asdict()
        found["index"] = found.pop("number")
        found["timeline"] = [point._asdict() for point in found.pop("points")]
        return found


class Finding(NamedTuple):
    rule: str
    start: float
    end: float
    evidence: str
    advice: str
    weight: float  # how much of the job it concerns, 0 to 1: the heaviest comes first

    def plain(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "from": self.start,
            "to": self.end,
            "evidence": self.evidence,
            "advice": self.advice,
            "weight": round(self.weight, 3),
        }


class View(NamedTuple):
    job: dict[str, Any]
    asked: dict[str, Any]
    used: dict[str, Any]
    points: list[Point]
    gpus: tuple[Gpu, ...] = ()
    nodes: tuple[dict[str, Any], ...] = ()

    @property
    def duration(self) -> float:
        return float(self.used["duration_seconds"])

    @property
    def cores(self) -> float:
        return float(self.asked["cores"] or 0)

    @property
    def never_started(self) -> bool:
        return never_started(self.job)

    @property
    def in_slurm(self) -> bool:
        return self.job.get("source") == "slurm" or "SLURM_JOB_ID" in (self.job.get("environment") or {})


def never_started(job: dict[str, Any]) -> bool:
    """A scheduler's, that was given no node and has an end all the same."""
    return job.get("nodes") == [] and job["end"] is not None and job["end"] <= job["start"]


def mean(values: list[tuple[float, float]]) -> float | None:
    """Weighted by the second of each pair."""
    weight = sum(w for _, w in values)
    return sum(v * w for v, w in values) / weight if weight > 0 else None
