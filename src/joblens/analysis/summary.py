"""From the facts, the end and the samples of a job to its record; every report shows this and no more."""

from __future__ import annotations

import math
from collections.abc import Iterable

from joblens.analysis.captured_only import CapturedOnly, find_captured_only
from joblens.analysis.demand import find_device, find_forks, find_unsampled, raise_delay
from joblens.analysis.ended import (
    MOST_ENDS,
    Completeness,
    count_processes,
    describe_unseen,
    find_outside,
    find_unlisted,
    merge_ended,
)
from joblens.analysis.energy import find_energy
from joblens.analysis.gpus import find_gpus, sum_up
from joblens.analysis.marks import find_events, find_foms, find_marks, within
from joblens.analysis.node_context import find_idle_cores, find_traffic
from joblens.analysis.nodes import COUNTERS, LEVELS, NodeSeries, Whole, find_nodes
from joblens.analysis.processes import choose_processes, cpu_of, used_between, used_since_seen
from joblens.analysis.rule_input import View
from joblens.analysis.rules.batch import OUT_OF_MEMORY
from joblens.analysis.rules.general import find
from joblens.analysis.series.rates import gaps
from joblens.analysis.series.timeline import limit_cores, longest_stretch, make_points
from joblens.analysis.series.window import Cut
from joblens.analysis.used import find_used
from joblens.analysis.verdict import verdict
from joblens.core.named_tuple import NamedTuple
from joblens.record.ends import EndedProcess
from joblens.record.job import JobEnd, JobFacts, Step, Totals
from joblens.record.report import (
    Asked,
    Data,
    Event,
    Gap,
    Job,
    JobRecord,
    Mark,
    NodeUse,
    ProcessCounts,
    ProcessUse,
    Used,
)
from joblens.store.reader import Reader, Span

_POINTS = 120
_MOST_POINTS = 20_000  # of the whole job, for a report of a part of it
_ROUNDED = 1.5  # seconds by which the start of an inferred job may be early
_SIGKILL = 9  # signal(7); the module signal takes as long to load as this one
_MUCH_SAMPLED = 0.8  # of its time
_JOB_COLUMNS = (*COUNTERS, *LEVELS)
_KEPT = "id cluster name user uid node source command folder tags annotations environment".split()
_OF_SCHEDULER = (
    "nodes", "account", "partition", "qos", "submit", "eligible", "reason", "array_job", "array_task",
    "het_job", "het_offset", "restarts", "tres_asked", "tres_allocated",
)  # fmt: skip


