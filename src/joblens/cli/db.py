from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from joblens.cli.figures import render_count
from joblens.cli.table import progress, warn, write
from joblens.core.units import render_bytes

if TYPE_CHECKING:
    from joblens.api import StoreInfo

EXAMPLE = """example:
  joblens db info
  joblens db compact
  joblens db check
  joblens db retain --days 365"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="show the path, size and condition of the store")
    info.add_argument("--json", action="store_true", help="as JSON")
    actions.add_parser("compact", help="merge the small files of each day; readers are not affected")
    actions.add_parser(
        "check", help="read every file, move damaged ones away, report what is lost; exit status 1 if any is"
    )
    retain = actions.add_parser("retain", help="remove samples and jobs of older days")
    retain.add_argument("--days", type=int, required=True, metavar="N", help="days to keep")


def run(options: argparse.Namespace) -> int:
    from joblens.api import Store

    with Store(progress=progress("days of records")) as store:
        if options.action == "compact":
            done = store.compact(progress("folders"))
            print(f"{render_count(done, 'file')} compacted", file=sys.stderr)
        elif options.action == "check":
            found = store.check(progress("folders"))
            damaged = len(store.problems)
            words = render_count(damaged, "problem") if damaged else "no problems"
            print(
                f"{render_count(found, 'file')} of samples checked, and all records: {words}", file=sys.stderr
            )
            warn(store.problems)
            return 1 if damaged else 0
        elif options.action == "retain":
            print(f"{render_count(store.retain(options.days), 'file')} removed", file=sys.stderr)
        else:
            info = store.info()
            write(json.dumps(info._asdict(), indent=2) + "\n" if options.json else render(info))
        warn(store.problems)
    return 0


def render(info: StoreInfo) -> str:
    from joblens.reports.text import wrap

    size = render_bytes(info.bytes)
    held = f"{render_count(info.jobs, 'job')}, {render_count(info.files, 'file')} of samples, {size}"
    if info.waiting:
        held += f"; samples of {render_count(info.waiting, 'job')} wait for `joblens db compact`"
    if info.running:
        held += f"; {len(info.running)} running: {', '.join(info.running[:5])}"
    return "\n".join([*wrap("", info.about), *wrap("", held)]) + "\n"
