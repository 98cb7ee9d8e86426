"""Start-up: what the agent's imports cost more than a bare interpreter, and one whole `--once`."""

from __future__ import annotations

from bench.children import run_usage
from bench.interpreters import Interpreter
from bench.table import Line, Section, at_most

_RUNS = 20
_IMPORTS = 60e-3


def measure_startup(pythons: list[Interpreter]) -> list[Section]:
    lines: list[Line] = []
    for python in pythons:
        commands = {
            "bare": [python.path, "-c", "pass"],
            "imports": [python.path, "-c", "import joblens.cli.agent"],
            "once": [python.path, "-m", "joblens", "agent", "--once"],
        }
        for command in commands.values():  # the first run writes and caches compiled files
            run_usage(command)
        found: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(_RUNS):
            for name, command in commands.items():
                found[name].append(run_usage(command).cpu)
        # The best run is the fair one: what adds to it is the machine, and never the program.
        bare, imports, once = (min(found[name]) for name in commands)
        label = python.label
        above = [imports - bare]
        lines += [
            at_most("imports, above the bare one", label, "seconds", above, beside=[bare], most=_IMPORTS),
            at_most("agent --once, whole", label, "seconds", [once], beside=[bare]),
            at_most(
                "agent --once, median of the runs", label, "seconds", found["once"], beside=found["bare"]
            ),
        ]
    return [Section(f"Start-up, CPU, best of {_RUNS}; yardstick: a bare interpreter", lines)]