def summarise(
    facts: JobFacts, end: JobEnd | None, reader: Reader, part: tuple[float, float] | None = None
) -> JobRecord:
    """Compute the record from facts, from the kernel's totals if the job has ended, and from samples.

    A batch job is read on all of its `nodes`, a job of `joblens run` on one. With a `part` the record covers
    only that time: its job starts and ends with it.
    """
    samples = _collect(facts, end, reader, part)
    whole, start, span, finish = samples.whole, samples.start, samples.whole.span, samples.whole.finish
    totals = (end.totals if end and not part else None) or Totals()
    # An inferred job leaves no process behind: it ends with its last process.
    has_end = end is not None and not part and facts.source != "inferred"
    job, asked = _job(facts, end, start, finish), _asked(facts)
    used = _used(samples, totals, reader, facts)
    gpus = find_gpus(reader, span, _POINTS, longest_stretch(facts.interval, finish - start, _POINTS))
    if gpus:
        asked.gpus = asked.gpus or sum(gpu.held for gpu in gpus) or None
        asked.gpu_memory_bytes = _sum_known(gpu.memory_total_bytes for gpu in gpus)
        sum_up(gpus, used)
    nodes, events, steps = (
        _nodes(whole, start, finish, facts),
        find_events(reader, span),
        end.steps if end else [],
    )
    killed = 0 if part else _killed_steps(steps)
    used.oom_kills = _oom_kills(facts, job, used, events, killed)
    # How all of it ended says nothing about a part.
    shown = (
        job.replace(state="PART", exit_code=None, signal=None) if part and not _is_whole(part, end) else job
    )
    # Around a session in user mode are processes that outlive it, such as the shell.
    alive = 2 * facts.interval if facts.source == "usermode" else 0.0
    complete = _completeness(samples, finish - alive, reader)
    ended = int(complete.counts.ended) if samples.is_captured else None
    view = View(shown, asked, used, whole.points, tuple(gpus), tuple(nodes), ended)
    found = find(view)
    energy = find_energy(
        reader,
        span,
        finish - start,
        gpus,
        used.cpu_seconds,
        facts.carbon_grams_per_kwh,
        exclusive=_has_node_alone(facts, view),
        around=samples.around,
    )
    unseen = describe_unseen(samples.outside, samples.merged)
    data = Data(
        samples=_whole(_sum_known(node.samples for node in nodes)) or 0 if facts.nodes else len(whole.times),
        expected_samples=_whole(_sum_known(node.expected_samples for node in nodes)),
        interval_seconds=facts.interval,
        exact=end is not None and not part and (totals.is_known or not facts.nodes),
        problems=[*((end.problems if end else None) or []), *samples.problems, *complete.problems, *unseen],
        node_cores=facts.node_cores,
        carbon_grams_per_kwh=facts.carbon_grams_per_kwh,
        inexact=complete.inexact,
    )
    if samples.is_captured:
        data.processes = complete.counts
    return JobRecord(
        job=job,
        asked=asked,
        used=used,
        verdict=verdict(view, [finding.rule for finding in found]),
        findings=[finding.replace(weight=round(finding.weight or 0.0, 3)) for finding in found],
        nodes=nodes,
        steps=steps,
        timeline=whole.points,
        processes=samples.choose(finish if has_end else None),
        gpus=gpus,
        energy=energy,
        traffic=find_traffic(reader, samples.around),
        events=events,
        marks=samples.marks,
        foms=find_foms(reader, span),
        gaps=[Gap(*gap) for gap in whole.gaps],
        data=data,
    )


def _oom_kills(facts: JobFacts, job: Job, used: Used, events: list[Event], killed: int) -> float | None:
    """By the kernel's log or accounting; a counter counts only if its cgroup is the job's own."""
    kills: float = sum(event.kind.startswith("oom_") for event in events) or killed
    # Without a cgroup of its own it shares that of its parent: another process may have been killed.
    if facts.source not in ("run", "inferred") or _was_killed(job):
        kills = max(used.oom_kills or 0, kills)
    return kills or (None if used.oom_kills is None else 0)


def _completeness(samples: _Samples, finish: float, reader: Reader) -> Completeness:
    if not samples.is_captured:
        return Completeness(ProcessCounts(), [], [])
    span, around, only = samples.whole.span, samples.around, samples.only
    if only is None:
        return count_processes(samples.merged, finish, find_unlisted(reader, span, around, samples.merged))
    unlisted = find_unlisted(reader, span, around)
    counted = len(only) - only.exact + unlisted.counted
    counts = ProcessCounts(ended=only.exact + counted, exact=only.exact, counted=counted)
    return Completeness(counts, only.name_inexact(), list(unlisted.problems))


class _Samples(NamedTuple):
    """Samples of a job, or of the requested part of it."""

    start: float
    whole: Whole
    processes: list[ProcessUse]
    merged: list[ProcessUse]  # with those that capture recorded
    around: Span  # for all samples of its nodes
    marks: list[Mark]
    problems: list[str]
    outside: list[EndedProcess]  # programs without the library of capture
    only: CapturedOnly | None = None  # in place of `merged`, which then has none of them

    @property
    def is_captured(self) -> bool:
        return self.only is not None or self.merged is not self.processes

    def choose(self, end: float | None) -> list[ProcessUse]:
        return choose_processes(self.merged, end) if self.only is None else self.only.choose(end)

    def as_list(self) -> list[ProcessUse]:
        return self.merged if self.only is None else self.only.as_list()


