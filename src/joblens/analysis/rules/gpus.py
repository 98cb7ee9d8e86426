"""The rules about GPUs."""

from __future__ import annotations

from joblens.analysis.rule_input import View
from joblens.analysis.rules.cores import waits_for_storage
from joblens.core.units import render_seconds
from joblens.record.report import Finding, GpuUse

_WORTH_SECONDS = 5.0
_LITTLE = 0.3
_ENOUGH = 0.5  # of the time must be known for a statement about it
_NEARLY_ALL = 0.9
_LONG = 0.25  # of the job, before the first use or after the last one


def held_idle(view: View) -> Finding | None:
    """GPUs that the job was given and never used: no other job could have them."""
    idle = idle_gpus(view)
    if not idle:
        return None
    start, end = view.job.start, view.job.last
    watched = min(gpu.watched_seconds for gpu in idle) / view.duration
    if watched < _NEARLY_ALL:
        start = min(point.start for gpu in idle for point in gpu.timeline if point.is_known)
        end = max(point.end for gpu in idle for point in gpu.timeline if point.is_known)
    it, was = ("it", "was") if len(idle) == 1 else ("them", "were")
    what = f"no process used {it}" if all(gpu.processes_seen for gpu in idle) else "had nothing to do"
    partly = f", in the {watched:.0%} of the time that is known" if watched < _NEARLY_ALL else ""
    return Finding(
        "GPUs held idle",
        start,
        end,
        f"{name_gpus(idle)} {was} held and {what}{partly}",
        _ask_for_less(view, idle),
        1.0,  # nothing else that a job wastes is as dear
    )


def idle_gpus(view: View) -> list[GpuUse]:
    """Return the GPUs that it was given and did not use, as far as that is known."""
    if view.duration < _WORTH_SECONDS:
        return []
    unused = [gpu for gpu in view.gpus if gpu.held and not gpu.used]
    return [gpu for gpu in unused if gpu.watched_seconds >= _ENOUGH * view.duration]


def _ask_for_less(view: View, idle: list[GpuUse]) -> str:
    it = "it" if len(idle) == 1 else "them"
    left = [gpu for gpu in view.gpus if gpu.held and gpu not in idle]
    if not left:
        return f"ask for none, or find out why the program does not see {it}"
    if not view.in_slurm:
        return f"leave {it} to others: {name_gpus(left)} would do"
    nodes = [gpu.node for gpu in left]
    most = max(nodes.count(node) for node in nodes)
    whole = not any(":" in gpu.index for gpu in left)  # parts of a card go by another name there
    return f"ask for {len(left)}" + (f" (--gres=gpu:{most})" if whole else "")


def used_for_a_while(view: View) -> Finding | None:
    """GPUs that were used at last, or at first, and held all the time."""
    found = [it for gpu in view.gpus for it in [_longer_wait(view, gpu)] if it]
    if not found:
        return None
    kind = max(found, key=lambda it: it[2] - it[1])[3]
    same = [it for it in found if it[3] == kind]
    start, end = max(it[1] for it in same), min(it[2] for it in same)
    gpus = [it[0] for it in same]
    it, was = ("it", "was") if len(gpus) == 1 else ("them", "were")
    return Finding(
        "GPUs held too long",
        start,
        end,
        f"{name_gpus(gpus)} {was} held for {render_seconds(end - start)} {kind} {it}",
        "do that part in a job of its own, without GPUs",
        (end - start) / view.duration * len(gpus) / len(view.gpus) * 0.9,
    )


def _longer_wait(view: View, gpu: GpuUse) -> tuple[GpuUse, float, float, str] | None:
    """Return the longer of the times before its first and after its last use, if it is long and idle."""
    if not gpu.held or gpu.first_use is None or gpu.last_use is None:
        return None
    before = (view.job.start, gpu.first_use, "before anything used")
    after = (gpu.last_use, view.job.last, "after everything had left")
    start, end, kind = max(before, after, key=lambda it: it[1] - it[0])
    known = sum(p.seconds for p in gpu.timeline if p.is_known and p.start >= start and p.end <= end)
    length = max(2 * _WORTH_SECONDS, _LONG * view.duration)
    return (gpu, start, end, kind) if end - start >= length and known >= _ENOUGH * (end - start) else None


def waiting_gpus(view: View) -> Finding | None:
    """GPUs on which a process was, and which had little to do."""
    low = [
        (gpu, busy)
        for gpu in view.gpus
        for busy in [_busy_in_use(gpu)]
        if busy is not None and busy < _LITTLE
    ]
    if not low or view.duration < 2 * _WORTH_SECONDS:
        return None
    gpus = [gpu for gpu, _ in low]
    start, end = min(gpu.first_use or 0.0 for gpu in gpus), max(gpu.last_use or 0.0 for gpu in gpus)
    if end - start < _WORTH_SECONDS:
        return None
    busy = sum(busy for _, busy in low) / len(low)
    on_average, was = (" on average", "were") if len(low) > 1 else ("", "was")
    return Finding(
        "GPUs waiting",
        start,
        min(end, view.job.last),
        f"{name_gpus(gpus)} {was} busy for {busy:.0%} of {render_seconds(end - start)}{on_average}",
        _why(view),
        (1 - busy) * len(low) / len(view.gpus) * min((end - start) / view.duration, 1.0) * 0.9,
    )


def _busy_in_use(gpu: GpuUse) -> float | None:
    """From its first to its last use."""
    if gpu.first_use is None or gpu.last_use is None:
        return None
    return gpu.busy_between(gpu.first_use, gpu.last_use)


def _why(view: View) -> str:
    cores = view.used.cores_mean
    if cores is not None and view.cores and cores >= 0.8 * view.cores:
        return "all cores were busy: ask for more of them, or move more of the work to the GPU"
    if waits_for_storage(view):
        return "it waited for storage: prefetch, or read from faster storage"
    return "give it more work at once (larger batches, more data loaders), or profile where the program waits"


def name_gpus(gpus: list[GpuUse]) -> str:
    """`GPU 0`, or `GPUs 1-3`, with their nodes if there are several, and by UUID if two have one number."""
    by_node: dict[str, list[str]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu.index or gpu.gpu)
    for node, names in by_node.items():
        if len(set(names)) < len(names):  # of two vendors
            by_node[node] = [gpu.gpu for gpu in gpus if gpu.node == node]
    several = len(by_node) > 1
    parts = [(f"{node}:" if several else "") + _ranges(names) for node, names in by_node.items()]
    return ("GPU " if len(gpus) == 1 else "GPUs ") + ", ".join(parts)


def _ranges(names: list[str]) -> str:
    """`0,2-4`"""
    if not all(name.isdigit() for name in names):
        return ",".join(names)
    numbers, parts = sorted(map(int, names)), []
    while numbers:
        length = 1
        while length < len(numbers) and numbers[length] == numbers[0] + length:
            length += 1
        parts.append(f"{numbers[0]}" if length == 1 else f"{numbers[0]}-{numbers[length - 1]}")
        numbers = numbers[length:]
    return ",".join(parts)
