"""The rules about cores: idle, taken by other work, limited by a quota, serial, or fought over."""

from __future__ import annotations

import math
from collections.abc import Callable

from joblens.analysis.rule_input import View, mean
from joblens.analysis.rules.batch import split_nodes
from joblens.analysis.series.timeline import steady
from joblens.core.named_tuple import NamedTuple
from joblens.core.units import render_cores, render_load, render_seconds
from joblens.record.report import Finding, Point

WORTH_SECONDS = 5.0  # shorter jobs say little about how they use what they have
WAITING_CORES = 0.5  # who uses less than half of one is not computing
_BESIDE = 0.1  # cores: a job that computes on one core uses a little more, by what starts and wakes up
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
    used, delayed = view.used.cores_mean, view.used.cores_delayed
    if used is None or delayed is None or not view.cores:
        return None
    stretches = _stretches(view)
    seen = mean([(it.delayed, it.seconds) for it in stretches])
    scale = delayed / seen if seen else 0.0
    lost = mean([(_lost(it, view.cores, scale), it.seconds) for it in stretches]) or 0.0
    return lost, lost / (used + lost) if used + lost > 0 else 0.0


class _Stretch(NamedTuple):
    seconds: float
    cores: float
    delayed: float


def _stretches(view: View) -> list[_Stretch]:
    """The points that are known, and all gaps as one, with what the counters have added in them.

    On a full node joblens itself waits for a core, so that there is a gap just where the job waited most.
    """
    known = [
        _Stretch(point.seconds, point.cores, point.delayed)
        for point in view.points
        if point.cores is not None and point.delayed is not None
    ]
    gap = sum(point.seconds for point in view.points) - sum(it.seconds for it in known)
    cpu, delay = view.used.cpu_seconds, view.used.run_delay_seconds
    if not known or gap <= 0 or cpu is None or delay is None:
        return known
    ran = max(cpu - sum(it.cores * it.seconds for it in known), 0.0)
    waited = max(delay - sum(it.delayed * it.seconds for it in known), 0.0)
    return [*known, _Stretch(gap, ran / gap, waited / gap)]


def _lost(stretch: _Stretch, cores: float, scale: float) -> float:
    return max(min(stretch.cores + scale * stretch.delayed, cores) - stretch.cores, 0.0)


def is_throttled(view: View) -> bool:
    share, seconds = view.used.throttled_share or 0.0, view.used.throttled_seconds or 0.0
    return share >= _MUCH_HELD and seconds >= _LEAST_HELD * view.duration


def has_lost_cores(view: View) -> bool:
    """A job that wanted less than half a core slept most of the time, which is the more important finding."""
    lost = lost_cores(view)
    if lost is None or lost[1] < _MUCH_LOST or is_throttled(view):
        return False
    return lost[0] >= 0.1 and lost[0] / lost[1] >= WAITING_CORES


def is_bound(view: View) -> bool:
    """Its threads waited for cores while others of the node were idle: they may not run there."""
    free, lost = view.used.node_idle_cores, lost_cores(view)
    return free is not None and lost is not None and free >= max(0.5, 0.75 * lost[0])


def waits_for_storage(view: View) -> bool:
    share, blocked = view.used.blocked_share, view.used.blocked_mean
    return share is not None and blocked is not None and share >= _BLOCKED and blocked >= 0.25


def throttled(view: View) -> Finding | None:
    """The cgroup's quota kept it from running."""
    if view.duration < WORTH_SECONDS or not is_throttled(view):
        return None
    share = view.used.throttled_share
    # A scheduler's job has cores of its own, and what a cgroup allows can be less.
    known = view.cores if view.job.source in ("run", "usermode") else 0.0
    quota = (
        f"its CPU quota of {render_cores(known)} core{'' if known == 1 else 's'}"
        if known
        else "the CPU quota of its cgroup"
    )
    return Finding(
        "CPU quota",
        view.job.start,
        view.job.last,
        f"{quota} throttled it for {share:.0%} of the time that it was ready to run",
        "ask for more cores, or start fewer threads and processes",
        share,
    )


