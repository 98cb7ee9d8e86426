"""Input of the rules: a job, what it requested and used, and its timeline."""

from __future__ import annotations

from joblens.core.named_tuple import NamedTuple
from joblens.record.report import Asked, GpuUse, Job, NodeUse, Point, Used


class View(NamedTuple):
    job: Job
    asked: Asked
    used: Used
    points: list[Point]
    gpus: tuple[GpuUse, ...] = ()
    nodes: tuple[NodeUse, ...] = ()
    ended: int | None = None  # processes of the job, if they are captured

    @property
    def duration(self) -> float:
        return float(self.used.duration_seconds or 0.0)

    @property
    def cores(self) -> float:
        return float(self.asked.cores or 0)

    @property
    def in_slurm(self) -> bool:
        return self.job.source == "slurm" or "SLURM_JOB_ID" in (self.job.environment or {})


def mean(values: list[tuple[float, float]]) -> float | None:
    """Weighted by the second of each pair."""
    weight = sum(w for _, w in values)
    return sum(v * w for v, w in values) / weight if weight > 0 else None
