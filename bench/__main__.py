"""`python -m bench [NAME…] [--json FILE]`: run all measurements, or those named; print one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable

from bench.agent import measure_agent
from bench.attacks import measure_attacks
from bench.before import measure_before
from bench.capture import measure_capture
from bench.catalog import measure_catalog
from bench.children import WrongError
from bench.compaction import measure_compaction
from bench.ends import measure_ends
from bench.epmt import measure_epmt
from bench.exporter import measure_exporter
from bench.gpus import measure_gpus
from bench.hooks import measure_hooks
from bench.hub import measure_hub, measure_many_agents, measure_overload, measure_some_agents
from bench.interpreters import Interpreter, find_interpreters
from bench.loops import measure_processes, measure_six_sets
from bench.postgresql import measure_postgresql
from bench.records import measure_records
from bench.reports import measure_reports
from bench.run import measure_run
from bench.serve import measure_serve
from bench.serve_client import measure_serve_client
from bench.sinks import measure_sinks
from bench.slurm import measure_slurm
from bench.soak import measure_soak
from bench.startup import measure_startup
from bench.store import measure_store
from bench.submit import measure_submit
from bench.table import Section, as_data, render
from bench.tsdb import measure_tsdb
from bench.usermode import measure_usermode

MEASUREMENTS: dict[str, Callable[[list[Interpreter]], list[Section]]] = {
    "sixsets": measure_six_sets,
    "exporter": measure_exporter,
    "processes": measure_processes,
    "agent": measure_agent,
    "startup": measure_startup,
    "run": measure_run,
    "capture": measure_capture,
    "submit": measure_submit,
    "epmt": measure_epmt,
    "ends": measure_ends,
    "store": measure_store,
    "reports": measure_reports,
    "catalog": measure_catalog,
    "postgresql": measure_postgresql,
    "gpus": measure_gpus,
    "hub": measure_hub,
    "hub_64": measure_some_agents,
    "hub_1000": measure_many_agents,
    "overload": measure_overload,
    "attacks": measure_attacks,
    "sinks": measure_sinks,
    "compaction": measure_compaction,
    "soak": measure_soak,
    "hooks": measure_hooks,
    "slurm": measure_slurm,
    "records": measure_records,
    "tsdb": measure_tsdb,
    "usermode": measure_usermode,
    "serve": measure_serve,
    "serve_client": measure_serve_client,
    "before": measure_before,
}


# Those that scan processes, in a pid namespace of their own: of the processes that they start, and no others.
ISOLATED = ("processes", "agent")
_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
_INSIDE = "JOBLENS_BENCH_NAMESPACE"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench",
        description="Side by side with what people would use instead. All takes some fifteen minutes.",
        epilog="example:\n  python -m bench sixsets startup --json figures.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASUREMENTS)}; all by default"
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    for name in options.names:
        if name not in MEASUREMENTS:
            parser.error(f"unknown measurement {name!r}; choose from {', '.join(MEASUREMENTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    names = options.names or list(MEASUREMENTS)
    isolated = [name for name in names if name in ISOLATED] if _has_namespaces() else []
    before = _measure_isolated(isolated) if isolated else []
    names = [name for name in names if name not in isolated]
    pythons = find_interpreters()
    head = _describe(pythons)
    sections: list[Section] = []
    if names:
        print(head, end="\n\n")
        sections = [section for name in names for section in _measure(name, pythons)]
        print(render(sections), end="")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": head, "sections": [*before, *as_data(sections)]}, file, indent=1)
    return 0


def _has_namespaces() -> bool:
    if os.geteuid() != 0 or _INSIDE in os.environ or shutil.which("unshare") is None:
        return False
    return subprocess.run([*_NAMESPACE, "true"], check=False, capture_output=True).returncode == 0


def _measure_isolated(names: list[str]) -> list[Any]:
    """Return the sections as data; their table is printed."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [*_NAMESPACE, sys.executable, "-m", "bench", *names, "--json", file.name]
        subprocess.run(command, check=True, env={**os.environ, _INSIDE: "1"})
        found: list[Any] = json.loads(file.read())["sections"]
    print()
    return found


def _measure(name: str, pythons: list[Interpreter]) -> list[Section]:
    print(f"bench: {name}", file=sys.stderr, flush=True)
    try:
        return MEASUREMENTS[name](pythons)
    except WrongError:
        raise
    except Exception as error:  # one measurement's trouble is not the others'
        return [Section(name, [], [f"not measured: {type(error).__name__}: {error}"])]


def _describe(pythons: list[Interpreter]) -> str:
    known = ", ".join(f"{python.label} {python.version}" for python in pythons)
    return (
        f"joblens bench, {time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} cores, "
        f"Linux {platform.release()}, Python {known}"
    )


if __name__ == "__main__":
    sys.exit(main())
