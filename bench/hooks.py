"""Duration of Slurm's hooks, and the cost of hooks and agent for a job."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, Sequence

from bench.agent import running_agent
from bench.children import BenchError, connect, cpu_seconds, metric, run_usage, scrape
from bench.interpreters import Interpreter
from bench.table import Line, Section, at_most, compare
from joblens.hooks import SLURM, slurm_hook

_CALLS, _PER_ROUND = 1000, 20
_MOST_SECONDS = 0.02
_ROUNDS = 8
_CONFIG = """
[attribution]
job_files = "{folder}/jobs"
[collectors.processes]
interval = 1.0
"""
_JOBS = {
    "1000 programs in turn": ["/bin/sh", "-c", f"for i in {'. ' * 1000}; do /bin/true; done"],
    "one that computes": [sys.executable, "-c", "x = 0\nfor i in range(12_000_000): x += i"],
}


class Called(NamedTuple):
    """Wall times of one program in seconds."""

    medians: list[float]  # one per round
    all: list[float]


def measure_hooks(pythons: list[Interpreter]) -> list[Section]:
    with tempfile.TemporaryDirectory(prefix="joblens-bench-", dir=_memory()) as name:
        folder = Path(name)
        folder.chmod(0o755)
        programs = _write(folder)
        with running_agent(pythons[-1].path, _CONFIG.format(folder=folder)) as (pid, port):
            calls = _measure_calls(programs)
            connection = connect(port)
            scans = metric(scrape(connection), "joblens_agent_looks_total")
            if not scans:
                raise BenchError("the agent has not heard the hooks")
            jobs = [_measure_job(what, words, programs, pid) for what, words in _JOBS.items()]
    return [
        _describe(calls, scans),
        Section(
            "a job with hooks and agent at 1 Hz; reference: without", [line for job in jobs for line in job]
        ),
    ]


def _memory() -> str | None:
    """Return a folder for job files in memory."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _write(folder: Path) -> dict[str, str]:
    texts = {name: slurm_hook(name, str(folder)) for name in SLURM}
    texts["one line"] = "#!/bin/sh\nexit 0\n"
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {**{name: str(folder / name) for name in texts}, "true": "/bin/true"}


def _variables(job: int) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_UID": "1000",
        "SLURM_CLUSTER_NAME": "bench",
        "SLURMD_NODENAME": "c1",
        "SLURM_JOB_GPUS": "0,1,2,3",
    }


def _measure_calls(programs: dict[str, str]) -> dict[str, Called]:
    """Call each job's prolog first and its epilog last, so that there is a file to write and to delete."""
    order = ["prolog", "true", "task-prolog", "one line", "task-epilog", "epilog"]
    found = {name: Called([], []) for name in order}
    for number in range(_CALLS // _PER_ROUND):
        jobs = range(number * _PER_ROUND + 1, (number + 1) * _PER_ROUND + 1)
        taken: dict[str, list[float]] = {name: [] for name in order}
        for job in jobs:
            for name in order:
                taken[name].append(_call(programs[name], _variables(job)))
        for name, seconds in taken.items():
            found[name].medians.append(sorted(seconds)[len(seconds) // 2])
            found[name].all.extend(seconds)
    return found


def _call(program: str, variables: dict[str, str]) -> float:
    """Measure from fork to exit, as long as Slurm waits for it."""
    begin = time.perf_counter()
    pid = os.posix_spawn(program, [program], variables)
    _, status = os.waitpid(pid, 0)
    taken = time.perf_counter() - begin
    if status:
        raise BenchError(f"{program} ended with {os.waitstatus_to_exitcode(status)}")
    return taken


def _describe(calls: dict[str, Called], scans: float) -> Section:
    floor = calls["one line"]
    lines: list[Line] = []
    for name in SLURM:
        here = calls[name]
        lines.append(
            at_most(f"{name}, wall", "sh", "seconds", here.medians, beside=floor.medians, most=_MOST_SECONDS)
        )
        slow = f"{name}, 99 of 100 within"
        lines.append(at_most(slow, "sh", "seconds", [_slow(here)], beside=[_slow(floor)]))
    lines.append(at_most("/bin/true, wall", "", "seconds", calls["true"].medians, beside=floor.medians))
    slowest = max(max(calls[name].all) for name in SLURM)
    return Section(
        f"Slurm's hooks, {_CALLS} calls of each; reference: a hook of one line, exit 0",
        lines,
        [f"the slowest of all was {slowest * 1e3:.1f} ms; the agent scanned {scans:g} times meanwhile"],
    )


def _slow(called: Called) -> float:
    return sorted(called.all)[int(0.99 * len(called.all))]


def _measure_job(what: str, words: Sequence[str], programs: dict[str, str], agent: int) -> list[Line]:
    """Alternate with and without hooks. A stopped agent costs nothing."""
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    own: list[float] = []
    for number in range(_ROUNDS):
        print(f"bench: hooks, {what}, round {number + 1}", file=sys.stderr, flush=True)
        for watched in (True, False) if number % 2 else (False, True):
            os.kill(agent, signal.SIGCONT if watched else signal.SIGSTOP)
            time.sleep(0.3)
            before = cpu_seconds(agent)
            found[watched].append(_run_job(words, programs if watched else {}, number))
            if watched:
                own.append(100 * (cpu_seconds(agent) - before) / found[True][-1][0])
    os.kill(agent, signal.SIGCONT)
    walls, cpus = ({w: [it[i] for it in them] for w, them in found.items()} for i in (0, 1))
    return [
        compare(f"{what}, wall", "", walls[True], walls[False]),
        compare(f"{what}, its CPU", "", cpus[True], cpus[False]),
        at_most(f"{what}, agent's, of a core", "", "percent", own),
    ]


def _run_job(words: Sequence[str], programs: dict[str, str], number: int) -> tuple[float, float]:
    """Return the wall time with hooks, and the command's own CPU time."""
    begin = time.perf_counter()
    for name in ("prolog", "task-prolog") if programs else ():
        _call(programs[name], _variables(10_000 + number))
    usage = run_usage(words)
    for name in ("task-epilog", "epilog") if programs else ():
        _call(programs[name], _variables(10_000 + number))
    return time.perf_counter() - begin, usage.cpu
