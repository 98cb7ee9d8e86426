"""One sentence about a job."""

from __future__ import annotations

from joblens.analysis.findings import WAITING_CORES, how_it_ended, was_stopped_by_user
from joblens.analysis.gpu_findings import idle_gpus
from joblens.analysis.view import View


def verdict(view: View, rules: list[str]) -> str:
    """How it ended if that is the news, else how it used its cores, by the heaviest finding."""
    if view.job["state"] == "UNKNOWN":
        return "How it ended is not known: joblens was stopped before it."
    if "failed early" in rules:
        return f"It failed: {how_it_ended(view)}."
    if was_stopped_by_user(view):
        prefix = "It was ended by Ctrl-C, and "
    else:
        prefix = "It failed, and " if view.job["state"] == "FAILED" else "It "
    return prefix + _use(view, rules)


def _use(view: View, rules: list[str]) -> str:
    used, cores = view.used["cores_mean"], view.cores
    if used is None or view.duration < 1:
        return "was too short to judge how it used what it had."
    share = f"{used:.1f} of {cores:g} cores" if cores else f"{used:.1f} cores"
    idle = "it waited most of the time." if used < WAITING_CORES else "the others had nothing to do."
    sayings = {
        "GPUs held idle": _held(view),
        "GPUs held too long": f"used {share}, and its GPUs only for a part of the time that it held them.",
        "GPUs waiting": f"used {share}; its GPUs waited for work most of the time.",
        "I/O wait": f"waited for storage much of the time and used {share}.",
        "idle cores": f"used {share}; {idle}",
        "cores taken by others": f"used {share}; other work on the node had the rest.",
        "memory growth": f"used {share}, and its memory grew to the end.",
        "serial phase": f"used {share}; for a part of the time only one worked.",
        "more threads than cores": f"used {share}, with more threads than these can run.",
    }
    for rule in rules:
        if rule in sayings:
            return sayings[rule]
    return f"used {share}: well." if cores and used >= 0.75 * cores else f"used {share}."


def _held(view: View) -> str:
    held = [gpu for gpu in view.gpus if gpu.held]
    used, idle = sum(gpu.used for gpu in held), len(idle_gpus(view))
    if len(held) == 1:
        return "held a GPU and did not use it."
    if used + idle < len(held):  # of the others it is not known
        return f"held {len(held)} GPUs, {idle} of them for nothing."
    return f"held {len(held)} GPUs and used {used or 'none'}."
