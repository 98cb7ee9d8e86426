"""The rules: each returns a finding with interval, evidence and advice, or None."""

from __future__ import annotations

import signal
from collections.abc import Callable

from joblens.analysis.rule_input import View
from joblens.analysis.rules.batch import (
    idle_nodes,
    node_failed,
    out_of_memory,
    over_its_time,
    too_much_memory,
    too_much_time,
    uneven_nodes,
    was_killed_for_memory,
)
from joblens.analysis.rules.cores import (
    WORTH_SECONDS,
    bound,
    cores_taken,
    idle_cores,
    serial_phase,
    short_lived,
    throttled,
    too_many_threads,
    waits_for_storage,
)
from joblens.analysis.rules.gpus import held_idle, used_for_a_while, waiting_gpus
from joblens.core.units import render_bytes, render_seconds, render_signal
from joblens.record.report import Finding

_EARLY_SECONDS = 60.0
_NEXT_TO_NOTHING = 0.01
_AFTER_SIGNAL: dict[int, str] = {
    signal.SIGKILL: "find out who killed it: a time limit, a node that ran out of memory, or a person",
    signal.SIGTERM: "find out who ended it: a time limit, timeout(1), scancel, or a person",
    signal.SIGSEGV: "it crashed on an invalid memory access: run it in a debugger, or inspect its core file",
    signal.SIGBUS: "it crashed: check for a mapped file that was truncated, or a full disk",
    signal.SIGABRT: "it aborted by itself: the last lines of its output say why",
    signal.SIGXCPU: "it used more CPU time than allowed: see ulimit -t",
    signal.SIGXFSZ: "it wrote a larger file than allowed: see ulimit -f",
}


def find(view: View) -> list[Finding]:
    if view.job.never_started:  # whatever it is called in the end: nothing that it did can be changed
        return []
    found = [finding for rule in RULES for finding in [rule(view)] if finding is not None]
    return sorted(found, key=lambda finding: -(finding.weight or 0.0))


def failed_early(view: View) -> Finding | None:
    """It ended with an error before it can have done much."""
    if not (view.job.exit_code or view.job.signal) or view.duration >= _EARLY_SECONDS:
        return None
    if view.job.state not in ("FAILED", "COMPLETED"):  # then the scheduler says why
        return None
    if was_killed_for_memory(view):
        return None
    if _death(view) in (signal.SIGINT, signal.SIGPIPE):  # the user, or the next in a pipeline, had enough
        return None
    return Finding("failed early", view.job.start, view.job.last, how_it_ended(view), _what_to_do(view), 1.0)


def how_it_ended(view: View) -> str:
    after = f"after {render_seconds(view.duration)}"
    code, number = view.job.exit_code or 0, view.job.signal
    if number:
        return f"it was ended by {render_signal(number)} {after}"
    if _death(view):
        return f"exit code {code} {after}, so something in it was ended by {render_signal(code - 128)}"
    return f"exit code {code} {after}"


def _death(view: View) -> int:
    """Return the signal that ended it, or that its exit code stands for as in shells, or 0."""
    code = view.job.exit_code or 0
    return int(view.job.signal or (code - 128 if 128 < code <= 128 + signal.SIGRTMAX else 0))


def was_stopped_by_user(view: View) -> bool:
    return _death(view) == signal.SIGINT


def _what_to_do(view: View) -> str:
    if _death(view):
        return _AFTER_SIGNAL.get(_death(view), "find out who sends this signal")
    return {
        126: "check that the program is executable and built for this machine",
        127: "a command in it was not found: load its module, or set PATH",
    }.get(view.job.exit_code or 0, "the last lines of its output say why")


def memory_growth(view: View) -> Finding | None:
    """Memory that grows steadily to the end: a leak, or data that piles up."""
    points = [point for point in view.points if point.memory]
    if len(points) > 1 and (points[-1].memory or 0.0) < (points[-2].memory or 0.0):
        points.pop()  # the last sample can see a process that frees its memory because it ends
    late = points[len(points) // 4 :]
    if len(late) < 8 or late[-1].end - late[0].start < 2 * WORTH_SECONDS:
        return None
    sizes = [point.memory or 0.0 for point in late]
    slope, fit = fit_line([point.end for point in late], sizes)
    growth = sizes[-1] - sizes[0]
    if fit < 0.95 or growth < 0.2 * sizes[-1] or growth < 32 * 2**20:
        return None
    limit = view.asked.memory_bytes
    full = f"; {_until_full(limit, sizes[-1], slope)}" if limit else ""
    return Finding(
        "memory growth",
        late[0].start,
        min(late[-1].end, view.job.last),
        f"memory grew by {render_bytes(slope * 60)} per minute to {render_bytes(sizes[-1])}{full}",
        "find memory that is never freed, or make sure that the job ends before the limit is reached",
        min(growth / sizes[-1], 1.0) * 0.8,
    )


def _until_full(limit: float, size: float, slope: float) -> str:
    if size >= limit:
        return f"the limit of {render_bytes(limit)} is reached"
    left = render_seconds((limit - size) / slope)
    return f"at that rate it reaches the limit of {render_bytes(limit)} in {left}"


def io_wait(view: View) -> Finding | None:
    """Its processes waited for storage instead of computing."""
    share, cores = view.used.blocked_share, view.used.cores_mean
    if share is None or cores is None or view.duration < WORTH_SECONDS or not waits_for_storage(view):
        return None
    if cores > 0.75 * max(view.cores, 1.0):
        return None
    return Finding(
        "I/O wait",
        view.job.start,
        view.job.last,
        f"its processes spent {share:.0%} of their active time waiting for storage; {render_traffic(view)}",
        "read and write less often in larger blocks, or copy the data to faster storage first",
        min(share, 1.0) * 0.9,
    )


def render_traffic(view: View) -> str:
    """`2.2 GiB written at 180 MiB/s (vda)`; what is next to nothing beside the other is left out."""
    device = view.used.device
    amounts = {"read": view.used.read_bytes or 0, "written": view.used.written_bytes or 0}
    words = [
        f"{render_bytes(amount)} {what} at {render_bytes(amount / view.duration)}/s"
        for what, amount in amounts.items()
        if amount > _NEXT_TO_NOTHING * sum(amounts.values())
    ]
    shown = ", ".join(words) or "it waited for storage, though no bytes were counted"
    return f"{shown} ({device})" if device and words else shown


RULES: tuple[Callable[[View], Finding | None], ...] = (
    failed_early,
    over_its_time,
    out_of_memory,
    node_failed,
    held_idle,
    used_for_a_while,
    waiting_gpus,
    idle_nodes,
    uneven_nodes,
    throttled,
    cores_taken,
    bound,
    idle_cores,
    serial_phase,
    memory_growth,
    io_wait,
    too_many_threads,
    short_lived,
    too_much_memory,
    too_much_time,
)


def fit_line(xs: list[float], ys: list[float]) -> tuple[float, float]:
    """Slope, and how well a line fits (the square of the correlation)."""
    count = len(xs)
    x_mean, y_mean = sum(xs) / count, sum(ys) / count
    xx = sum((x - x_mean) ** 2 for x in xs)
    yy = sum((y - y_mean) ** 2 for y in ys)
    xy = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys))
    return (xy / xx, xy * xy / (xx * yy)) if xx and yy else (0.0, 0.0)
