"""One sentence about a job."""

from __future__ import annotations

from joblens.analysis.batch_findings import split_nodes, was_killed_for_memory
from joblens.analysis.core_findings import lost_cores
from joblens.analysis.findings import how_it_ended, was_stopped_by_user
from joblens.analysis.gpu_findings import idle_gpus
from joblens.analysis.view import View
from joblens.units import render_bytes, render_cores

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_ENDS = {
    "FAILED": "It failed, and ",
    "TIMEOUT": "It was ended at its limit of time, and ",
    "DEADLINE": "It was ended at its deadline, and ",
    "OUT_OF_MEMORY": "It was killed for its memory, and ",
    "CANCELLED": "It was cancelled, and ",
    "PREEMPTED": "It had to make way for another job, and ",
    "NODE_FAIL": "A node failed under it; until then it ",
    "BOOT_FAIL": "A node failed under it; until then it ",
    "REQUEUED": "It was put back into the queue; until then it ",
    "RUNNING": "So far it ",
    "COMPLETING": "So far it ",
    "SUSPENDED": "It is suspended; so far it ",
}


def verdict(view: View, rules: list[str]) -> str:
    """How it ended if that is the news, else how it used its cores, by the heaviest finding."""
    state = view.job["state"]
    if state == "UNKNOWN":
        why = "accounting has not told it" if view.job.get("nodes") else "joblens was stopped before it"
        return f"How it ended is not known: {why}."
    if state in _WAITING and (state != "REQUEUED" or view.job["end"] is None):
        reason = view.job.get("reason")
        return f"It waits{f': {reason}' if reason and reason != 'None' else ''}."
    if view.never_started:
        return "It was cancelled before it started." if state == "CANCELLED" else "It never started."
    if "failed early" in rules:
        return f"It failed: {how_it_ended(view)}."
    if was_killed_for_memory(view) and state == "FAILED":
        limit = view.asked.get("memory_bytes")
        at = f" at the limit of {render_bytes(limit)}" if limit else ""
        prefix = f"It was killed for its memory{at}, and "
    elif was_stopped_by_user(view) and state == "FAILED":
        prefix = "It was ended by Ctrl-C, and "
    else:
        prefix = _ENDS.get(state, "It ")
    return prefix + _use(view, rules)


def _use(view: View, rules: list[str]) -> str:
    used, cores = view.used["cores_mean"], view.cores
    if used is None and view.duration >= 1 and view.job.get("nodes"):
        return "was seen in no sample: how it used what it had is not known."
    if used is None or view.duration < 1:
        return "was too short to judge how it used what it had."
    share = (
        f"{used:.1f} of {render_cores(cores)} core{'' if cores == 1 else 's'}"
        if cores
        else f"{used:.1f} cores"
    )
    taken = (lost_cores(view) or (0.0, 0.0))[1]
    held = view.used.get("throttled_share") or 0.0
    sayings = {
        "GPUs held idle": _held(view),
        "GPUs held too long": f"used {share}, and its GPUs only for a part of the time that it held them.",
        "GPUs waiting": f"used {share}; its GPUs waited for work most of the time.",
        "idle nodes": _idle_nodes(view, share),
        "uneven nodes": f"used {share}, on some nodes far more than on others.",
        "CPU quota": f"used {share}; its CPU quota stopped it for {held:.0%} of the time.",
        "I/O wait": f"waited for storage much of the time and used {share}.",
        "idle cores": f"used {share}; the others had nothing to do.",
        "asleep": f"slept or waited most of the time and used {share}.",
        "cores taken by others": f"used {share}; other work took {taken:.0%} of the cores that it wanted.",
        "bound to few cores": f"used {share}; its threads shared them while other cores were idle.",
        "memory growth": f"used {share}, and its memory grew to the end.",
        "serial phase": f"used {share}; for a part of the time only one worked.",
        "more threads than cores": f"used {share}, with more threads than these can run.",
        "short-lived processes": f"used {share}, much of it to start processes that end at once.",
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


def _idle_nodes(view: View, share: str) -> str:
    idle, busy = split_nodes(view)
    worked = f"{len(busy)} of its {len(view.nodes)} nodes did the work." if idle else ""
    return f"used {share}; {worked}"