def _collect(
    facts: JobFacts, end: JobEnd | None, reader: Reader, part: tuple[float, float] | None
) -> _Samples:
    job_start = start = float((end or facts).start or facts.submit or 0.0)
    most = _POINTS if part is None else _enough(start, end, part)
    whole = (_on_nodes if facts.nodes else _on_one)(facts, end, reader, start, most)
    marks, problems = find_marks(reader, whole.span)
    if part is not None:
        cut = Cut(max(part[0], start), min(part[1], whole.finish), start)
        whole, start, marks = cut.whole(whole), cut.start, within(marks, cut.start, cut.end)
    span = whole.span
    if part is not None:
        processes = used_between(reader, span, job_start)
    elif facts.source == "usermode":
        processes = used_since_seen(reader, span, [node.times[0] for node in whole.nodes if node.times])
    else:
        processes = reader.processes(span)
    around = span
    if facts.nodes:  # the same id is another job's, or another run's, a little before or after
        around = span._replace(nodes=tuple(node.node for node in whole.nodes))
        processes = [it for it in processes if it.last >= start and it.first <= span.end]
    if facts.source == "inferred":  # the same session number can be another job's on another node
        processes = [it for it in processes if it.node in around.nodes]
    only = find_captured_only(reader, span) if part is None and not processes and not whole.times else None
    ended = reader.ends(span, EndedProcess, MOST_ENDS) if part is None and only is None else []
    merged = merge_ended(processes, ended) if ended else processes
    outside = find_outside(ended) if only is None else only.find_outside()
    return _Samples(start, whole, processes, merged, around, marks, problems, outside, only)


def _used(samples: _Samples, totals: Totals, reader: Reader, facts: JobFacts) -> Used:
    whole = samples.whole
    duration = max(whole.finish - samples.start, 0.0)
    exact = totals.is_known and _is_sampled(whole, duration)
    shares_quota = facts.source in ("run", "inferred", "usermode")
    used = find_used(
        duration,
        totals,
        whole.series,
        whole.points,
        samples.processes,
        exact,
        float(facts.cores or 0.0) if shares_quota else None,
        facts.interval,
        whole.finish,
    )
    if samples.is_captured:
        used.unsampled_seconds = find_unsampled(
            used.cpu_seconds, exact, samples.as_list() if exact else [], facts.interval, whole.finish
        )
        used.short_seconds = sum(cpu_of(it) or 0.0 for it in samples.merged if it.exact and not it.looks)
        raise_delay(used, _summed_delay(samples))
    _raise_memory(used, whole.nodes)
    used.node_idle_cores = find_idle_cores(reader, samples.around)
    used.forks = find_forks(reader, samples.around)
    moved = (used.read_bytes or 0.0) + (used.written_bytes or 0.0)
    used.device = find_device(reader, samples.around, moved) if used.blocked_share else ""
    return used


def _summed_delay(samples: _Samples) -> float | None:
    if samples.only is not None:
        return samples.only.run_delay_seconds
    return _sum_known(it.run_delay_seconds for it in samples.merged)


def _is_whole(part: tuple[float, float], end: JobEnd | None) -> bool:
    return end is not None and part[0] <= end.start and part[1] >= end.end


def _is_sampled(whole: Whole, duration: float) -> bool:
    """Whether most of the time was sampled: else usage without a process was missed, not short-lived."""
    known = sum(point.seconds for point in whole.points if point.cores is not None)
    return known >= _MUCH_SAMPLED * duration


def _killed_steps(steps: Iterable[Step]) -> int:
    """Count steps that accounting reports as killed for memory; the counters of their cgroups are gone."""
    own = "joblens"  # user mode's, beside the job's
    return sum(step.state in OUT_OF_MEMORY and step.name != own for step in steps)


def _enough(start: float, end: JobEnd | None, part: tuple[float, float]) -> int:
    """Points of the whole job, for as many in the part as a whole job has."""
    last = float(end.end) if end else part[1]
    return min(math.ceil(_POINTS * max((last - start) / max(part[1] - part[0], 0.1), 1.0)), _MOST_POINTS)


