"""Cost of capture: per process, per thread, and on a job like a build."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Callable, NamedTuple

from bench.children import BenchError, Usage, WrongError, run_usage
from bench.interpreters import Interpreter
from bench.project import clean_project, make_project
from bench.run import joblens, newest_record
from bench.table import Section, at_most, compare
from joblens.capture.library import capture_environment, find_library
from joblens.capture.processes import Merger
from joblens.capture.records import Records

_EACH, _ROUNDS = 1000, 9
_MOST_EACH = 0.3e-3
_BUILD_FILES, _BUILD_ROUNDS, _MOST_WALL = 60, 6, 1.02
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
    return [_measure_each(python), _measure_build(python)]


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
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        folder, home = Path(name) / "project", str(Path(name) / "store")
        folder.mkdir()
        command = make_project(folder, _BUILD_FILES)
        for number in range(_BUILD_ROUNDS):
            print(f"bench: capture, build {number + 1}", file=sys.stderr, flush=True)
            found: dict[bool, Usage] = {}
            for captured in (False, True) if number % 2 else (True, False):
                clean_project(folder)
                words = joblens(python, "run", *["--capture"] * captured, "--quiet", "--", *command)
                found[captured] = run_usage(words, folder, JOBLENS_HOME=home)
                if captured:
                    counts = newest_record(python, home)["data"]["processes"]
            pairs.append(Pair(found[False], found[True]))
    label = python.label
    ours, theirs = ([getattr(it, side).wall for it in pairs] for side in ("captured", "alone"))
    cpu, alone = ([getattr(it, side).cpu for it in pairs] for side in ("captured", "alone"))
    return Section(
        f"joblens run --capture on a build with make -j2, {_BUILD_ROUNDS} rounds; reference: joblens run",
        [
            compare("wall time", label, ours, theirs, _MOST_WALL),
            compare("CPU of all processes", label, cpu, alone),
        ],
        [f"processes: {counts['ended']:,} ended, {counts['exact']:,} exact"],
    )
