"""The rules: each looks at a job and has something to say, with interval, evidence and advice, or not."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable

from joblens.analysis.batch_findings import (
    idle_nodes,
    node_failed,
    out_of_memory,
    over_its_time,
    split_nodes,
    too_much_memory,
    too_much_time,
    uneven_nodes,
)
from joblens.analysis.gpu_findings import held_idle, used_for_a_while, waiting_gpus
from joblens.analysis.points import steady
from joblens.analysis.view import Finding, Point, View, mean
from joblens.units import render_bytes, render_cores, render_seconds, render_signal

# Shorter jobs say little about how they use what they have.
_WORTH_SECONDS = 5.0
_EARLY_SECONDS = 60.0
_MADE_WAY_PER_SECOND = 5.0  # two that share a core push each other off it some hundred times a second
WAITING_CORES = 0.5  # who uses less than half of one is not computing
_AFTER_SIGNAL: dict[int, str] = {
    signal.SIGKILL: "was it out of memory or over its time? see dmesg, or ask the scheduler",
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


def idle_cores(view: View) -> Finding | None:
    """Most of the cores that it may use had nothing to do, all the time."""
    if view.cores < 2 or view.duration < _WORTH_SECONDS:
        return None
    used, most = view.used["cores_mean"], view.used["cores_peak"]
    if used is None or most is None or used > 0.5 * view.cores or most > 0.75 * view.cores:
        return None
    # Cores that a scheduler gave to a job it gave to nobody else, however busy the others are.
    free = None if view.job.get("nodes") else view.used.get("node_idle_cores")
    if free is not None and free < 0.5 * (view.cores - used) and _had_to_make_way(view):
        return _taken_cores(view, used, free)
    idle, busy = split_nodes(view)
    if idle and busy and used > 0.5 * view.cores * len(busy) / len(view.nodes):
        return None  # those of the nodes that had nothing to do: that is told
    enough = max(math.ceil(most - 0.2), 1)
    change = "let it work on more at once (threads, processes, -j)"
    if used < WAITING_CORES:
        change = "it waited most of the time: find out for what (input, network, a lock, a sleep)"
    return Finding(
        "idle cores",
        view.job["start"],
        view.job["end"],
        f"{used:.1f} of {render_cores(view.cores)} cores in use on average, {most:.1f} at most",
        f"ask for {enough} ({_flags(view, enough)}); {change}" if view.in_slurm else change,
        (1 - used / view.cores) * (0.5 if any(gpu.used for gpu in view.gpus) else 1.0),
    )


def _flags(view: View, cores: int) -> str:
    """On several nodes there are several tasks, and which of the two was meant nobody tells."""
    return f"--cpus-per-task={cores}" if len(view.nodes) < 2 else "fewer --ntasks or --cpus-per-task"


def _had_to_make_way(view: View) -> bool:
    """Who sleeps while others compute does not lack a core: the kernel never took one from it."""
    switches = view.used["involuntary_switches"]
    return switches is None or switches / view.duration >= _MADE_WAY_PER_SECOND


def _taken_cores(view: View, used: float, free: float) -> Finding:
    """It could not have used more: other work was on the cores that it may use."""
    return Finding(
        "cores taken by others",
        view.job["start"],
        view.job["end"],
        f"{used:.1f} of {render_cores(view.cores)} cores in use, "
        f"while other work on the node left {free:.1f} idle",
        "run it where it has its cores for itself, and judge its use of them there",
        0.5 * (1 - used / view.cores),
    )


def serial_phase(view: View) -> Finding | None:
    """A stretch on one core in a job that elsewhere uses several."""
    if view.cores < 2 or view.duration < _WORTH_SECONDS:
        return None
    points = steady(view.points)
    if not any(point.cores is not None and point.cores > 1.6 for point in points):
        return None
    run = _longest(points, lambda point: point.cores is not None and 0.5 <= point.cores <= 1.25)
    if not run:
        return None
    start, end = run[0].start, min(run[-1].end, view.job["end"])
    part = (end - start) / view.duration
    if end - start < _WORTH_SECONDS or part < 0.1:
        return None
    return Finding(
        "serial phase",
        start,
        end,
        f"one core of {render_cores(view.cores)} in use for {render_seconds(end - start)}, "
        f"{part:.0%} of the time",
        "do this part in parallel too, or as a job of its own with one core",
        part * (1 - 1 / view.cores),
    )


def memory_growth(view: View) -> Finding | None:
    """Memory that grows steadily to the end: a leak, or data that piles up."""
    points = [point for point in view.points if point.memory]
    late = points[len(points) // 4 :]
    if len(late) < 8 or late[-1].end - late[0].start < 2 * _WORTH_SECONDS:
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
    """A process of the job waited for storage instead of computing."""
    wait, cores = view.used["io_wait"], view.used["cores_mean"]
    if wait is None or cores is None or view.duration < _WORTH_SECONDS:
        return None
    if wait["part"] < 0.25 or wait["looks"] < 5 or cores > 0.75 * max(view.cores, 1.0):
        return None
    read, written = view.used["read_bytes"] or 0, view.used["written_bytes"] or 0
    return Finding(
        "I/O wait",
        wait["from"],
        min(wait["to"], view.job["end"]),
        f"{wait['process']} was waiting for storage in {wait['part']:.0%} of the looks at the job; "
        f"{render_bytes(read)} read, {render_bytes(written)} written",
        "read and write in larger pieces and fewer files, or copy the data to a faster disk first",
        min(wait["part"], 1.0) * 0.9,
    )


def too_many_threads(view: View) -> Finding | None:
    """More threads want to run than there are cores, and push each other off."""
    switches = view.used["involuntary_switches"]
    if not view.cores or view.duration < _WORTH_SECONDS or switches is None:
        return None
    threads = mean([(p.threads, p.seconds) for p in view.points if p.threads is not None])
    cores = view.used["cores_mean"]
    if threads is None or cores is None or threads < 2 * view.cores or cores < 0.8 * view.cores:
        return None
    pace = switches / view.duration / view.cores
    if pace < 10:
        return None
    count = max(int(view.cores), 1)
    return Finding(
        "more threads than cores",
        view.job["start"],
        view.job["end"],
        f"{threads:.0f} threads on {render_cores(view.cores)} cores; "
        f"on each a thread had to make way for another {pace:.0f} times a second",
        f"start as many as there are cores (OMP_NUM_THREADS={count}, -j{count}), or ask for more cores",
        0.4,
    )


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
    idle_cores,
    serial_phase,
    memory_growth,
    io_wait,
    too_many_threads,
    too_much_memory,
    too_much_time,
)


def _longest(points: list[Point], holds: Callable[[Point], bool]) -> list[Point]:
    best: list[Point] = []
    current: list[Point] = []
    for point in points:
        current = [*current, point] if holds(point) else []
        if current and (not best or current[-1].end - current[0].start > best[-1].end - best[0].start):
            best = current
    return best


def fit_line(xs: list[float], ys: list[float]) -> tuple[float, float]:
    """Slope, and how well a line fits (the square of the correlation)."""
    count = len(xs)
    x_mean, y_mean = sum(xs) / count, sum(ys) / count
    xx = sum((x - x_mean) ** 2 for x in xs)
    yy = sum((y - y_mean) ** 2 for y in ys)
    xy = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys))
    return (xy / xx, xy * xy / (xx * yy)) if xx and yy else (0.0, 0.0)
