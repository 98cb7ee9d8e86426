"""One sentence about a job."""

from __future__ import annotations

from joblens.analysis.rule_input import View
from joblens.analysis.rules.batch import OUT_OF_MEMORY, at_limit, split_nodes, was_killed_for_memory
from joblens.analysis.rules.cores import awake_share, lost_cores
from joblens.analysis.rules.general import how_it_ended, render_traffic, was_stopped_by_user
from joblens.analysis.rules.gpus import idle_gpus
from joblens.core.units import render_cores, render_load

_WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")
_ENDS = {
    "FAILED": "It failed, and ",
    "TIMEOUT": "It reached its time limit, and ",
    "DEADLINE": "It was ended at its deadline, and ",
    "CANCELLED": "It was cancelled, and ",
    "PREEMPTED": "It was preempted by another job, and ",
    "NODE_FAIL": "A node failed; until then it ",
    "BOOT_FAIL": "A node failed; until then it ",
    "REQUEUED": "It was requeued; until then it ",
    "RUNNING": "So far it ",
    "COMPLETING": "So far it ",
    "SUSPENDED": "It is suspended; so far it ",
}


def verdict(view: View, rules: list[str]) -> str:
    """How it ended if that is the news, else how it used its cores, by the heaviest finding."""
    state = view.job.state
    if state == "UNKNOWN":
        return _unknown_end(view)
    if state in _WAITING and (state != "REQUEUED" or view.job.end is None):
        reason = view.job.reason
        return f"It is waiting in the queue{f': {reason}' if reason and reason != 'None' else ''}."
    if view.job.never_started:
        return "It was cancelled before it started." if state == "CANCELLED" else "It never started."
    if "failed early" in rules:
        return f"It failed: {how_it_ended(view)}."
    return _how_it_ended(view) + _use(view, rules)


def _unknown_end(view: View) -> str:
    by_scheduler = view.job.nodes and view.job.source != "usermode"
    why = "accounting has not reported it" if by_scheduler else "joblens was stopped first"
    if by_scheduler and view.job.source == "run":  # a shell between joblens start and joblens stop
        why = "joblens stop was called without --exit-code, or not at all"
    if view.job.source == "epmt":
        why = "its archive has no exit code"
    killed = (
        f" A process of it was killed for its memory{at_limit(view)}." if was_killed_for_memory(view) else ""
    )
    return f"How it ended is not known: {why}.{killed}"


def _how_it_ended(view: View) -> str:
    """The begin of the sentence."""
    state = view.job.state
    if was_killed_for_memory(view):
        if state == "FAILED" or state in OUT_OF_MEMORY:
            return f"It was killed for its memory{at_limit(view)}, and "
        if state in ("COMPLETED", "PART"):
            return f"A process of it was killed for its memory{at_limit(view)}; it "
    if was_stopped_by_user(view) and state == "FAILED":
        return "It was ended by Ctrl-C, and "
    return _ENDS.get(state or "", "It ")


def _use(view: View, rules: list[str]) -> str:
    used, cores = view.used.cores_mean, view.cores
    if used is None and view.job.state == "RUNNING" and not view.points:
        return "was seen in no sample."
    if used is None and view.duration >= 1 and view.job.nodes:
        return "was not sampled: how it used its resources is not known."
    if used is None or view.duration < 1:
        return "was too short to judge how it used its resources."
    plural = "" if cores == 1 else "s"
    load = render_load(used)
    share = f"{load} of {render_cores(cores)} core{plural}" if cores else f"{load} cores"
    taken = (lost_cores(view) or (0.0, 0.0))[1]
    throttled = f"{view.used.throttled_share or 0.0:.0%} of the time that it was ready to run"
    traffic = render_traffic(view)
    sayings = {
        "GPUs held idle": _held(view),
        "GPUs held too long": f"used {share}; it held its GPUs for longer than it used them.",
        "GPUs waiting": f"used {share}; its GPUs waited for work most of the time.",
        "idle nodes": _idle_nodes(view, share),
        "uneven nodes": f"used {share}, on some nodes far more than on others.",
        "CPU quota": f"used {share}; its CPU quota throttled it for {throttled}.",
        "I/O wait": f"was I/O-bound: {traffic}; it used {share}.",
        "idle cores": f"used {share}; the rest of its cores had no work.",
        "asleep": f"slept or waited {1 - awake_share(view, used):.0%} of the time, using {share}.",
        "cores taken by others": f"used {share}; other work took {taken:.0%} of the CPU time that it wanted.",
        "bound to few cores": f"used {share}; its threads shared few cores while others were idle.",
        "memory growth": f"used {share}, and its memory grew until the end.",
        "serial phase": f"used {share}; part of the time only one of them had work.",
        "more threads than cores": f"used {share}, with more threads ready to run than cores.",
        "short-lived processes": f"used {share}, much of it to start short-lived processes.",
    }
    for rule in rules:
        if rule in sayings:
            return sayings[rule]
    if cores and used >= 0.75 * cores:
        its = f"{render_cores(cores)} core{plural}" if cores != 1 else "core"
        return f"made good use of its {its}: {used:.1f} in use on average."
    return f"used {share}."


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
