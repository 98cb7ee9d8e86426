"""The rules that only a scheduler or several nodes make possible: how it ended, and what it asked for."""

from __future__ import annotations

import math

from joblens.analysis.rule_input import View
from joblens.core.units import render_bytes, render_seconds
from joblens.record.report import Finding, NodeUse
from joblens.store.catalog.listing import name_nodes

_WORTH_SECONDS = 60.0  # shorter jobs say little about what a longer one needs
_GIB = 1 << 30
_LITTLE_MEMORY = 0.3
_MUCH_MEMORY = 4 * _GIB  # asked for and never used, on one node
_LITTLE_TIME = 0.2
_MUCH_TIME = 4 * 3600.0
_IDLE_CORES = 0.1
_IDLE_PART = 0.05  # of what the busiest node did
_UNEVEN = 0.5
_MUCH_MISSING = 0.2  # of the time
_SPARE = 1.3  # times what was seen is enough
OUT_OF_MEMORY = ("OUT_OF_MEMORY", "OUT_OF_ME+")
NODE_FAILED = ("NODE_FAIL", "BOOT_FAIL")
_LONGEST_NAMES = 40


def over_its_time(view: View) -> Finding | None:
    """The scheduler ended it at its limit."""
    if view.job.state not in ("TIMEOUT", "DEADLINE"):
        return None
    limit = view.asked.time_seconds
    more = f" (--time={render_time(2 * limit)})" if limit else ""
    return Finding(
        "out of time",
        view.job.start,
        view.job.last,
        f"it was stopped after {render_seconds(view.duration)}"
        + (f", at its time limit of {render_seconds(limit)}" if limit else ", at its time limit"),
        f"ask for more time{more}, or let it write checkpoints and continue from them in the next job",
        1.0,
    )


def was_killed_for_memory(view: View) -> bool:
    """By the scheduler's state, the cgroup's counter, or the kernel's log."""
    return view.job.state in OUT_OF_MEMORY or bool(view.used.oom_kills)


def out_of_memory(view: View) -> Finding | None:
    if not was_killed_for_memory(view):
        return None
    limit, peak = view.asked.memory_bytes, view.used.memory_peak_bytes
    enough = max(_per_node(view, limit) or 0, _most_on_a_node(view) or 0) * 1.5
    found = (
        "the largest sample before was" if view.used.memory_from in (None, "samples") else "memory peaked at"
    )
    seen = f"{found} {render_bytes(peak)}" if peak is not None else ""
    return Finding(
        "out of memory",
        view.job.start,
        view.job.last,
        "; ".join(filter(None, (_killed(view), seen))),
        ("ask for more" + (f" (--mem={render_memory(enough)})" if enough else " (--mem=)"))
        if view.in_slurm
        else "give it more memory, or let it hold less data at once",
        1.0,
    )


def _killed(view: View) -> str:
    count = view.used.oom_kills or 1
    return f"the kernel killed {_counted(count)} of it for memory{at_limit(view)}"


def at_limit(view: View) -> str:
    """` at the limit of 4 GiB`, of one of its nodes."""
    limit = _per_node(view, view.asked.memory_bytes)
    return (
        f" at the limit of {render_bytes(limit)}" + (" per node" if len(view.nodes) > 1 else "")
        if limit
        else ""
    )


def _counted(count: float) -> str:
    return "a process" if count == 1 else f"{count:.0f} processes"


def node_failed(view: View) -> Finding | None:
    if view.job.state not in NODE_FAILED:
        return None
    reason = view.job.reason
    detail = f" ({reason})" if reason and reason != "None" else ""
    return Finding(
        "node failed",
        view.job.start,
        view.job.last,
        f"a node failed after {render_seconds(view.duration)}{detail}",
        "nothing in the job itself: submit it again (with --requeue Slurm does that by itself)",
        1.0,
    )


def idle_nodes(view: View) -> Finding | None:
    """Nodes on which next to nothing of the job was done, while others worked."""
    idle, busy = split_nodes(view)
    if not idle or not busy:
        return None
    used = sum(node.cpu_seconds or 0.0 for node in idle) / view.duration
    return Finding(
        "idle nodes",
        view.job.start,
        view.job.last,
        f"{_names(idle)} used {used:.1f} cores on average, {_names(busy)} {_cores(busy):.1f}",
        f"ask for {len(busy)} node{'' if len(busy) == 1 else 's'} (--nodes={len(busy)}), "
        "or start the work on all of them (srun)",
        len(idle) / len(view.nodes),
    )