def cores_taken(view: View) -> Finding | None:
    """It could not have used more: other work was on the cores that it may use."""
    if view.duration < WORTH_SECONDS or not has_lost_cores(view) or is_bound(view):
        return None
    used, (lost, part) = view.used.cores_mean or 0.0, lost_cores(view) or (0.0, 0.0)
    free = view.used.node_idle_cores
    left = "" if free is None else "; no core was idle" if free < 0.05 else f"; {_cores(free)} had no work"
    return Finding(
        "cores taken by others",
        view.job.start,
        view.job.last,
        f"its threads were ready to use {_cores(used + lost)} and got {render_load(used)}: "
        f"other work on the node took {part:.0%}{left}",
        "run it with --exclusive: if that is faster, jobs here are not confined to their own cores"
        if view.in_slurm
        else "run it while the machine is quiet: its use of the cores cannot be judged beside other work",
        part * (1 - (view.used.blocked_share or 0.0)) if waits_for_storage(view) else part,
    )


def bound(view: View) -> Finding | None:
    """Its threads share fewer cores than it may use.

    Who wakes up after a wait for storage waits for a moment more, whatever it is bound to.
    """
    if view.duration < WORTH_SECONDS or not has_lost_cores(view) or not is_bound(view):
        return None
    if waits_for_storage(view):
        return None
    used, (lost, part) = view.used.cores_mean or 0.0, lost_cores(view) or (0.0, 0.0)
    return Finding(
        "bound to few cores",
        view.job.start,
        view.job.last,
        f"its threads were ready to use {_cores(used + lost)} and got {render_load(used)}, "
        f"while {_cores(view.used.node_idle_cores or 0.0)} of the node had no work",
        "check how it is bound to cores (OMP_PROC_BIND, taskset, numactl, srun --cpu-bind)",
        part,
    )


def idle_cores(view: View) -> Finding | None:
    """Most of its cores were idle all the time, and no other job could use them."""
    used, most = view.used.cores_mean, view.used.cores_peak
    if view.duration < WORTH_SECONDS or used is None or most is None:
        return None
    if has_lost_cores(view) or is_throttled(view) or _may_lack_cores(view, used):
        return None
    if awake_share(view, used) < WAITING_CORES and most <= max(0.75 * view.cores, 1.0):
        return _asleep(view, used, most)
    if view.cores < 2 or used > 0.5 * view.cores + _BESIDE or most > 0.75 * view.cores:
        return None
    return _idle(view, used, most)


def awake_share(view: View, used: float) -> float:
    """For which part of the time a thread of it ran or was ready to run, at most.

    A moment at which many were says nothing about the others.
    """
    whole = min(used + (view.used.cores_delayed or 0.0), 1.0)
    found = mean([(min(it.cores + it.delayed, 1.0), it.seconds) for it in _stretches(view)])
    return whole if found is None else min(max(found, min(used, 1.0)), whole)


def _idle(view: View, used: float, most: float) -> Finding | None:
    if waits_for_storage(view) and not view.in_slurm:
        return None  # that is why
    idle, busy = split_nodes(view)
    if idle and busy and used > 0.5 * view.cores * len(busy) / len(view.nodes):
        return None  # those of the nodes that had nothing to do, which has a finding of its own
    enough = max(math.ceil(most - 0.2), 1)
    change = "use more threads or processes (OMP_NUM_THREADS, -j)"
    return Finding(
        "idle cores",
        view.job.start,
        view.job.last,
        f"{used:.1f} of {render_cores(view.cores)} cores in use on average, {most:.1f} at most",
        f"{_ask_for(view, enough)}, or {change}" if view.in_slurm else change,
        (1 - used / view.cores) * (0.5 if any(gpu.used for gpu in view.gpus) else 1.0),
    )


def _asleep(view: View, used: float, most: float) -> Finding | None:
    """No thread of it wanted a core, most of the time."""
    if waits_for_storage(view):
        return None
    awake = awake_share(view, used)
    change = "find out what it waits for (input, network, a lock, a sleep)"
    enough = max(math.ceil(most - 0.2), 1)
    fewer = view.in_slurm and view.cores > enough
    return Finding(
        "asleep",
        view.job.start,
        view.job.last,
        f"it slept or waited for {1 - awake:.0%} of the time: none of its threads was ready to run",
        f"{_ask_for(view, enough)}; {change}" if fewer else change,
        (1 - awake) * (0.5 if any(gpu.used for gpu in view.gpus) else 1.0),
    )


