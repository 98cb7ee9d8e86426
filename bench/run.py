"""Cost of `joblens run`: on a job like a build, and its constant part by step."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench.children import BenchError, Usage, run_json, run_usage
from bench.interpreters import Interpreter
from bench.project import clean_project, make_project
from bench.table import Line, Section, at_most, compare
from bench.timing import spread

_ENOUGH_SECONDS, _LEAST_ROUNDS = 100.0, 2
_OVERHEAD = 1.0
_RUNS = 8
_FORKS, _FORK_ROUNDS, _FORK_OVERHEAD = 5000, 5, 2.0
_FORK_JOB = ["/bin/sh", "-c", f"i=0; while [ $i -lt {_FORKS} ]; do /bin/true; i=$((i+1)); done"]


class Round(NamedTuple):
    alone: Usage
    watched: Usage
    own: float  # joblens' part of the CPU of the watched one
    record: dict[str, Any]


def joblens(python: Interpreter, *words: str) -> list[str]:
    """As a user starts it, by the script that pip has installed, if there is one."""
    script = Path(python.path).with_name("joblens")
    return [python.path, *([str(script)] if script.exists() else ["-m", "joblens"]), *words]


def newest_record(python: Interpreter, home: str) -> dict[str, Any]:
    run_usage(joblens(python, "jobs"), JOBLENS_HOME=home)  # analyses what `--quiet` has left for later
    paths = sorted(Path(home).glob("records/*/*.json"), key=lambda path: path.stat().st_mtime_ns)
    if not paths:
        raise BenchError("joblens run has stored no job")
    return dict(json.loads(paths[-1].read_bytes()))


def measure_run(pythons: list[Interpreter]) -> list[Section]:
    python = pythons[0]  # joblens run needs duckdb, which a distribution's Python does not have
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as home:
        fixed = _measure_fixed(python, home)
        return [_measure_job(python, home), _measure_forks(python, home), fixed]


def _measure_job(python: Interpreter, home: str) -> Section:
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        folder = Path(name)
        command = make_project(folder)
        run_usage([*command, "main.o", "unit0.o"], folder)  # the compiler's files are in the cache then
        begin = time.monotonic()
        longest = 0.0
        while len(rounds) < _LEAST_ROUNDS or time.monotonic() - begin + longest < _ENOUGH_SECONDS:
            print(f"bench: run, build {len(rounds) + 1} alone and watched", file=sys.stderr, flush=True)
            since = time.monotonic()
            rounds.append(_measure_round(python, command, folder, home, len(rounds) % 2 == 0, "--no-capture"))
            longest = max(longest, time.monotonic() - since)
    return Section(
        f"joblens run on a build with make -j2, {len(rounds)} rounds; reference: the build alone",
        _describe_job(python.label, rounds),
        [
            "own part: CPU of all processes together less what the kernel accounts to the command's",
            f"{spread([each.record['data']['samples'] for each in rounds]).middle:g} samples at 1 Hz",
        ],
    )


def _measure_round(
    python: Interpreter, command: list[str], folder: Path, home: str, alone_first: bool, *options: str
) -> Round:
    found: dict[bool, Usage] = {}
    for watched in (False, True) if alone_first else (True, False):
        clean_project(folder)
        words = joblens(python, "run", *options, "--", *command) if watched else command
        found[watched] = run_usage(words, folder, JOBLENS_HOME=home)
    record = newest_record(python, home)
    return Round(found[False], found[True], found[True].cpu - record["used"]["cpu_seconds_exact"], record)


def _describe_job(label: str, rounds: list[Round]) -> list[Line]:
    part = [100 * each.own / each.alone.cpu for each in rounds]
    return [
        at_most("joblens' own part of the job's CPU", label, "percent", part, most=_OVERHEAD),
        at_most("the same, time on a core", label, "seconds", [each.own for each in rounds]),
        compare(
            "CPU of all processes / alone",
            label,
            [each.watched.cpu for each in rounds],
            [each.alone.cpu for each in rounds],
        ),
        compare(
            "wall time / alone",
            label,
            [each.watched.wall for each in rounds],
            [each.alone.wall for each in rounds],
        ),
    ]


def _measure_forks(python: Interpreter, home: str) -> Section:
    """Measure a job of short processes only, each of which could be sampled."""
    rounds: list[Round] = []
    begun: list[float] = []  # what `run` costs whatever the job is
    for number in range(_FORK_ROUNDS):
        print(f"bench: run, {_FORKS} forks {number + 1}", file=sys.stderr, flush=True)
        rounds.append(
            _measure_round(python, _FORK_JOB, Path(home), home, number % 2 == 0, "--quiet", "--no-capture")
        )
        usage = run_usage(joblens(python, "run", "--quiet", "--no-capture", "--", "true"), JOBLENS_HOME=home)
        begun.append(usage.cpu - newest_record(python, home)["used"]["cpu_seconds_exact"])
    label, own = python.label, [each.own for each in rounds]
    used = [each.record["used"] for each in rounds]
    part = [100 * each.own / it["cpu_seconds_exact"] for each, it in zip(rounds, used)]
    of_wall = [100 * each.own / it["duration_seconds"] for each, it in zip(rounds, used)]
    running = [
        100 * (each.own - start) / it["duration_seconds"] for each, start, it in zip(rounds, begun, used)
    ]
    return Section(
        f"joblens run on {_FORKS} forks, {_FORK_ROUNDS} rounds",
        [
            at_most("joblens' own part of the job's CPU", label, "percent", part, most=_FORK_OVERHEAD),
            at_most("the same, of the job's wall time", label, "percent", of_wall),
            at_most("the same, time on a core", label, "seconds", own),
            at_most("  of that, whatever the job is", label, "seconds", begun),
            at_most("while it runs, of the job's wall time", label, "percent", running),
        ],
        [f"the job: {spread([it['cpu_seconds_exact'] for it in used]).middle:.2g} s of CPU"],
    )


def _measure_fixed(python: Interpreter, home: str) -> Section:
    commands = {
        "bare": [python.path, "-c", "pass"],
        "run -- true": joblens(python, "run", "--", "true"),
        "jobs": joblens(python, "jobs"),
        "run --quiet -- true": joblens(python, "run", "--quiet", "--", "true"),
        "later, jobs, which analyses it": joblens(python, "jobs"),
    }
    found: dict[str, list[Usage]] = {name: [] for name in commands}
    steps: list[dict[str, float]] = []
    for number in range(_RUNS + 1):
        for name, command in commands.items():
            usage = run_usage(command, JOBLENS_HOME=home)
            if number:  # the first writes and caches compiled files
                found[name].append(usage)
        steps.append(run_json([python.path, "-m", "bench.steps"], 60))
    bare = min(usage.cpu for usage in found["bare"])
    lines: list[Line] = []
    for name in commands:
        if name != "bare":
            cpu, wall = (min(getattr(usage, what) for usage in found[name]) for what in ("cpu", "wall"))
            lines.append(at_most(f"{name}, CPU", python.label, "seconds", [cpu], beside=[bare]))
            lines.append(at_most(f"{name}, wall", python.label, "seconds", [wall]))
    lines += [
        at_most(
            f"  {name}" if name.startswith("later") else f"  of that, {name}",
            python.label,
            "seconds",
            [min(step[name] for step in steps)],
        )
        for name in steps[0]
    ]
    return Section(f"joblens run, fixed cost, best of {_RUNS}; reference: a bare interpreter", lines)
