"""The rules: each looks at a job and has something to say, with interval, evidence and advice, or not."""

from __future__ import annotations

import math
from collections.abc import Callable

from joblens.analysis.view import Finding, Point, View, mean
from joblens.units import render_bytes, render_seconds

# Shorter jobs say little about how they use what they have.
_WORTH_SECONDS = 5.0


def find(view: View) -> list[Finding]:
    found = [finding for rule in RULES for finding in [rule(view)] if finding is not None]
    return sorted(found, key=lambda finding: -finding.weight)


def failed_early(view: View) -> Finding | None:
    """It ended with an error before it can have done much."""
    code = view.job.get("exit_code")
    if not code or view.duration >= 60:
        return None
    signal = view.job.get("signal")
    how = f"signal {signal}" if signal else f"exit code {code}"
    return Finding(
        "failed early",
        view.job["start"],
        view.job["end"],
        f"it ended with {how} after {render_seconds(view.duration)}",
        _why_failed(code, signal),
        1.0,
    )


def _why_failed(code: int, signal: int | None) -> str:
    reasons = {
        9: "killed: was memory or time exceeded? see dmesg or the scheduler",
        11: "it crashed (segmentation fault): run it in a debugger",
        6: "it aborted itself: its last lines of output say why",
    }
    if signal:
        return reasons.get(signal, "somebody or something ended it by a signal")
    return {126: "the file is not executable", 127: "a command was not found: is a module loaded?"}.get(
        code, "its last lines of output say why"
    )


def idle_cores(view: View) -> Finding | None:
    """Most of the cores that it may use had nothing to do, all the time."""
    if view.cores < 2 or view.duration < _WORTH_SECONDS:
        return None
    used, most = view.used["cores_mean"], view.used["cores_peak"]
    if used is None or most is None or used > 0.5 * view.cores or most > 0.75 * view.cores:
        return None
    wanted = max(math.ceil(most - 0.2), 1)
    return Finding(
        "idle cores",
        view.job["start"],
        view.job["end"],
        f"{used:.1f} of {view.cores:g} cores in use on average, {most:.1f} at most",
        f"--cpus-per-task={wanted}, or let it use more threads",
        1 - used / view.cores,
    )


def serial_phase(view: View) -> Finding | None:
    """A stretch on one core in a job that elsewhere uses several."""
    if view.cores < 2 or view.duration < _WORTH_SECONDS:
        return None
    if not any(point.cores is not None and point.cores > 1.6 for point in view.points):
        return None
    run = _longest(view.points, lambda point: point.cores is not None and 0.5 <= point.cores <= 1.25)
    if not run:
        return None
    start, end = run[0].start, run[-1].end
    part = (end - start) / view.duration
    if end - start < _WORTH_SECONDS or part < 0.1:
        return None
    return Finding(
        "serial phase",
        start,
        end,
        f"one core of {view.cores:g} in use for {render_seconds(end - start)}, {part:.0%} of the time",
        "make this part parallel, or run it as a job of its own with one core",
        part * (1 - 1 / view.cores),
    )


def memory_growth(view: View) -> Finding | None:
    """Memory that grows steadily to the end: a leak, or data that piles up."""
    points = [point for point in view.points if point.memory is not None and point.memory > 0]
    late = points[len(points) // 4 :]
    if len(late) < 8 or late[-1].end - late[0].start < 2 * _WORTH_SECONDS:
        return None
    times = [point.end for point in late]
    sizes = [point.memory or 0.0 for point in late]
    slope, fit = _line(times, sizes)
    growth = sizes[-1] - sizes[0]
    if fit < 0.95 or growth < 0.2 * sizes[-1] or growth < 32 * 2**20:
        return None
    limit = view.asked.get("memory_bytes")
    rest = ""
    if limit and limit > sizes[-1]:
        rest = (
            f"; at this pace {render_bytes(limit)} are full in {render_seconds((limit - sizes[-1]) / slope)}"
        )
    return Finding(
        "memory growth",
        late[0].start,
        late[-1].end,
        f"memory grew by {render_bytes(slope * 60)} a minute, to {render_bytes(sizes[-1])}{rest}",
        "look for what is kept and never freed, or ask for more memory before it runs out",
        min(growth / sizes[-1], 1.0) * 0.8,
    )


def io_wait(view: View) -> Finding | None:
    """The job waited for storage instead of computing."""
    waiting = view.used.get("io_wait_part")
    cores = view.used["cores_mean"]
    if waiting is None or cores is None or waiting < 0.25 or view.duration < _WORTH_SECONDS:
        return None
    if cores > 0.75 * max(view.cores, 1):
        return None
    read, written = view.used.get("read_bytes") or 0, view.used.get("written_bytes") or 0
    return Finding(
        "I/O wait",
        view.job["start"],
        view.job["end"],
        f"in {waiting:.0%} of the looks a process waited for storage; "
        f"{render_bytes(read)} read, {render_bytes(written)} written",
        "use fewer and larger files, a faster file system, or copy the data to the node first",
        min(waiting, 1.0) * 0.9,
    )


def too_many_threads(view: View) -> Finding | None:
    """More threads want to run than there are cores, and push each other off."""
    switches = view.used.get("involuntary_switches")
    if not view.cores or view.duration < _WORTH_SECONDS or switches is None:
        return None
    threads = mean([(p.threads, p.seconds) for p in view.points if p.threads is not None])
    cores = view.used["cores_mean"]
    if threads is None or cores is None or threads < 2 * view.cores or cores < 0.8 * view.cores:
        return None
    pace = switches / view.duration / view.cores
    if pace < 10:
        return None
    return Finding(
        "more threads than cores",
        view.job["start"],
        view.job["end"],
        f"{threads:.0f} threads on {view.cores:g} cores; each pushed one off {pace:.0f} times a second",
        f"OMP_NUM_THREADS={max(int(view.cores), 1)}, or ask for more cores",
        0.4,
    )


RULES: tuple[Callable[[View], Finding | None], ...] = (
    failed_early,
    idle_cores,
    serial_phase,
    memory_growth,
    io_wait,
    too_many_threads,
)


def _longest(points: list[Point], holds: Callable[[Point], bool]) -> list[Point]:
    best: list[Point] = []
    current: list[Point] = []
    for point in points:
        current = [*current, point] if holds(point) else []
        if current and (not best or current[-1].end - current[0].start > best[-1].end - best[0].start):
            best = current
    return best


def _line(xs: list[float], ys: list[float]) -> tuple[float, float]:
    """Slope, and how well a line fits (the square of the correlation)."""
    count = len(xs)
    x_mean, y_mean = sum(xs) / count, sum(ys) / count
    xx = sum((x - x_mean) ** 2 for x in xs)
    yy = sum((y - y_mean) ** 2 for y in ys)
    xy = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys))
    return (xy / xx, xy * xy / (xx * yy)) if xx and yy else (0.0, 0.0)
