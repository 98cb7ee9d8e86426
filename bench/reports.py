"""Duration of report, listing and help with many stored jobs."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.children import Usage, run_usage
from bench.history import make_history
from bench.interpreters import Interpreter
from bench.peers import size_of
from bench.run import joblens, newest_record
from bench.table import Line, Section, at_most

_JOBS = 100_000
_ROUNDS = 7
_REPORT, _HELP = 0.3, 0.1
_COMMAND = ("sh", "-c", "for i in 1 2 3 4; do sleep 0.5; done")


def measure_reports(pythons: list[Interpreter]) -> list[Section]:
    python = pythons[0]  # the one with duckdb
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as home:
        _run_job(python, home)
        record = newest_record(python, home)
        print(f"bench: reports, {_JOBS} jobs", file=sys.stderr, flush=True)
        ids = make_history(Path(home), record, _JOBS)
        first = run_usage(joblens(python, "jobs"), JOBLENS_HOME=home)
        _run_job(python, home)  # one whose samples are there too, and which is the newest
        commands = {
            "bare": [python.path, "-c", "pass"],
            "jobs": joblens(python, "jobs"),
            "jobs --sort cpu --limit 50": joblens(python, "jobs", "--sort", "cpu", "--limit", "50"),
            "jobs --user U --since 30d": joblens(python, "jobs", "--user", "user7", "--since", "30d"),
            "job last": joblens(python, "job", "last"),
            "job ID": joblens(python, "job", ids[len(ids) // 2]),
            "--help": joblens(python, "--help"),
            "run --help": joblens(python, "run", "--help"),
        }
        found: dict[str, list[Usage]] = {name: [] for name in commands}
        for number in range(_ROUNDS + 1):
            for name, command in commands.items():
                usage = run_usage(command, JOBLENS_HOME=home)
                if number:  # the first takes in the last job and caches files
                    found[name].append(usage)
        sizes = {name: size_of(Path(home, name)) for name in ("records", "lake")}
        sizes["catalog"] = sum(path.stat().st_size for path in Path(home).glob("catalog.sqlite*"))
    lines = _describe_first(python.label, first, found["bare"])
    for name in list(commands)[1:]:
        lines += _describe(python.label, name, found[name], found["bare"])
    return [
        Section(
            f"Reports with {len(ids)} jobs stored, whole process; reference: a bare interpreter",
            lines,
            [
                f"{name}: {size / 1e6:.3g} MB, {size / len(ids) / 1e3:.2g} kB per job"
                for name, size in sizes.items()
            ],
        )
    ]


def _run_job(python: Interpreter, home: str) -> None:
    run_usage(joblens(python, "run", "--quiet", "--", *_COMMAND), JOBLENS_HOME=home)


def _describe_first(label: str, first: Usage, bare: list[Usage]) -> list[Line]:
    beside = [min(usage.cpu for usage in bare)]
    return [
        at_most("first call, makes the catalog, CPU", label, "seconds", [first.cpu], beside=beside),
        at_most("first call, makes the catalog, wall", label, "seconds", [first.wall]),
    ]


def _describe(label: str, name: str, found: list[Usage], bare: list[Usage]) -> list[Line]:
    most = _HELP if name.endswith("--help") else _REPORT
    cpu, beside = [usage.cpu for usage in found], [usage.cpu for usage in bare]
    return [
        at_most(f"{name}, CPU", label, "seconds", cpu, beside=beside, most=most),
        at_most(f"{name}, wall", label, "seconds", [usage.wall for usage in found]),
    ]
