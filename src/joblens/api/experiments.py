"""Experiments: jobs with the same tag `exp_name`, one for each segment of model time and each component."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from joblens.analysis.segments import Step, find_missing, parse_segments
from joblens.core.named_tuple import NamedTuple

if TYPE_CHECKING:
    from joblens.api.source import JobSource
    from joblens.store.catalog.listing import JobRow

EXPERIMENT, COMPONENT = "exp_name", "exp_component"
SEGMENTS = ("exp_time", "seqno")  # tags, the first that a job of the experiment has
METRICS = ("duration_seconds", "cpu_seconds", "memory_peak_bytes", "processes")


class SegmentJob(NamedTuple):
    """The job of a segment: of several the newest."""

    segment: str
    job: JobRow
    jobs: int  # that were run for it
    ratio: float | None  # of its duration to the median of all segments


class Series(NamedTuple):
    """The segments of a component."""

    component: str
    step: str | None
    segments: list[SegmentJob]
    missing: list[str]
    problems: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**self._asdict(), "segments": [plain_segment(it) for it in self.segments]}


def plain_segment(it: SegmentJob) -> dict[str, Any]:
    names = ("id", "cluster", "start", "end", "state", "exit_code", *METRICS)
    return {
        "segment": it.segment,
        "job": it.job.shown_id or it.job.id,
        **{name: getattr(it.job, name) for name in names},
        "jobs": it.jobs,
        "ratio": it.ratio,
    }


def find_series(
    source: JobSource,
    experiment: str,
    by: str = "",
    component: str | None = None,
    step: Step | None = None,
    expected: Sequence[str] = (),
) -> list[Series]:
    """Return one series for each component. `by`: the tag that names a segment. `expected`: names of segments
    that have to be there, such as the first and the last. Raises LookupError if there is no such job."""
    tags = {EXPERIMENT: experiment, **({} if component is None else {COMPONENT: component})}
    rows = source.jobs(tags=tags, limit=0)
    if not rows:
        raise LookupError(f"no job has the tag {EXPERIMENT}:{experiment:.100}")
    by = by or next((it for it in SEGMENTS if any(it in row.tags for row in rows)), SEGMENTS[0])
    components = sorted({row.tags.get(COMPONENT, "") for row in rows})
    return [
        _series(it, [row for row in rows if row.tags.get(COMPONENT, "") == it], by, step, expected)
        for it in components
    ]


def _series(
    component: str, rows: Sequence[JobRow], by: str, step: Step | None, expected: Sequence[str]
) -> Series:
    jobs: dict[str, list[JobRow]] = {}
    for row in sorted(rows, key=lambda row: row.start or 0.0):
        jobs.setdefault(row.tags.get(by, ""), []).append(row)
    known = parse_segments([*(it for it in jobs if it), *expected])
    order = sorted((it for it in jobs if it in known), key=lambda it: known[it].place)
    missing = find_missing(list(known.values()), step)
    there = {known[it].place for it in order}
    absent = {known[it].place: it for it in expected if it in known and known[it].place not in there}
    usual = _median([jobs[it][-1].duration_seconds for it in order])
    return Series(
        component,
        missing.step.render() if missing.step else None,
        [_segment(it, jobs[it], usual) for it in order],
        _ordered([*absent.values(), *missing.names]),
        [*([missing.problem] if missing.problem else []), *_left_out(jobs, known, by, expected)],
    )


def _ordered(names: Sequence[str]) -> list[str]:
    known = parse_segments(names)
    return sorted(known, key=lambda it: known[it].place)


def _segment(name: str, jobs: Sequence[JobRow], usual: float | None) -> SegmentJob:
    took = jobs[-1].duration_seconds
    ratio = took / usual if usual and took is not None else None
    return SegmentJob(name, jobs[-1], len(jobs), ratio)


def _median(values: Sequence[float | None]) -> float | None:
    known = [it for it in values if it is not None]
    return statistics.median(known) if known else None


def _left_out(
    jobs: dict[str, list[JobRow]], known: dict[str, Any], by: str, expected: Sequence[str]
) -> list[str]:
    found = []
    untagged = len(jobs.get("", []))
    if untagged:
        found.append(f"{untagged} jobs have no tag {by}")
    unread = [it for it in (*jobs, *expected) if it and it not in known]
    if unread:
        found.append(f"{len(unread)} segments are neither numbers nor dates: {unread[0]!r:.60}")
    return found