def _may_lack_cores(view: View, used: float) -> bool:
    """Whether, on a full node and without run-queue delay, it is unknown if it had no work or no core.

    Cores that a scheduler gave to a job are its own, however busy the others are.
    """
    free = None if view.job.nodes else view.used.node_idle_cores
    delayed = view.used.cores_delayed
    # One that neither ran nor waited for a core while it was sampled has a delay, but no share of it.
    has_slept = delayed is not None and used + delayed < _LEAST_UNSAMPLED
    unknown = view.used.run_delay_share is None and not has_slept
    return unknown and free is not None and free < 0.5 * (view.cores - used)


def _ask_for(view: View, cores: int) -> str:
    """With several nodes there are several tasks, and it is unknown which of the two was meant."""
    flags = f"--cpus-per-task={cores}" if len(view.nodes) < 2 else "fewer --ntasks or --cpus-per-task"
    return f"ask for {cores} core{'' if cores == 1 else 's'} ({flags})"


def _cores(count: float) -> str:
    """`1 core`, `1.5 cores`"""
    shown = render_load(count).removesuffix(".0")
    return f"{shown} core{'' if shown == '1' else 's'}"


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
    start, end = run[0].start, min(run[-1].end, view.job.last)
    part = (end - start) / view.duration
    if end - start < WORTH_SECONDS or part < 0.1:
        return None
    return Finding(
        "serial phase",
        start,
        end,
        f"one core of {render_cores(view.cores)} in use for {render_seconds(end - start)}, "
        f"{part:.0%} of the time",
        "run this part in parallel too, or in a job of its own with one core",
        part * (1 - 1 / view.cores),
    )


def _is_serial(point: Point) -> bool:
    return point.cores is not None and 0.5 <= point.cores <= 1.25 and (point.delayed or 0.0) <= 0.25


def too_many_threads(view: View) -> Finding | None:
    """More threads want to run than there are cores, and push each other off."""
    switches = view.used.involuntary_switches
    if not view.cores or view.duration < WORTH_SECONDS or is_throttled(view) or view.cores < 1:
        return None
    threads = mean([(p.threads, p.seconds) for p in view.points if p.threads is not None])
    cores, share = view.used.cores_mean, view.used.run_delay_share
    if threads is None or cores is None or threads < 2 * view.cores or cores < 0.8 * view.cores:
        return None
    pace = (switches or 0.0) / view.duration / view.cores
    if pace < 10 if share is None else share < 0.3:
        return None
    count = max(int(view.cores), 1)
    waited = (
        f"each core had to switch between them {pace:.0f} times a second"
        if share is None
        else f"they waited for each other {share:.0%} of the time that they were ready to run"
    )
    return Finding(
        "more threads than cores",
        view.job.start,
        view.job.last,
        f"{threads:.0f} threads on {render_cores(view.cores)} core{'' if view.cores == 1 else 's'}; {waited}",
        f"start no more threads than cores (OMP_NUM_THREADS={count}, -j{count}), or ask for more cores",
        0.4,
    )


def short_lived(view: View) -> Finding | None:
    """Much of its CPU time went into starting processes that end at once."""
    cpu, captured = view.used.cpu_seconds, view.ended is not None
    forks = view.ended if captured else view.used.forks
    unsampled = (view.used.unsampled_seconds or 0.0) + (view.used.short_seconds or 0.0)
    if not unsampled or not cpu or not forks or view.duration < 1:
        return None
    pace = forks / view.duration
    if pace < _MANY_FORKS or unsampled < max(_MUCH_UNSAMPLED * cpu, _LEAST_UNSAMPLED * view.duration):
        return None
    system = view.used.system_seconds
    kernel = "" if system is None else f", {system / cpu:.0%} was spent in the kernel"
    return Finding(
        "short-lived processes",
        view.job.start,
        view.job.last,
        f"{forks:,} processes {'of it ended' if captured else 'and threads were created on the node'}, "
        f"{pace:,.0f} per second; "
        f"{unsampled / cpu:.0%} of its CPU time went to processes too short to be sampled{kernel}",
        "do the work in fewer and longer processes (a loop inside one program, a pool of workers, xargs -n)",
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
