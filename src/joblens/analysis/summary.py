"""One function that returns what is known of a job as plain data; every report shows this and no more."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable
from typing import Any, NamedTuple

from joblens.analysis.demand import find_device, find_forks
from joblens.analysis.energy import find_energy
from joblens.analysis.events import find_events
from joblens.analysis.gpus import find_gpus, sum_up
from joblens.analysis.marks import Stretch, find_foms, find_marks, within
from joblens.analysis.node_context import find_idle_cores, find_traffic
from joblens.analysis.nodes import COUNTERS, LEVELS, NodeUse, Whole, find_nodes
from joblens.analysis.processes import plain_processes, used_between, used_since_seen
from joblens.analysis.rule_input import Gpu, View
from joblens.analysis.rules.batch import OUT_OF_MEMORY
from joblens.analysis.rules.general import find
from joblens.analysis.series.rates import gaps
from joblens.analysis.series.timeline import longest_stretch, make_points
from joblens.analysis.series.window import Cut
from joblens.analysis.used import find_used
from joblens.analysis.verdict import verdict
from joblens.schedulers.facts import Resources
from joblens.store.reader import ProcessUse, Reader, Span

_POINTS = 120
_MOST_POINTS = 20_000  # of a job of which a part is looked at
_ROUNDED = 1.5  # seconds by which the start of an inferred job may be early
_PART = {"state": "PART", "exit_code": None, "signal": None}  # how all of it ended is not said of a part
_MUCH_SAMPLED = 0.8  # of its time
_JOB_COLUMNS = (*COUNTERS, *LEVELS)
_KEPT = "id cluster name user uid node source command folder tags environment".split()
_OF_SCHEDULER = (
    "nodes", "account", "partition", "qos", "submit", "eligible", "reason", "array_job", "array_task",
    "het_job", "het_offset", "restarts", "tres_asked", "tres_allocated",
)  # fmt: skip


def summarise(
    facts: dict[str, Any], end: dict[str, Any] | None, reader: Reader, part: tuple[float, float] | None = None
) -> dict[str, Any]:
    """From the facts at its start, the kernel's totals at its end if there are any, and the samples.

    A scheduler's job names its `nodes`, and is looked for on all of them; what `joblens run` started has one.
    With a part, only of that time: its job then starts and ends with it.
    """
    interval = float(facts["interval"])
    seen = _look(facts, end, reader, interval, part)
    whole, start, span, finish = seen.whole, seen.start, seen.whole.span, seen.whole.finish
    totals = {} if part else (end or {}).get("totals") or {}
    # What nobody made a cgroup for is in one with whoever started it.
    own_group = facts.get("source") not in ("run", "inferred")
    # Of an inferred job nobody is left behind: it is over when its last process is.
    tells_end = end is not None and not part and facts.get("source") != "inferred"
    shares_quota = facts.get("source") in ("run", "inferred", "usermode")
    shared_quota = float(facts.get("cores") or 0.0) if shares_quota else None
    job, asked, used = (
        _job(facts, end, start, finish),
        _asked(facts),
        _used(seen, totals, reader, shared_quota, interval),
    )
    gpus = find_gpus(reader, span, _POINTS, longest_stretch(interval, finish - start, _POINTS))
    if gpus:
        asked |= {"gpus": asked["gpus"] or sum(gpu.held for gpu in gpus) or None, **_gpu_memory(gpus)}
        used |= sum_up(gpus)
    nodes = _nodes(whole, start, finish, interval, facts)
    events = find_events(reader, span)
    steps = (end or {}).get("steps") or []
    kills = sum(event.kind.startswith("oom_") for event in events) or (0 if part else _killed_steps(steps))
    if own_group or _was_killed(job):  # else it can have been a neighbour
        kills = max(used["oom_kills"] or 0, kills)
    used["oom_kills"] = kills or (None if used["oom_kills"] is None else 0)
    shown = job if not part or _is_whole(part, facts, end) else {**job, **_PART}
    view = View(shown, asked, used, whole.points, tuple(gpus), tuple(nodes))
    found = find(view)
    return {
        "job": job,
        "asked": asked,
        "used": used,
        "verdict": verdict(view, [finding.rule for finding in found]),
        "findings": [finding.plain() for finding in found],
        "nodes": nodes,
        "steps": [_step(step) for step in steps],
        "timeline": [point._asdict() for point in whole.points],
        "processes": plain_processes(seen.processes, finish if tells_end else None),
        "gpus": [gpu.plain() for gpu in gpus],
        "energy": find_energy(
            reader,
            span,
            finish - start,
            gpus,
            used["cpu_seconds"],
            facts.get("carbon_grams_per_kwh"),
            exclusive=_has_node_alone(facts, view),
            around=seen.around,
        ),
        "traffic": find_traffic(reader, seen.around),
        "events": [event.plain() for event in events],
        "marks": [mark.plain() for mark in seen.marks],
        "foms": find_foms(reader, span),
        "gaps": [{"from": first, "to": last} for first, last in whole.gaps],
        "data": {
            "samples": sum(node["samples"] for node in nodes) if facts.get("nodes") else len(whole.looks),
            "expected_samples": _sum_known(node["expected_samples"] for node in nodes),
            "interval_seconds": interval,
            "exact": end is not None and not part and bool(totals or not facts.get("nodes")),
            "problems": [*((end or {}).get("problems") or []), *seen.problems],
        },
    }


class _Seen(NamedTuple):
    """What samples tell of a job, or of the part of it that is meant."""

    start: float
    whole: Whole
    processes: list[ProcessUse]
    around: Span  # with all else that its nodes tell
    marks: list[Stretch]
    problems: list[str]


def _look(
    facts: dict[str, Any],
    end: dict[str, Any] | None,
    reader: Reader,
    interval: float,
    part: tuple[float, float] | None,
) -> _Seen:
    job_start = start = float((end or facts)["start"] or facts.get("submit") or 0.0)
    most = _POINTS if part is None else _enough(start, end, part)
    whole = (_on_nodes if facts.get("nodes") else _on_one)(facts, end, reader, start, interval, most)
    marks, problems = find_marks(reader, whole.span)
    if part is not None:
        cut = Cut(max(part[0], start), min(part[1], whole.finish), start)
        whole, start, marks = cut.whole(whole), cut.start, within(marks, cut.start, cut.end)
    span = whole.span
    if part is not None:
        processes = used_between(reader, span, job_start)
    elif facts.get("source") == "usermode":
        processes = used_since_seen(reader, span, [node.looks[0] for node in whole.nodes if node.looks])
    else:
        processes = reader.processes(span)
    around = span
    if facts.get("nodes"):  # the same id is another job's, or another run's, a little before or after
        around = span._replace(nodes=tuple(node.node for node in whole.nodes))
        processes = [it for it in processes if it.last >= start and it.first <= span.end]
    if facts.get("source") == "inferred":  # the same session number can be another job's on another node
        processes = [it for it in processes if it.node in around.nodes]
    return _Seen(start, whole, processes, around, marks, problems)


def _used(
    seen: _Seen, totals: dict[str, Any], reader: Reader, shared_quota: float | None, interval: float
) -> dict[str, Any]:
    whole = seen.whole
    duration = max(whole.finish - seen.start, 0.0)
    exact = bool(totals) and _is_sampled(whole, duration)
    used = find_used(
        duration,
        totals,
        whole.series,
        whole.points,
        seen.processes,
        exact,
        shared_quota,
        interval,
        whole.finish,
    )
    _raise_memory(used, whole.nodes)
    used["node_idle_cores"] = find_idle_cores(reader, seen.around)
    used["forks"] = find_forks(reader, seen.around)
    moved = (used["read_bytes"] or 0.0) + (used["written_bytes"] or 0.0)
    used["device"] = find_device(reader, seen.around, moved) if used["blocked_share"] else ""
    return used


def _is_whole(part: tuple[float, float], facts: dict[str, Any], end: dict[str, Any] | None) -> bool:
    return end is not None and part[0] <= float((end or facts)["start"]) and part[1] >= float(end["end"])


def _is_sampled(whole: Whole, duration: float) -> bool:
    """For most of the time: else what no process is known to have used was not short-lived, but not seen."""
    known = sum(point.seconds for point in whole.points if point.cores is not None)
    return known >= _MUCH_SAMPLED * duration


def _killed_steps(steps: Iterable[dict[str, Any]]) -> int:
    """Of which accounting says that they were killed for memory, as their cgroups are gone with them."""
    own = "joblens"  # user mode's, beside the job's
    return sum(step.get("state") in OUT_OF_MEMORY and step.get("name") != own for step in steps)


def _enough(start: float, end: dict[str, Any] | None, part: tuple[float, float]) -> int:
    """Points of the whole job, for as many in the part as a whole job has."""
    last = float(end["end"]) if end else part[1]
    return min(math.ceil(_POINTS * max((last - start) / max(part[1] - part[0], 0.1), 1.0)), _MOST_POINTS)


def _on_one(
    facts: dict[str, Any],
    end: dict[str, Any] | None,
    reader: Reader,
    start: float,
    interval: float,
    most: int,
) -> Whole:
    """What `joblens run` has seen, on the node where it was started."""
    looked = reader.sample_times(Span(facts["id"], start - 60, float(end["end"]) + 60 if end else 4e9))
    finish = float(end["end"]) if end else (looked or [float(facts.get("known_until") or start)])[-1]
    span = Span(facts["id"], start, max(finish, start) + 1.0)
    series = reader.series(span, "job", _JOB_COLUMNS, most)
    points = make_points(start, finish, series, longest_stretch(interval, finish - start, most))
    holes = gaps(looked, start, finish, max(3 * interval, 0.5))
    only = NodeUse(str(facts.get("node") or ""), series, points, looked, holes)
    return Whole(span, finish, [only], looked, series, points, holes)


def _on_nodes(
    facts: dict[str, Any],
    end: dict[str, Any] | None,
    reader: Reader,
    start: float,
    interval: float,
    most: int,
) -> Whole:
    """Of this run alone: one before it and one after it can have the same id."""
    finish = max(float(end["end"]), start) if end else 4e9
    span = Span(facts["id"], start, finish + 1.0, str(facts.get("cluster") or ""))
    if end is None:
        looks = (times[-1] for times in reader.looks(span, "job").values() if times)
        finish = max(start, float(facts.get("known_until") or 0.0), *looks)
    return find_nodes(reader, span._replace(end=finish + 1.0), finish, facts["nodes"], interval, most)


def _job(facts: dict[str, Any], end: dict[str, Any] | None, start: float, finish: float) -> dict[str, Any]:
    job = {name: facts.get(name) for name in _KEPT}
    if facts.get("nodes") or facts.get("submit"):
        job |= {name: facts.get(name) for name in _OF_SCHEDULER}
    return {
        **job,
        "start": start,
        "end": finish,
        "state": _state(facts, end),
        "exit_code": (end or {}).get("exit_code"),
        "signal": (end or {}).get("signal"),
    }


def _state(facts: dict[str, Any], end: dict[str, Any] | None) -> str:
    """In the scheduler's word where there is one."""
    told = str((end or facts).get("state") or "").split()
    if told:
        return told[0]
    if end is None:
        return "RUNNING" if facts.get("nodes") else "UNKNOWN"
    return "COMPLETED" if end.get("exit_code") == 0 else "FAILED"


