from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from joblens.cli import source as sources
from joblens.cli.jobs import add_filters
from joblens.cli.source import add_runs, check_limit, choose_source, load_chosen, open_chosen
from joblens.cli.table import add_output, render_table, room, warn, write
from joblens.core.errors import UsageError, printable
from joblens.reports.figures import (
    WORDS,
    render_difference,
    render_group,
    render_judgement,
    render_ratio,
    render_value,
)
from joblens.reports.width import display_width
from joblens.reports.wrapping import wrap

if TYPE_CHECKING:
    from joblens.analysis.outliers import Cause, Outlier
    from joblens.api.comparing import Explained, Outliers

_HANGING = 2  # columns by which the rest of a sentence is indented
EXAMPLE = """example:
  joblens outliers --tag exp_name:linux_kernel
  joblens outliers --name 'train*' --since 30d --method iqr
  joblens outliers 4242 4243 4244 4250 --of operations
  joblens outliers 4242 --run all
  joblens outliers 4250 --model build"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from joblens.api.comparing import ALL_METHODS, LEVELS

    parser.add_argument("ids", nargs="*", metavar="ID", help="jobs that should be alike; else by filters")
    add_filters(parser)
    parser.add_argument("--of", choices=tuple(LEVELS), help="what to compare (default jobs)")
    parser.add_argument("--method", choices=ALL_METHODS, help="(default modified-z, for few jobs)")
    parser.add_argument(
        "--model", metavar="NAME", help="compare each with this model, and not with the others"
    )
    add_runs(parser)
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="rows, 0 for all (default 20)")
    add_output(parser)
    sources.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from joblens.api.comparing import OUTLIER_COLUMNS, find_unusual, outlier_rows

    check_limit(options.limit)
    if options.model:
        return _judge(options)
    options.of, options.method = options.of or "jobs", options.method or "modified-z"
    with open_chosen(choose_source(options)) as source:
        found = find_unusual(source, load_chosen(source, options), options.of, options.method)
        warn(source.problems)
    if found.left_out:
        kind = "threads" if options.of == "threads" else "processes"
        jobs = "1 job has" if found.left_out == 1 else f"{found.left_out} jobs have"
        warn([f"{jobs} no exact records of {kind}, and {'is' if found.left_out == 1 else 'are'} left out"])
    limited = found._replace(found=found.found[: options.limit or None])
    if options.json:
        write(json.dumps(limited.to_dict(), indent=2) + "\n")
    elif options.csv:
        _write_csv(OUTLIER_COLUMNS, outlier_rows(limited))
    elif not found.found:
        what = "" if options.of == "jobs" else f"the {options.of} of "
        print(f"joblens: none of {what}{len(found.jobs)} jobs is unlike the others", file=sys.stderr)
    else:
        of_jobs = options.of == "jobs"
        lines = _fitted(render_jobs(limited)) if of_jobs else render_groups(limited, options.of == "threads")
        write("\n".join(lines) + "\n")
        if len(limited.found) < len(found.found):
            print(
                f"joblens: {len(limited.found)} of {len(found.found)} are listed; --limit 0 lists all",
                file=sys.stderr,
            )
    return 0


def _judge(options: argparse.Namespace) -> int:
    """Compare jobs with a model."""
    from joblens.api.comparing import JUDGED_COLUMNS, judge_jobs, judged_rows, name_jobs, plain_jobs

    if options.of or options.method:
        raise UsageError("--of and --method compare jobs with each other: --model takes neither")
    with open_chosen(choose_source(options)) as source:
        records = load_chosen(source, options)
        judged = judge_jobs(source, records, options.model)
        warn(source.problems)
    if options.json:
        jobs = [{**job, **it.to_dict()} for job, it in zip(plain_jobs(records), judged)]
        write(json.dumps({"model": options.model, "jobs": jobs}, indent=2) + "\n")
        return 0
    if options.csv:
        _write_csv(JUDGED_COLUMNS, judged_rows(name_jobs(records), judged))
        return 0
    most = options.limit or sys.maxsize
    for name, it in zip(name_jobs(records), judged):
        first, *rest = render_judgement(it, most)
        write("\n".join(_fitted([f"job {printable(name)} is {first}", *rest])) + "\n")
    return 0


def _fitted(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines that fit the terminal; a pipe gets them whole."""
    width = room()
    for line in lines:
        text = line.lstrip()
        indent = " " * (len(line) - len(text))
        if not width or display_width(line) <= width:
            yield line
            continue
        first, *rest = wrap(indent, text, width - _HANGING)
        yield from (first, *(" " * _HANGING + it for it in rest))


def _write_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    from joblens.core.csv_cells import render_csv

    # causes are lists
    plain = (["; ".join(it) if isinstance(it, list) else it for it in row] for row in rows)
    write(render_csv(columns, plain))


def render_jobs(found: Outliers) -> list[str]:
    """One paragraph for each job: what is unlike the others, and where it comes from."""
    from joblens.api.comparing import name_jobs

    lines: list[str] = []
    names = name_jobs(found.jobs)
    for job in dict.fromkeys(it.outlier.job for it in found.found):
        some = [it for it in found.found if it.outlier.job == job]
        away = (
            f": distance {found.distances[job]:.1f}, from {found.threshold:.1f} on" if found.distances else ""
        )
        lines += [f"job {printable(names[job])} is unlike {len(found.jobs) - 1} others{away}"]
        for it in some:
            lines += [f" {_difference(it.outlier)}", *(f"   {line}" for line in _causes(it))]
        lines += [f" {line}" for line in _symptoms(some[0])]
    return lines


def _difference(it: Outlier) -> str:
    return render_difference(it.metric, it.value, it.usual)


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
        yield f"{_difference(symptom)}: {SYMPTOMS[symptom.metric]}"


def render_groups(found: Outliers, threads: bool = False) -> list[str]:
    """One table for each job."""
    from joblens.api.comparing import name_jobs

    names = name_jobs(found.jobs)
    words = WORDS | ({"processes": "threads"} if threads else {})
    lines: list[str] = []
    for job in dict.fromkeys(it.outlier.job for it in found.found):
        rows = [
            (
                render_group(it.group),
                words[it.metric],
                render_value(it.metric, it.value),
                render_value(it.metric, it.usual),
                "-" if it.ratio is None else render_ratio(it.ratio),
            )
            for it, *_ in found.found
            if it.job == job
        ]
        head = ("what", "metric", "value", "usual", "ratio")
        title = f"job {printable(names[job])} is unlike {len(found.jobs) - 1} others"
        lines += ["", *_fitted([title]), *render_table(head, rows, left=(0, 1), shrink=0)]
    return lines[1:]
