"""Experiments: jobs with the same tag `exp_name`, one for each segment of model time and each component."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joblens.analysis.segments import Step, find_missing, parse_segments
from joblens.core.errors import UsageError
from joblens.core.named_tuple import NamedTuple

if TYPE_CHECKING:
    from joblens.analysis.segments import Segment
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
    complete: bool = True  # whether all that are missing are known

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        names = ("id", "cluster", "start", "end", "state", "exit_code", *METRICS)
        segments = [
            {
                "segment": it.segment,
                "job": it.job.shown_id or it.job.id,
                **{name: getattr(it.job, name) for name in names},
                "jobs": it.jobs,
                "ratio": it.ratio,
            }
            for it in self.segments
        ]
        return {**self._asdict(), "segments": segments}


_OF_JOB = ("cluster", "start", "end", "state", *METRICS)
COLUMNS = ("component", "segment", "missing", "job", *_OF_JOB, "ratio")


def segment_rows(series: Sequence[Series]) -> Iterator[tuple[Any, ...]]:
    """Yield the segments of each series in order, those that are missing included."""
    for it in series:
        known = {segment.segment: segment for segment in it.segments}
        places = parse_segments([*known, *it.missing])
        for name in sorted(places, key=lambda name: places[name].place):
            found = known.get(name)
            if found is None:
                yield (it.component, name, True, *[None] * (len(COLUMNS) - 3))
            else:
                figures = [getattr(found.job, column) for column in _OF_JOB]
                yield (it.component, name, False, found.job.shown_id or found.job.id, *figures, found.ratio)


def find_series(
    source: JobSource,
    experiment: str,
    by: str = "",
    component: str | None = None,
    step: Step | None = None,
    expected: Sequence[str] = (),
) -> list[Series]:
    """Return one series for each component. `by`: the tag that names a segment. `expected`: names of segments
    that have to be there, such as the first and the last. Raises LookupError if there is no such job, and
    UsageError if one of these is no segment."""
    tags = {EXPERIMENT: experiment, **({} if component is None else {COMPONENT: component})}
    rows = source.jobs(tags=tags, limit=0)
    if not rows:
        wanted = " and ".join(f"the tag {name}:{value:.100}" for name, value in tags.items())
        raise LookupError(f"no job has {wanted}")
    components: dict[str, list[JobRow]] = {}
    for row in rows:
        components.setdefault(row.tags.get(COMPONENT, ""), []).append(row)
    return [_series(it, components[it], by, step, expected) for it in sorted(components)]


def _series(
    component: str, rows: Sequence[JobRow], by: str, step: Step | None, expected: Sequence[str]
) -> Series:
    by = by or next((it for it in SEGMENTS if any(it in row.tags for row in rows)), SEGMENTS[0])
    names = [row.tags.get(by, "") for row in rows]
    known = parse_segments([*filter(None, names), *expected])
    unread = next((it for it in expected if it not in known), None)
    if unread is not None:
        raise UsageError(f"{unread!r:.60} is not a segment as the others are: a number, or a date")
    jobs: dict[tuple[int, ...], list[JobRow]] = {}
    for row in sorted(rows, key=lambda row: row.start or 0.0):
        if row.tags.get(by, "") in known:
            jobs.setdefault(known[row.tags[by]].place, []).append(row)
    missing = find_missing(list(known.values()), step)
    absent = {known[it].place: it for it in expected if known[it].place not in jobs}
    usual = _median([it[-1].duration_seconds for it in jobs.values()])
    return Series(
        component,
        missing.step.render() if missing.step else None,
        [_segment(jobs[place][-1].tags[by], jobs[place], usual) for place in sorted(jobs)],
        _ordered([*absent.values(), *missing.names]),
        [*([missing.problem] if missing.problem else []), *_left_out(names, known, by)],
        not missing.problem and missing.step is not None,
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


def _left_out(names: Sequence[str], known: Mapping[str, Segment], by: str) -> list[str]:
    found = []
    untagged = names.count("")
    if untagged:
        found.append(f"{'1 job has' if untagged == 1 else f'{untagged} jobs have'} no tag {by}")
    unread = list(dict.fromkeys(it for it in names if it and it not in known))
    if unread:
        which = "1 segment is" if len(unread) == 1 else f"{len(unread)} segments are"
        found.append(f"{which} neither a number nor a date: {unread[0]!r:.60}")
    return found
