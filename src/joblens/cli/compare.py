from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from joblens.cli import source as sources
from joblens.cli.job_choice import add_runs, check_limit, load_named
from joblens.cli.source import choose_source, open_chosen
from joblens.cli.table import render_table, room, warn, write
from joblens.core.errors import UsageError, printable
from joblens.reports.figures import WORDS, render_group, render_value

if TYPE_CHECKING:
    from joblens.analysis.comparison import Compared, Comparison
    from joblens.record.report import JobRecord

EXAMPLE = """example:
  joblens compare 4242 4243
  joblens compare 4242 4243 4244 --with 4250 4251 4252
  joblens compare 4242 --run 1 3"""

_MOST_COLUMNS = 6  # jobs that fit beside each other; of more, the two groups
_LABEL, _RATIO, _SHORTEST = 12, 14, 11  # widths of columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ids", nargs="+", metavar="ID", help="the first job, and those compared with it")
    parser.add_argument(
        "--with", dest="others", nargs="+", default=[], metavar="ID",
        help="runs to compare with all IDs before: with an interval if both are several",
    )  # fmt: skip
    parser.add_argument(
        "--limit",
        type=int,
        default=10,
        metavar="N",
        help="operations and programs that differ most, 0 for all (default 10)",
    )
    add_runs(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")
    sources.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from joblens.api.comparing import compare_jobs

    names = [*options.ids, *options.others]
    if len(names) < 2 and not options.numbers:
        raise UsageError("joblens compare needs two jobs, or --run for two runs of one")
    if options.others and options.numbers == ["all"]:
        raise UsageError("write the numbers of the runs: --run all and --with are mutually exclusive")
    check_limit(options.limit)
    first = len(options.ids) if options.others else 1
    with open_chosen(choose_source(options)) as source:
        records = load_named(source, names, options.numbers)
        found = compare_jobs(source, records, first)
        warn(source.problems)
    limited = found.limit(options.limit, first) if options.limit else found
    write(json.dumps(_plain(limited, records), indent=2) + "\n" if options.json else render(limited, records))
    for name in ("operations", "programs"):
        listed, known = (len(getattr(it, name)) for it in (limited, found))
        if listed < known:
            warn([f"{listed} of {known} {name} are listed, those that differ most; --limit 0 lists all"])
    if len(records) > 2 and not options.others and not options.json:
        print(
            f"joblens: the ratio is that of the mean of the {len(records) - 1} other jobs to the first; "
            "--with compares groups of runs",
            file=sys.stderr,
        )
    return 0


def _plain(found: Comparison, records: Sequence[JobRecord]) -> dict[str, Any]:
    from joblens.api.comparing import plain_jobs

    parts = {
        name: [it._asdict() for it in getattr(found, name)] for name in ("totals", "operations", "programs")
    }
    first = None if found.first_change is None else list(found.first_change)
    return {"jobs": plain_jobs(records), **parts, "first_change": first}


def render(found: Comparison, records: Sequence[JobRecord]) -> str:
    from joblens.api.comparing import name_jobs

    ids = _heads(name_jobs(records)) if len(records) <= _MOST_COLUMNS else []
    lines: list[str] = []
    for title, rows in (("", found.totals), ("operation", found.operations), ("program", found.programs)):
        if rows:
            table = [_row(it, bool(title), bool(ids)) for it in rows]
            head = (title.ljust(_LABEL), *ids, "ratio")
            lines += ["", *render_table(head, table, left=(0,), shrink=0)]
    if found.first_change is not None:
        lines += ["", f"The first operation that changed: {render_group(found.first_change)}"]
    return "\n".join(lines[1:]) + "\n"


def _heads(names: Sequence[str]) -> list[str]:
    """Shorten the names of jobs that do not fit the terminal. Names of similar jobs differ at the end."""
    space = room()
    most = 60 if space is None else max((space - _LABEL - _RATIO) // len(names) - 2, _SHORTEST)
    return [name if len(name) <= most else "…" + name[1 - most :] for name in map(printable, names)]


def _row(it: Compared, is_group: bool, has_values: bool) -> tuple[str, ...]:
    metric = "cpu_seconds" if is_group else it.what[0]
    name = render_group(it.what) if is_group else WORDS[metric]
    values = [render_value(metric, value) for value in it.values] if has_values else []
    ratio = "-" if it.ratio is None else f"{it.ratio:.2f}"
    return (name, *values, ratio if it.interval is None else f"{ratio} ± {it.interval:.2f}")
