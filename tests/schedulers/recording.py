"""Where recorded answers are."""

from __future__ import annotations

from pathlib import Path

from joblens.schedulers.facts import BatchJob
from joblens.schedulers.parse_result import ParseResult

RECORDED = Path(__file__).parent / "recorded"
SLURM = RECORDED / "slurm-22.05"
NEWER = ("23.11", "24.05", "26.05")
MARK = "~mark~"
HOSTILE = "bad | name\nUserId=root(0) JobState=COMPLETED"


def recorded(name: str, version: str = "22.05") -> str:
    return (RECORDED / f"slurm-{version}" / name).read_text()


def by_id(told: ParseResult) -> dict[str, BatchJob]:
    """The last run of each."""
    return {job.shown_id: job for job in told.jobs}
