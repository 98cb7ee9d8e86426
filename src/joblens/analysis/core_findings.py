"""The rules about cores: idle, taken by other work, limited by a quota, serial, or fought over."""

from __future__ import annotations

import math
from collections.abc import Callable

from joblens.analysis.batch_findings import split_nodes
from joblens.analysis.points import steady
from joblens.analysis.view import Finding, Point, View, mean
from joblens.units import render_cores, render_seconds

WORTH_SECONDS = 5.0  # shorter jobs say little about how they use what they have
WAITING_CORES = 0.5  # who uses less than half of one is not computing
_MUCH_LOST = 0.15  # of the cores that it wanted
_MUCH_HELD = 0.1  # of the time that it wanted to run
_LEAST_HELD = 0.05  # of its time
_MANY_FORKS = 50.0  # a second
_MUCH_UNSAMPLED = 0.3  # of its CPU time
_LEAST_UNSAMPLED = 0.05  # cores
_BLOCKED = 0.3


def lost_cores(view: View) -> tuple[float, float] | None:
    """Cores that it could have used and did not get, on average, and as a share of those that it wanted.

    At no time can its threads use more than the cores that it has: beyond them they wait for each other.
    """
    used, delayed = view.used["cores_mean"], view.used.get("cores_delayed")
    if used is None or delayed is None or not view.cores:
        return None
    points = [point for point in view.points if point.cores is not None and point.delayed is not None]
    seen = mean([(point.delayed or 0.0, point.seconds) for point in points])
    scale = delayed / seen if seen else 0.0
    lost = mean([(_lost(point, view.cores, scale), point.seconds) for point in points]) or 0.0
    return lost, lost / (used + lost) if used + lost > 0 else 0.0


def _lost(point: Point, cores: float, scale: float) -> float:
    used = point.cores or 0.0
    return max(min(used + scale * (point.delayed or 0.0), cores) - used, 0.0)


def is_throttled(view: View) -> bool:
    share, seconds = view.used.get("throttled_share") or 0.0, view.used.get("throttled_seconds") or 0.0
    return share >= _MUCH_HELD and seconds >= _LEAST_HELD * view.duration


def has_lost_cores(view: View) -> bool:
    """Who wanted less than half a core slept most of the time, and that comes first."""
    lost = lost_cores(view)
    if lost is None or lost[1] < _MUCH_LOST or is_throttled(view):
        return False
    return lost[0] >= 0.1 and lost[0] / lost[1] >= WAITING_CORES


def is_bound(view: View) -> bool:
    """Its threads waited for cores while others of the node were idle: they may not run there."""
    free, lost = view.used.get("node_idle_cores"), lost_cores(view)
    return free is not None and lost is not None and free >= max(0.5, 0.75 * lost[0])


def waits_for_storage(view: View) -> bool:
    share, blocked = view.used.get("blocked_share"), view.used.get("blocked_mean")
    return share is not None and blocked is not None and share >= _BLOCKED and blocked >= 0.25


def throttled(view: View) -> Finding | None:
    """The cgroup's quota kept it from running."""
    if view.duration < WORTH_SECONDS or not is_throttled(view):
        return None
    share = view.used["throttled_share"]
    quota = f"its CPU quota of {render_cores(view.cores)} cores" if view.cores else "its CPU quota"
    return Finding(
        "CPU quota",
        view.job["start"],
        view.job["end"],
        f"{quota} stopped it for {share:.0%} of the time that it wanted to run",
        "ask for more cores, or start fewer threads and processes",
        share,
    )


def cores_taken(view: View) -> Finding | None:
    """It could not have used more: other work was on the cores that it may use."""
    if view.duration < WORTH_SECONDS or not has_lost_cores(view) or is_bound(view):
        return None
    used, (lost, part) = view.used["cores_mean"], lost_cores(view) or (0.0, 0.0)
    free = view.used.get("node_idle_cores")
    left = "" if free is None else f"; {free:.1f} cores of the node were idle"
    return Finding(
        "cores taken by others",
        view.job["start"],
        view.job["end"],
        f"it got {used:.1f} of the {used + lost:.1f} cores that it was ready to use; "
        f"other work had {part:.0%} of them{left}",
        "run it where it has its cores for itself, and judge its use of them there",
        part,
    )


def bound(view: View) -> Finding | None:
    """Its threads share fewer cores than it may use."""
    if view.duration < WORTH_SECONDS or not has_lost_cores(view) or not is_bound(view):
        return None
    used, (lost, part) = view.used["cores_mean"], lost_cores(view) or (0.0, 0.0)
    return Finding(
        "bound to few cores",
        view.job["start"],
        view.job["end"],
        f"its threads were ready to use {used + lost:.1f} cores and got {used:.1f}, "
        f"while {view.used['node_idle_cores']:.1f} cores of the node were idle",
        "look at how it is bound to cores (OMP_PROC_BIND, taskset, numactl, srun --cpu-bind)",
        part,
    )


def idle_cores(view: View) -> Finding | None:
    """Most of the cores that it may use had nothing to do, all the time, and nobody else had them."""
    used, most = view.used["cores_mean"], view.used["cores_peak"]
    if view.duration < WORTH_SECONDS or used is None or most is None:
        return None
    if has_lost_cores(view) or is_throttled(view) or _may_lack_cores(view, used):
        return None
    if _awake(view, used) < WAITING_CORES and most <= max(0.75 * view.cores, 1.0):
        return _asleep(view, used, most)
    if view.cores < 2 or used > 0.5 * view.cores or most > 0.75 * view.cores:
        return None
    return _idle(view, used, most)


