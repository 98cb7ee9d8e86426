from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from joblens.cli.figures import render_group, render_ratio, render_value
from joblens.cli.job_choice import add_filters, check_limit, load_chosen
from joblens.cli.table import progress, render_table, warn, write
from joblens.core.errors import printable

if TYPE_CHECKING:
    from joblens.analysis.outliers import Cause, Outlier
    from joblens.api.comparing import Explained, Outliers

EXAMPLE = """example:
  joblens outliers --tag exp_name:linux_kernel
  joblens outliers --name 'train*' --since 30d --method iqr
  joblens outliers 4242 4243 4244 4250 --of operations"""

_WORDS = {
    "duration_seconds": "took", "cpu_seconds": "CPU time", "memory_peak_bytes": "memory",
    "processes": "processes", "read_chars_bytes": "read", "written_chars_bytes": "written",
    "elapsed_seconds": "time of its processes", "run_delay_seconds": "time without a core",
    "involuntary_switches": "involuntary switches", "major_faults": "major faults",
    "read_bytes": "read from storage",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from joblens.analysis.outliers import METHODS
    from joblens.api.comparing import LEVELS

    parser.add_argument("ids", nargs="*", metavar="ID", help="jobs that should be alike; else by filters")
    add_filters(parser)
    parser.add_argument("--of", choices=tuple(LEVELS), default="jobs", help="what to compare (default jobs)")
    parser.add_argument(
        "--method", choices=tuple(METHODS), default="modified-z", help="(default modified-z, for few jobs)"
    )
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="rows, 0 for all (default 20)")
    parser.add_argument("--home", metavar="DIR", help="from the store in this folder")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    from joblens.api.comparing import find_unusual
    from joblens.api.store import Store

    check_limit(options.limit)
    with Store(options.home, progress=progress("days of records")) as store:
        found = find_unusual(store, load_chosen(store, options), options.of, options.method)
        warn(store.problems)
    _warn_of_method(found)
    limited = found._replace(found=found.found[: options.limit or None])
    if options.json:
        write(json.dumps(limited.to_dict(), indent=2) + "\n")
    elif not found.found:
        what = "" if options.of == "jobs" else f"the {options.of} of "
        print(f"joblens: none of {what}{len(found.jobs)} jobs is unlike the others", file=sys.stderr)
    else:
        lines = render_jobs(limited) if options.of == "jobs" else render_groups(limited)
        write("\n".join(lines) + "\n")
        if len(limited.found) < len(found.found):
            print(
                f"joblens: {len(limited.found)} of {len(found.found)} are listed; --limit 0 lists all",
                file=sys.stderr,
            )
    return 0


def _warn_of_method(found: Outliers) -> None:
    from joblens.analysis.outliers import METHODS, highest_score

    count, method = len(found.jobs), found.method
    most = highest_score(method, count)
    if most <= METHODS[method][1]:
        warn([f"{method} is at most {most:.1f} among {count} jobs, so it finds none; use modified-z"])


def render_jobs(found: Outliers) -> list[str]:
    """One paragraph for each job: what is unlike the others, and where it comes from."""
    from joblens.api.comparing import name_jobs

    lines: list[str] = []
    names = name_jobs(found.jobs)
    for job in dict.fromkeys(it.outlier.job for it in found.found):
        some = [it for it in found.found if it.outlier.job == job]
        lines += [f"job {printable(names[job])} is unlike {len(found.jobs) - 1} others"]
        for it in some:
            lines += [f" {_statement(it.outlier)}", *(f"   {line}" for line in _causes(it))]
        lines += [f" {line}" for line in _symptoms(some[0])]
    return lines


def _statement(it: Outlier) -> str:
    value, usual = (render_value(it.metric, number) for number in (it.value, it.usual))
    compared = f"usually {usual}" if it.ratio is None else f"{render_ratio(it.ratio)} × the usual {usual}"
    return f"{_WORDS[it.metric]} {value}, {compared}"


def _causes(it: Explained) -> Iterator[str]:
    for what, causes in (("operation", it.operations), ("program", it.programs)):
        if causes:
            yield f"{what}s: " + ", ".join(map(_cause, causes))


def _cause(it: Cause) -> str:
    ratio = f" {render_ratio(it.value / it.usual)} ×" if it.usual else " new"
    return f"{render_group(it.group)}{ratio} ({it.share:.0%} of it)"


def _symptoms(it: Explained) -> Iterator[str]:
    from joblens.analysis.outliers import SYMPTOMS

    for symptom in it.symptoms:
        yield f"{_statement(symptom)}: {SYMPTOMS[symptom.metric]}"


def render_groups(found: Outliers) -> list[str]:
    from joblens.api.comparing import name_jobs

    names = name_jobs(found.jobs)
    rows = [
        (
            names[it.job],
            render_group(it.group),
            _WORDS[it.metric],
            render_value(it.metric, it.value),
            render_value(it.metric, it.usual),
            "-" if it.ratio is None else render_ratio(it.ratio),
        )
        for it, *_ in found.found
    ]
    return render_table(("job", "what", "metric", "value", "usual", "ratio"), rows, left=(0, 1, 2), shrink=1)