def _asked(facts: dict[str, Any]) -> dict[str, Any]:
    asked = {
        "cores": facts.get("cores"),
        "memory_bytes": facts.get("memory"),
        "time_seconds": facts.get("time_limit_seconds"),
    }
    if facts.get("nodes") or facts.get("asked_nodes"):  # one that never started has none of the first
        asked["nodes"] = facts.get("asked_nodes") or len(facts["nodes"])
    return {**asked, "gpus": facts.get("gpus_asked")}


def _nodes(
    whole: Whole, start: float, finish: float, interval: float, facts: dict[str, Any]
) -> list[dict[str, Any]]:
    """Agents look on a grid of time, and once more when they are told to: that is no sample more."""
    names = facts.get("nodes")
    if names == []:  # it had none, or nobody has told
        return []
    if not names or interval <= 0:
        return [node.plain(finish - start, len(node.looks), None) for node in whole.nodes]
    early = max(whole.looks[0] - interval - start, 0.0) if whole.looks else 0.0
    if facts.get("source") != "inferred" or early > _ROUNDED:
        early = 0.0
    first, last = math.floor((start + early) / interval), math.floor(finish / interval)
    expected = max(last - first, 1)

    def ticks(looks: list[float]) -> int:
        """A job that is shorter than the time between two is seen once."""
        found = len({tick for look in looks if first < (tick := int(look / interval + 0.5)) <= last})
        return min(found or int(bool(looks)), expected)

    return [node.plain(finish - start, ticks(node.looks), expected) for node in whole.nodes]