def _awake(view: View, used: float) -> float:
    """For which part of the time a thread of it ran or was ready to run, at most."""
    return min(used + (view.used.get("cores_delayed") or 0.0), 1.0)


def _idle(view: View, used: float, most: float) -> Finding | None:
    if waits_for_storage(view) and not view.in_slurm:
        return None  # that is why
    idle, busy = split_nodes(view)
    if idle and busy and used > 0.5 * view.cores * len(busy) / len(view.nodes):
        return None  # those of the nodes that had nothing to do, which has a finding of its own
    enough = max(math.ceil(most - 0.2), 1)
    change = "let it work on more at once (threads, processes, -j)"
    return Finding(
        "idle cores",
        view.job["start"],
        view.job["end"],
        f"{used:.1f} of {render_cores(view.cores)} cores in use on average, {most:.1f} at most",
        f"ask for {enough} ({_flags(view, enough)}); {change}" if view.in_slurm else change,
        (1 - used / view.cores) * (0.5 if any(gpu.used for gpu in view.gpus) else 1.0),
    )


def _asleep(view: View, used: float, most: float) -> Finding | None:
    """No thread of it wanted a core, most of the time."""
    if waits_for_storage(view):
        return None
    awake = _awake(view, used)
    change = "find out what it waits for (input, network, a lock, a sleep)"
    enough = max(math.ceil(most - 0.2), 1)
    fewer = view.in_slurm and view.cores > enough
    return Finding(
        "asleep",
        view.job["start"],
        view.job["end"],
        f"it slept or waited for {1 - awake:.0%} of the time: none of its threads wanted a core",
        f"ask for {enough} ({_flags(view, enough)}); {change}" if fewer else change,
        (1 - awake) * (0.5 if any(gpu.used for gpu in view.gpus) else 1.0),
    )


def _may_lack_cores(view: View, used: float) -> bool:
    """On a full node, without its run-queue delay: whether it had nothing to do or no core is not known.

    Cores that a scheduler gave to a job it gave to nobody else, however busy the others are.
    """
    free = None if view.job.get("nodes") else view.used.get("node_idle_cores")
    unknown = view.used.get("run_delay_share") is None
    return unknown and free is not None and free < 0.5 * (view.cores - used)


def _flags(view: View, cores: int) -> str:
    """On several nodes there are several tasks, and which of the two was meant nobody says."""
    return f"--cpus-per-task={cores}" if len(view.nodes) < 2 else "fewer --ntasks or --cpus-per-task"


def serial_phase(view: View) -> Finding | None:
    """A stretch on one core, while no other thread was ready to run, in a job that elsewhere uses several."""
    if view.cores < 2 or view.duration < WORTH_SECONDS:
        return None
    points = steady(view.points)
    if not any(point.cores is not None and point.cores > 1.6 for point in points):
        return None
    run = _longest(points, _is_serial)
    if not run:
        return None
    start, end = run[0].start, min(run[-1].end, view.job["end"])
    part = (end - start) / view.duration
    if end - start < WORTH_SECONDS or part < 0.1:
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


def _is_serial(point: Point) -> bool:
    return point.cores is not None and 0.5 <= point.cores <= 1.25 and (point.delayed or 0.0) <= 0.25


def too_many_threads(view: View) -> Finding | None:
    """More threads want to run than there are cores, and push each other off."""
    switches = view.used["involuntary_switches"]
    if not view.cores or view.duration < WORTH_SECONDS or is_throttled(view) or view.cores < 1:
        return None
    threads = mean([(p.threads, p.seconds) for p in view.points if p.threads is not None])
    cores, share = view.used["cores_mean"], view.used.get("run_delay_share")
    if threads is None or cores is None or threads < 2 * view.cores or cores < 0.8 * view.cores:
        return None
    pace = (switches or 0.0) / view.duration / view.cores
    if pace < 10 if share is None else share < 0.3:
        return None
    count = max(int(view.cores), 1)
    waited = (
        f"on each a thread had to make way for another {pace:.0f} times a second"
        if share is None
        else f"they waited for each other {share:.0%} of the time that they were ready to run"
    )
    return Finding(
        "more threads than cores",
        view.job["start"],
        view.job["end"],
        f"{threads:.0f} threads on {render_cores(view.cores)} core{'' if view.cores == 1 else 's'}; {waited}",
        f"start as many as there are cores (OMP_NUM_THREADS={count}, -j{count}), or ask for more cores",
        0.4,
    )


def short_lived(view: View) -> Finding | None:
    """Much of its CPU time went into starting processes that end at once."""
    unsampled, cpu, forks = (view.used.get(name) for name in ("unsampled_seconds", "cpu_seconds", "forks"))
    if not unsampled or not cpu or not forks or view.duration < 1:
        return None
    pace = forks / view.duration
    if pace < _MANY_FORKS or unsampled < max(_MUCH_UNSAMPLED * cpu, _LEAST_UNSAMPLED * view.duration):
        return None
    system = view.used.get("system_seconds")
    kernel = "" if system is None else f", {system / cpu:.0%} of its CPU time was spent in the kernel"
    return Finding(
        "short-lived processes",
        view.job["start"],
        view.job["end"],
        f"{pace:.0f} processes and threads a second were created on the node, {forks:,} in all{kernel}",
        "do the work in fewer processes that live longer (a loop inside of one program, a pool, xargs -n)",
        0.5 * unsampled / cpu,
    )


def _longest(points: list[Point], holds: Callable[[Point], bool]) -> list[Point]:
    best: list[Point] = []
    current: list[Point] = []
    for point in points:
        current = [*current, point] if holds(point) else []
        if current and (not best or current[-1].end - current[0].start > best[-1].end - best[0].start):
            best = current
    return best