def _on_one(
    facts: JobFacts,
    end: JobEnd | None,
    reader: Reader,
    start: float,
    most: int,
) -> Whole:
    """Read a job of `joblens run`, on the node where it was started."""
    times = reader.sample_times(Span(facts.id, start - 60, float(end.end) + 60 if end else 4e9))
    finish = float(end.end) if end else (times or [float(facts.known_until or start)])[-1]
    span = Span(facts.id, start, max(finish, start) + 1.0)
    series = reader.series(span, "job", _JOB_COLUMNS, most)
    points = make_points(start, finish, series, longest_stretch(facts.interval, finish - start, most))
    if facts.node_cores:
        limit_cores(points, facts.node_cores)
    holes = gaps(times, start, finish, max(3 * facts.interval, 0.5))
    only = NodeSeries(facts.node, series, points, times, holes)
    return Whole(span, finish, [only], times, series, points, holes)


def _on_nodes(
    facts: JobFacts,
    end: JobEnd | None,
    reader: Reader,
    start: float,
    most: int,
) -> Whole:
    """Read this run only: earlier and later ones can have the same id."""
    finish = max(float(end.end), start) if end else 4e9
    span = Span(facts.id, start, finish + 1.0, facts.cluster)
    if end is None:
        last = (times[-1] for times in reader.times_by_node(span, "job").values() if times)
        finish = max(start, float(facts.known_until or 0.0), *last)
    return find_nodes(
        reader, span._replace(end=finish + 1.0), finish, facts.nodes or [], facts.interval, most
    )


def _job(facts: JobFacts, end: JobEnd | None, start: float, finish: float) -> Job:
    names = _KEPT if facts.nodes is None and not facts.submit else (*_KEPT, *_OF_SCHEDULER)
    return Job(
        **{name: getattr(facts, name) for name in names},
        start=start,
        end=finish,
        state=_state(facts, end),
        exit_code=end.exit_code if end else None,
        signal=end.signal if end else None,
    )


def _state(facts: JobFacts, end: JobEnd | None) -> str:
    """In the scheduler's word where there is one."""
    words = ((end or facts).state or "").split()
    if words:
        return words[0]
    if end is None:
        return "RUNNING" if facts.nodes else "UNKNOWN"
    return "COMPLETED" if end.exit_code == 0 else "FAILED"


def _asked(facts: JobFacts) -> Asked:
    nodes = facts.asked_nodes or len(facts.nodes or []) or None  # one that never started has only asked
    return Asked(facts.cores, facts.memory, facts.time_limit_seconds, nodes, facts.gpus_asked)


def _nodes(whole: Whole, start: float, finish: float, facts: JobFacts) -> list[NodeUse]:
    """Agents sample on a grid of time, and additionally on request; the latter are not counted."""
    names, interval = facts.nodes, facts.interval
    if names == []:  # it had none, or they are unknown
        return []
    if not names or interval <= 0:
        return [node.use(finish - start, len(node.times), None) for node in whole.nodes]
    early = max(whole.times[0] - interval - start, 0.0) if whole.times else 0.0
    if facts.source != "inferred" or early > _ROUNDED:
        early = 0.0
    first, last = math.floor((start + early) / interval), math.floor(finish / interval)
    expected = max(last - first, 1)

    def ticks(times: list[float]) -> int:
        """A job that is shorter than the interval is sampled once."""
        found = len({tick for time in times if first < (tick := int(time / interval + 0.5)) <= last})
        return min(found or int(bool(times)), expected)

    return [node.use(finish - start, ticks(node.times), expected) for node in whole.nodes]


def _was_killed(job: Job) -> bool:
    return _SIGKILL in (job.signal, (job.exit_code or 0) - 128)


def _sum_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _has_node_alone(facts: JobFacts, view: View) -> bool:
    """Return whether the scheduler gave it all cores of its node."""
    return view.in_slurm and bool(facts.node_cores) and view.cores >= (facts.node_cores or 0)


def _raise_memory(used: Used, nodes: list[NodeSeries]) -> None:
    """Without samples of all nodes the sum is unknown; the peak of one node is a lower bound."""
    peaks = [p.memory for node in nodes for p in node.points if p.memory is not None]
    most = int(max(peaks, default=0.0))
    if len(nodes) > 1 and most > (used.memory_peak_bytes or 0):
        used.memory_peak_bytes, used.memory_from = most, "of one node alone, as not all are known"