def split_nodes(view: View) -> tuple[list[NodeUse], list[NodeUse]]:
    """Return idle and busy nodes; both are empty unless all nodes are known."""
    known = [node for node in view.nodes if node.cores_mean is not None]
    if len(view.nodes) < 2 or len(known) < len(view.nodes) or view.duration < _WORTH_SECONDS / 2:
        return [], []
    if any(_missing(node, view) > _MUCH_MISSING for node in known):
        return [], []
    most = max(_mean(node) for node in known)
    limit = min(_IDLE_CORES, _IDLE_PART * most)
    idle = [node for node in known if _mean(node) < limit and (node.cores_peak or 0.0) < 0.5]
    return idle, [node for node in known if node not in idle] if most >= 2 * _IDLE_CORES else []


def _missing(node: NodeUse, view: View) -> float:
    return float(sum(gap.seconds for gap in node.gaps) / view.duration)


def uneven_nodes(view: View) -> Finding | None:
    """Some nodes did much less than others."""
    idle, busy = split_nodes(view)
    if len(busy) < 2 or idle or view.duration < _WORTH_SECONDS:
        return None
    least = min(busy, key=_mean)
    most = max(busy, key=_mean)
    if _mean(most) < 1.0 or _mean(least) > _UNEVEN * _mean(most):
        return None
    mean = _cores(busy) / len(busy)
    return Finding(
        "uneven nodes",
        view.job.start,
        view.job.last,
        f"{most.node} used {most.cores_mean:.1f} cores on average, {least.node} {least.cores_mean:.1f}",
        "distribute the work evenly, or ask for only as many nodes as have work",
        0.6 * (1 - mean / _mean(most)),
    )


def too_much_memory(view: View) -> Finding | None:
    """Much memory was requested and never used, and so denied to other jobs."""
    asked, peak = view.asked.memory_bytes, view.used.memory_peak_bytes
    if not _was_judged(view) or not asked or peak is None:
        return None
    if any(_missing(node, view) > _MUCH_MISSING for node in view.nodes):
        return None  # what was needed meanwhile is not known
    most, per_node = _most_on_a_node(view), _per_node(view, asked) or asked
    if most is None:
        return None
    unused = per_node - most
    if most > _LITTLE_MEMORY * per_node or unused < _MUCH_MEMORY:
        return None
    return Finding(
        "memory not used",
        view.job.start,
        view.job.last,
        f"memory peaked at {peak / asked:.0%} of the {render_bytes(asked)} that it asked for",
        f"ask for less (--mem={render_memory(_SPARE * most)})",
        0.3 * (1 - most / per_node),
    )


def too_much_time(view: View) -> Finding | None:
    """A limit far away: with a shorter one it could have been started earlier."""
    limit = view.asked.time_seconds
    if not _was_judged(view) or not limit:
        return None
    if view.duration > _LITTLE_TIME * limit or limit - view.duration < _MUCH_TIME:
        return None
    return Finding(
        "time not used",
        view.job.start,
        view.job.last,
        f"it took {render_seconds(view.duration)} of the {render_seconds(limit)} that it asked for",
        f"ask for less (--time={render_time(2 * view.duration)}): shorter jobs often start earlier",
        0.15 * (1 - view.duration / limit),
    )


def _was_judged(view: View) -> bool:
    """A job that ended early has not shown its needs."""
    return view.in_slurm and view.job.state == "COMPLETED" and view.duration >= _WORTH_SECONDS


def _per_node(view: View, amount: float | None) -> float | None:
    return None if amount is None else amount / max(len(view.nodes), 1)


def _most_on_a_node(view: View) -> float | None:
    if len(view.nodes) < 2:
        found = view.used.memory_peak_bytes
        return None if found is None else float(found)
    known = [node.memory_peak_bytes for node in view.nodes if node.memory_peak_bytes is not None]
    return float(max(known)) if len(known) == len(view.nodes) else None


def _mean(node: NodeUse) -> float:
    return node.cores_mean or 0.0


def _cores(nodes: list[NodeUse]) -> float:
    return float(sum(map(_mean, nodes)))


def _names(nodes: list[NodeUse]) -> str:
    names = name_nodes(str(node.node) for node in nodes)
    return names if len(names) <= _LONGEST_NAMES else f"{len(nodes)} nodes"


def render_memory(size: float) -> str:
    """As --mem takes it, up to the next round number: 700M, 48G."""
    unit, letter = (1 << 30, "G") if size >= 4 * _GIB else (1 << 20, "M")
    count = size / unit
    step = 10 ** max(math.floor(math.log10(max(count, 1))) - 1, 0)
    return f"{max(math.ceil(count / step) * step, 1)}{letter}"


def render_time(seconds: float) -> str:
    """As --time takes it, up to whole minutes, of long ones to ten: 0:10:00, 2-00:00:00."""
    step = 60 if seconds < 3600 else 600
    minutes = max(math.ceil(seconds / step) * step // 60, 1)
    days, rest = divmod(minutes, 1440)
    return (f"{days}-{rest // 60:02d}" if days else f"{rest // 60}") + f":{rest % 60:02d}:00"
