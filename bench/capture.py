"""Cost of capture: per process, per thread, and on a job like a build."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Callable, NamedTuple

from bench.children import BenchError, Usage, WrongError, run_usage, undisturbed
from bench.interpreters import Interpreter
from bench.project import clean_project, make_project
from bench.run import joblens
from bench.table import Section, at_most, compare
from bench.timing import median_interval
from joblens.capture.library import capture_environment, find_library
from joblens.capture.processes import Merger
from joblens.capture.records import Records

_EACH, _ROUNDS, _RUNS = 1000, 9, 10
_MOST_EACH = 0.3e-3
_BUILD_FILES, _BUILD_ROUNDS, _MOST_WALL = 2, 150, 1.02
_PROCESSES = ["/bin/sh", "-c", f"i=0; while [ $i -lt {_EACH} ]; do /bin/true; i=$((i+1)); done; exit 0"]
_THREADS = f"""import threading
for _ in range({_EACH}):
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
"""


class Pair(NamedTuple):
    alone: Usage
    captured: Usage


def measure_capture(pythons: list[Interpreter]) -> list[Section]:
    if find_library() is None:
        raise BenchError("the library of capture is not built: run make install where there is a C compiler")
    python = pythons[0]
    return [_measure_each(python), _measure_run(python), _measure_build(python)]


def _measure_each(python: Interpreter) -> Section:
    processes = _pairs("processes", _PROCESSES, _EACH + 1, lambda merger: len(merger.processes()))
    threads = _pairs("threads", [python.path, "-c", _THREADS], _EACH, lambda merger: len(merger.threads))
    label, lines = python.label, []
    for what, pairs in ((f"{_EACH:,} × /bin/true", processes), (f"{_EACH:,} threads", threads)):
        for kind in ("cpu", "wall"):
            more = [(getattr(it.captured, kind) - getattr(it.alone, kind)) / _EACH for it in pairs]
            beside = [getattr(it.alone, kind) / _EACH for it in pairs]
            goal = _MOST_EACH if kind == "cpu" else None
            lines.append(
                at_most(f"{what}: {kind} more, each", label, "seconds", more, beside=beside, most=goal)
            )
    return Section(f"capture, {_ROUNDS} rounds; reference: the same without it", lines)


def _measure_run(python: Interpreter) -> Section:
    """What a user waits for: with sampling, the record of the job and its report."""
    pairs: list[Pair] = []
    print(f"bench: capture, {_RUNS} pairs of joblens run", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as home, undisturbed():
        for number in range(_RUNS + 1):
            found: dict[str, Usage] = {}
            for option in ("--capture", "--no-capture")[:: 1 if number % 2 else -1]:
                words = joblens(python, "run", option, "--", *_PROCESSES)
                found[option] = run_usage(words, JOBLENS_HOME=home)
            if number:  # the first writes and caches compiled files
                pairs.append(Pair(found["--no-capture"], found["--capture"]))
    lines = []
    for kind in ("cpu", "wall"):
        more = [(getattr(it.captured, kind) - getattr(it.alone, kind)) / _EACH for it in pairs]
        beside = [getattr(it.alone, kind) / _EACH for it in pairs]
        goal = _MOST_EACH if kind == "cpu" else None
        what = f"{_EACH:,} × /bin/true: {kind} more, each"
        lines.append(at_most(what, python.label, "seconds", more, beside=beside, most=goal))
    return Section(f"joblens run with capture, {_RUNS} pairs; reference: --no-capture", lines)


def _pairs(what: str, command: list[str], expected: int, count: Callable[[Merger], int]) -> list[Pair]:
    found: list[Pair] = []
    for number in range(_ROUNDS):
        print(f"bench: capture, {what} {number + 1}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="joblens-bench-") as folder:
            more = capture_environment(os.environb, folder, find_library() or "")
            variables = {name.decode(): os.fsdecode(value) for name, value in more.items()}
            if number % 2:
                captured, alone = run_usage(command, **variables), run_usage(command)
            else:
                alone, captured = run_usage(command), run_usage(command, **variables)
            _check(folder, expected, count)
        found.append(Pair(alone, captured))
    return found


def _check(folder: str, expected: int, count: Callable[[Merger], int]) -> None:
    merger = Merger()
    for path in Path(folder).glob("*.capture"):
        merger.take(Records(path.read_bytes()))
    if count(merger) < expected:
        raise WrongError(f"capture has {count(merger)} records of {expected}")


def _measure_build(python: Interpreter) -> Section:
    """Builds in pairs, in alternating order: short ones, so that both of a pair have the same other load, and
    many, for an interval."""
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        folder = Path(name) / "project"
        folder.mkdir()
        command = make_project(folder, _BUILD_FILES)
        more = capture_environment(os.environb, name, find_library() or "")
        variables = {name.decode(): os.fsdecode(value) for name, value in more.items()}
        print(f"bench: capture, {_BUILD_ROUNDS} pairs of builds", file=sys.stderr, flush=True)
        with undisturbed():
            for number in range(_BUILD_ROUNDS):
                found: dict[bool, Usage] = {}
                for captured in (False, True) if number % 2 else (True, False):
                    clean_project(folder)
                    found[captured] = run_usage(command, folder, **(variables if captured else {}))
                pairs.append(Pair(found[False], found[True]))
        merger = Merger()
        for path in Path(name).glob("*.capture"):
            merger.take(Records(path.read_bytes()))
        processes = merger.processes()
    exact = sum(process.exact for process in processes)
    if exact < len(processes) or exact < 3 * _BUILD_FILES * _BUILD_ROUNDS:
        raise WrongError(f"capture of a build has {exact} exact records of {len(processes)}")
    lines, notes = [], [f"processes of a build: {exact // _BUILD_ROUNDS:,}, all exact"]
    for kind, most in (("wall", _MOST_WALL), ("cpu", None)):
        ours, theirs = ([getattr(getattr(it, side), kind) for it in pairs] for side in Pair._fields[::-1])
        lines.append(compare(f"{kind}, build with make -j2", python.label, ours, theirs, most))
        low, high = median_interval([one / other for one, other in zip(ours, theirs)])
        notes.append(f"{kind}: with 95 % confidence {low:.3f} to {high:.3f} times that without")
    return Section(f"capture on a build, {_BUILD_ROUNDS} pairs; reference: the same without it", lines, notes)
