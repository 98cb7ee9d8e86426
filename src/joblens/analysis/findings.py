"""The rules: each looks at a job and has something to say, with interval, evidence and advice, or not."""

from __future__ import annotations

import signal
from collections.abc import Callable

from joblens.analysis.batch_findings import (
    idle_nodes,
    node_failed,
    out_of_memory,
    over_its_time,
    too_much_memory,
    too_much_time,
    uneven_nodes,
    was_killed_for_memory,
)
from joblens.analysis.core_findings import (
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
from joblens.analysis.gpu_findings import held_idle, used_for_a_while, waiting_gpus
from joblens.analysis.view import Finding, View
from joblens.units import render_bytes, render_seconds, render_signal

_EARLY_SECONDS = 60.0
_AFTER_SIGNAL: dict[int, str] = {
    signal.SIGKILL: "who killed it: a limit of time, the memory of the node, or somebody by kill?",
    signal.SIGTERM: "who ended it: a limit of time, timeout, scancel, or somebody by kill?",
    signal.SIGSEGV: "it crashed: run it in a debugger, or look at its core file",
    signal.SIGBUS: "it crashed: is a file that it maps too short, or a disk full?",
    signal.SIGABRT: "it gave up by itself: its last lines of output say why",
    signal.SIGXCPU: "it used more CPU time than it may, see ulimit -t",
    signal.SIGXFSZ: "it wrote a larger file than it may, see ulimit -f",
}


def find(view: View) -> list[Finding]:
    if view.never_started:  # whatever it is called in the end: nothing that it did can be changed
        return []
    found = [finding for rule in RULES for finding in [rule(view)] if finding is not None]
    return sorted(found, key=lambda finding: -finding.weight)


def failed_early(view: View) -> Finding | None:
    """It ended with an error before it can have done much."""
    if not (view.job["exit_code"] or view.job["signal"]) or view.duration >= _EARLY_SECONDS:
        return None
    if view.job["state"] not in ("FAILED", "COMPLETED"):  # then the scheduler says why
        return None
    if was_killed_for_memory(view):
        return None
    if _death(view) in (signal.SIGINT, signal.SIGPIPE):  # the user, or the next in a pipeline, had enough
        return None
    return Finding(
        "failed early", view.job["start"], view.job["end"], how_it_ended(view), _what_to_do(view), 1.0
    )


def how_it_ended(view: View) -> str:
    after = f"after {render_seconds(view.duration)}"
    code, number = view.job["exit_code"], view.job["signal"]
    if number:
        return f"it was ended by {render_signal(number)} {after}"
    if _death(view):
        return f"exit code {code} {after}, so something in it was ended by {render_signal(code - 128)}"
    return f"exit code {code} {after}"


def _death(view: View) -> int:
    """The signal that ended it, or by its exit code something in it, as shells tell that; else 0."""
    code = view.job["exit_code"] or 0
    return int(view.job["signal"] or (code - 128 if 128 < code <= 128 + signal.SIGRTMAX else 0))


def was_stopped_by_user(view: View) -> bool:
    return _death(view) == signal.SIGINT


def _what_to_do(view: View) -> str:
    if _death(view):
        return _AFTER_SIGNAL.get(_death(view), "find out who sends this signal")
    return {
        126: "is the file that it calls executable, and for this machine?",
        127: "a command in it was not found: is a module to be loaded, or PATH to be set?",
    }.get(view.job["exit_code"], "its last lines of output say why")


def memory_growth(view: View) -> Finding | None:
    """Memory that grows steadily to the end: a leak, or data that piles up."""
    points = [point for point in view.points if point.memory]
    late = points[len(points) // 4 :]
    if len(late) < 8 or late[-1].end - late[0].start < 2 * WORTH_SECONDS:
        return None
    sizes = [point.memory or 0.0 for point in late]
    slope, fit = fit_line([point.end for point in late], sizes)
    growth = sizes[-1] - sizes[0]
    if fit < 0.95 or growth < 0.2 * sizes[-1] or growth < 32 * 2**20:
        return None
    limit = view.asked.get("memory_bytes")
    full = f"; {render_bytes(limit)} would be full {_later(limit, sizes[-1], slope)}" if limit else ""
    return Finding(
        "memory growth",
        late[0].start,
        min(late[-1].end, view.job["end"]),
        f"memory grew by {render_bytes(slope * 60)} a minute, to {render_bytes(sizes[-1])}{full}",
        "look for what is kept and never freed, or make sure that the job ends before it is full",
        min(growth / sizes[-1], 1.0) * 0.8,
    )


def _later(limit: float, size: float, slope: float) -> str:
    return f"{render_seconds((limit - size) / slope)} later" if limit > size else "already"


def io_wait(view: View) -> Finding | None:
    """Its processes waited for storage instead of computing."""
    share, cores = view.used.get("blocked_share"), view.used["cores_mean"]
    if share is None or cores is None or view.duration < WORTH_SECONDS or not waits_for_storage(view):
        return None
    if cores > 0.75 * max(view.cores, 1.0):
        return None
    return Finding(
        "I/O wait",
        view.job["start"],
        view.job["end"],
        f"its processes waited for storage for {share:.0%} of the time that they had something to do; "
        + _traffic(view),
        "read and write in larger pieces and fewer files, or copy the data to a faster disk first",
        min(share, 1.0) * 0.9,
    )


def _traffic(view: View) -> str:
    """`2.2 GiB written at 180 MiB/s (vda)`"""
    device = view.used.get("device")
    amounts = (("read", view.used["read_bytes"] or 0), ("written", view.used["written_bytes"] or 0))
    words = [
        f"{render_bytes(amount)} {what} at {render_bytes(amount / view.duration)}/s"
        for what, amount in amounts
        if amount
    ]
    told = ", ".join(words) or "nothing was read or written"
    return f"{told} ({device})" if device and words else told


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
