"""`joblens job` and `joblens jobs` through the service, in comparison with the own store."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.children import BenchError, Usage, run_usage, started, undisturbed
from bench.interpreters import Interpreter
from bench.table import Line, Section, compare

_RUNS = 20
_JOBS = 20
_READY_SECONDS = 30.0


def measure_serve_client(pythons: list[Interpreter]) -> list[Section]:
    """Use the first Python only: the distribution's may lack the packages of the store."""
    joblens = [pythons[0].path, "-m", "joblens"]
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as folder:
        home, socket, empty = f"{folder}/home", f"{folder}/serve.sock", f"{folder}/empty"
        for _ in range(_JOBS):
            run_usage([*joblens, "run", "--quiet", "--", "true"], JOBLENS_HOME=home)
        with undisturbed() as alone, started([*joblens, "serve", "--socket", socket, "--home", home]):
            wait_for_service(joblens, socket, "job", "last")
            found = {
                (name, source): [*joblens, *name.split(), *where]
                for name in ("job last", "jobs")
                for source, where in (("own", ["--home", home]), ("service", ["--server", socket]))
            }
            found |= {(name, "both"): [*joblens, *name.split()] for name in ("job last", "jobs")}
            variables = {"JOBLENS_SERVER": socket, "XDG_DATA_HOME": empty}
            used = _take_turns(found, variables)
    note = "with real-time priority" if alone else "without real-time priority, which only root may have"
    title = f"Commands through the service, best of {_RUNS}; reference: from the own store"
    return [Section(title, _describe(pythons[0].label, used), [note])]


def wait_for_service(joblens: list[str], socket: str, *words: str) -> None:
    """Until this command succeeds."""
    end = time.monotonic() + _READY_SECONDS
    while True:
        try:
            if Path(socket).exists():
                run_usage([*joblens, *words, "--server", socket])
                return
        except BenchError:  # its index is not ready
            if time.monotonic() > end:
                raise
        if time.monotonic() > end:
            raise BenchError("the service does not answer")
        time.sleep(0.1)


def _take_turns(
    commands: dict[tuple[str, str], list[str]], variables: dict[str, str]
) -> dict[tuple[str, str], list[Usage]]:
    for command in commands.values():  # the first run writes and caches compiled files
        run_usage(command, **variables)
    found: dict[tuple[str, str], list[Usage]] = {key: [] for key in commands}
    for _ in range(_RUNS):
        for key, command in commands.items():
            found[key].append(run_usage(command, **variables))
    return found


def _describe(label: str, used: dict[tuple[str, str], list[Usage]]) -> list[Line]:
    lines = []
    for name in ("job last", "jobs"):
        own, service, both = (
            [min(usage.wall for usage in used[name, source])] for source in ("own", "service", "both")
        )
        goal = 1.0 if name == "job last" else None
        lines += [
            compare(f"{name} --server, wall", label, service, own, goal),
            compare(f"{name}, service and an empty own store", label, both, own),
        ]
    return lines
