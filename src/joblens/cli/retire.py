from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from joblens.cli.figures import render_count
from joblens.cli.jobs import add_filters, filter_of
from joblens.cli.table import progress, warn, write

if TYPE_CHECKING:
    from joblens.jobs.retire import RetireResult

EXAMPLE = """example:
  joblens retire --older-than 365d --dry-run
  joblens retire --older-than 90d --state FAILED
  joblens retire --older-than 2026-01-31 --user alice --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--older-than", required=True, metavar="TIME", help="ended before: 90d ago, 2026-01-31"
    )
    add_filters(parser)
    parser.add_argument("--dry-run", action="store_true", help="only count them")
    parser.add_argument("--home", metavar="DIR", help="from the store in this folder")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    from joblens.api.store import Store

    wanted = filter_of(options)
    with Store(options.home, progress=progress("days of records")) as store:
        result = store.retire(options.older_than, wanted, options.dry_run, progress("days"))
        warn([*store.problems, *result.problems])
    if options.json:
        write(json.dumps(asdict(result), indent=2) + "\n")
    else:
        print(f"joblens: {render(result)}", file=sys.stderr)
    return 3 if result.failed else 0


def render(result: RetireResult) -> str:
    done = "would be retired" if result.dry_run else "retired"
    text = f"{render_count(result.jobs, 'job')} {done}"
    if result.oldest is not None and result.newest is not None:
        text += f", started {_date(result.oldest)} to {_date(result.newest)}"
    if result.kept:
        text += f"; {render_count(result.kept, 'reference job')} of models kept"
    if result.failed:
        text += f"; {render_count(result.failed, 'job')} could not be removed"
    return text


def _date(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(moment))
