"""The rules about GPUs."""

from __future__ import annotations

from joblens.analysis.view import Finding, Gpu, View
from joblens.units import render_seconds

_WORTH_SECONDS = 5.0
_LITTLE = 0.3
HELD = ("file", "cgroup", "environment")


def held_idle(view: View) -> Finding | None:
    """GPUs that the job was given and never used: nobody else could have them."""
    idle = [gpu for gpu in view.gpus if gpu.given in HELD and not gpu.used]
    if not idle or view.duration < _WORTH_SECONDS:
        return None
    needed = len(view.gpus) - len(idle)
    were = "was" if len(idle) == 1 else "were"
    advice = f"ask for {needed} (--gres=gpu:{needed})" if needed else "ask for none"
    return Finding(
        "GPUs held idle",
        view.job["start"],
        view.job["end"],
        f"{name_gpus(idle)} {were} held and no process used {'it' if len(idle) == 1 else 'them'}",
        advice
        if needed
        else f"{advice}, or find out why the program does not see {'it' if len(idle) == 1 else 'them'}",
        1.0,  # nothing else that a job wastes is as dear
    )


def waiting_gpus(view: View) -> Finding | None:
    """GPUs on which a process was, and which had little to do."""
    low = [g for g in view.gpus if g.used and g.busy_mean is not None and g.busy_mean < _LITTLE]
    if not low or view.duration < 2 * _WORTH_SECONDS:
        return None
    start = min(gpu.first_use or view.job["start"] for gpu in low)
    end = max(gpu.last_use or view.job["end"] for gpu in low)
    if end - start < _WORTH_SECONDS:
        return None
    busy = sum(gpu.busy_mean or 0.0 for gpu in low) / len(low)
    on_average = " on average" if len(low) > 1 else ""
    return Finding(
        "GPUs waiting",
        start,
        end,
        f"{name_gpus(low)} had work in {busy:.0%} of {render_seconds(end - start)}{on_average}",
        _why(view),
        (1 - busy) * len(low) / len(view.gpus) * 0.9,
    )


def _why(view: View) -> str:
    cores = view.used["cores_mean"]
    if cores is not None and view.cores and cores >= 0.8 * view.cores:
        return "the cores had no more to give: ask for more of them, or let the GPU do more of the work"
    if view.used.get("io_wait"):
        return "it waited for storage: read ahead, or from a faster place"
    return "give it more at once (larger batches, more loaders), or look where the program waits"


def name_gpus(gpus: list[Gpu]) -> str:
    """`GPU 0`, or `GPUs 1-3`, with their nodes if there are several."""
    by_node: dict[str, list[str]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu.number or gpu.gpu)
    several = len({gpu.node for gpu in gpus}) > 1
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
