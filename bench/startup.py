"""Start-up: the agent's imports beyond a bare interpreter, one `--once`, and the wall time of `run`,
`jobs` and `job`, in comparison with `perf stat`."""

from __future__ import annotations

import shutil
import tempfile

from bench.children import Usage, run_usage, undisturbed
from bench.interpreters import Interpreter
from bench.table import Line, Section, at_most

_RUNS = 20
_IMPORTS = 60e-3
_JOBS = 20  # in the store that is listed
_RUN_ABOVE, _LISTING = 0.100, 0.120


def measure_startup(pythons: list[Interpreter]) -> list[Section]:
    return [_measure_agent(pythons), _measure_commands(pythons[0])]


def _measure_agent(pythons: list[Interpreter]) -> Section:
    lines: list[Line] = []
    for python in pythons:
        commands = {
            "bare": [python.path, "-c", "pass"],
            "imports": [python.path, "-c", "import joblens.cli.agent"],
            "once": [python.path, "-m", "joblens", "agent", "--once"],
        }
        used = {name: [usage.cpu for usage in each] for name, each in _take_turns(commands).items()}
        # The best run is the fair one: what adds to it is the machine, and never the program.
        bare, imports, once = (min(used[name]) for name in commands)
        label = python.label
        above = [imports - bare]
        lines += [
            at_most("imports, above the bare one", label, "seconds", above, beside=[bare], most=_IMPORTS),
            at_most("agent --once, whole", label, "seconds", [once], beside=[bare]),
            at_most("agent --once, median of the runs", label, "seconds", used["once"], beside=used["bare"]),
        ]
    return Section(f"Start-up, CPU, best of {_RUNS}; reference: a bare interpreter", lines)


def _measure_commands(python: Interpreter) -> Section:
    """Use the first Python only: the distribution's may lack the packages of the store."""
    joblens = [python.path, "-m", "joblens"]
    commands = {
        "true": ["true"],
        "bare": [python.path, "-c", "pass"],
        "run -- true": [*joblens, "run", "--", "true"],
        "jobs": [*joblens, "jobs"],
        "job last": [*joblens, "job", "last"],
    }
    perf = shutil.which("perf")
    if perf:
        commands["perf stat"] = [perf, "stat", "--", "true"]
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as home:
        for _ in range(_JOBS):
            run_usage([*joblens, "run", "--quiet", "--", "true"], JOBLENS_HOME=home)
        with undisturbed() as alone:
            found = _take_turns(commands, JOBLENS_HOME=home)
    return Section(
        f"Wall time of commands, best of {_RUNS}; reference: a bare interpreter",
        _describe_commands(python.label, found),
        [
            "with real-time priority: other work on the machine does not count"
            if alone
            else "without real-time priority, which only root may have: other work counts",
            *([] if perf else ["perf stat was not measured: perf is not installed"]),
        ],
    )


def _describe_commands(label: str, found: dict[str, list[Usage]]) -> list[Line]:
    wall = {name: [usage.wall for usage in each] for name, each in found.items()}
    best = {name: min(each) for name, each in wall.items()}
    cpu = {name: min(usage.cpu for usage in each) for name, each in found.items()}
    bare, nothing = [best["bare"]], best["true"]
    above = at_most(
        "run -- true, wall above true", label, "seconds", [best["run -- true"] - nothing],
        beside=bare, most=_RUN_ABOVE,
    )  # fmt: skip
    lines = [above]
    if "perf stat" in best:
        ours = [best["perf stat"] - nothing]
        lines.append(at_most("  perf stat -- true, the same", label, "seconds", ours))
    lines += [
        at_most(f"{name}, wall", label, "seconds", [best[name]], beside=bare, most=_LISTING)
        for name in ("jobs", "job last")
    ]
    for name in ("run -- true", "jobs", "job last"):
        lines += [
            at_most(f"{name}, CPU", label, "seconds", [cpu[name]], beside=[cpu["bare"]]),
            at_most(f"  {name}, wall, median", label, "seconds", wall[name], beside=wall["bare"]),
        ]
    return lines


def _take_turns(commands: dict[str, list[str]], **variables: str) -> dict[str, list[Usage]]:
    for command in commands.values():  # the first run writes and caches compiled files
        run_usage(command, **variables)
    found: dict[str, list[Usage]] = {name: [] for name in commands}
    for _ in range(_RUNS):
        for name, command in commands.items():
            found[name].append(run_usage(command, **variables))
    return found