def _step(step: dict[str, Any]) -> dict[str, Any]:
    """As it is stored: lists for tuples, and names for what was allocated."""
    allocated = step.get("allocated")
    plain = allocated._asdict() if isinstance(allocated, Resources) else allocated
    return {**step, "nodes": list(step.get("nodes") or ()), "allocated": plain}


def _was_killed(job: dict[str, Any]) -> bool:
    return signal.SIGKILL in (job["signal"], (job["exit_code"] or 0) - 128)


def _sum_known(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _has_node_alone(facts: dict[str, Any], view: View) -> bool:
    """A scheduler that gave it all cores gave them to nobody else."""
    return view.in_slurm and bool(facts.get("node_cores")) and view.cores >= float(facts["node_cores"])


def _raise_memory(used: dict[str, Any], nodes: list[NodeUse]) -> None:
    """While not all nodes are known there is no sum; what one of them had, the job had at least."""
    peaks = [p.memory for node in nodes for p in node.points if p.memory is not None]
    most = int(max(peaks, default=0.0))
    if len(nodes) > 1 and most > (used["memory_peak_bytes"] or 0):
        used |= {"memory_peak_bytes": most, "memory_from": "of one node alone, as not all are known"}


def _gpu_memory(gpus: list[Gpu]) -> dict[str, Any]:
    sizes = [gpu.memory_total_bytes for gpu in gpus if gpu.memory_total_bytes is not None]
    return {"gpu_memory_bytes": sum(sizes) if sizes else None}
