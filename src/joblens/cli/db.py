from __future__ import annotations

import argparse
import json
import sys

from joblens.cli.table import progress, tell, write
from joblens.core.units import render_bytes

EXAMPLE = """example:
  joblens db info
  joblens db compact
  joblens db check
  joblens db retain --days 365"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="where the store is, how much is in it, and whether all is well")
    info.add_argument("--json", action="store_true", help="as JSON")
    actions.add_parser("compact", help="put the many small files of each day into one; readers do not notice")
    actions.add_parser(
        "check", help="read every file, set damaged ones aside, and tell what is lost; exit code 1 if any is"
    )
    retain = actions.add_parser("retain", help="remove samples and jobs of days that are older")
    retain.add_argument("--days", type=int, required=True, metavar="N", help="how many stay")


def run(options: argparse.Namespace) -> int:
    from joblens.api import Store

    with Store(progress=progress("days of records")) as store:
        if options.action == "compact":
            done = store.compact(progress("folders"))
            print(f"{_count(done, 'file')} compacted", file=sys.stderr)
        elif options.action == "check":
            found = store.check(progress("folders"))
            damaged = len(store.problems)
            words = f"{_count(damaged, 'problem')}" if damaged else "all is well"
            print(f"{_count(found, 'file')} of samples checked, and all records: {words}", file=sys.stderr)
            tell(store.problems)
            return 1 if damaged else 0
        elif options.action == "retain":
            print(f"{_count(store.retain(options.days), 'file')} removed", file=sys.stderr)
        else:
            info = store.info()
            write(json.dumps(info, indent=2) + "\n" if options.json else render(info))
        tell(store.problems)
    return 0


def render(info: dict[str, object]) -> str:
    from joblens.reports.text import wrap

    size = render_bytes(int(str(info["bytes"])))
    held = f"{_count(info['jobs'], 'job')}, {_count(info['files'], 'file')} of samples, {size}"
    if info["waiting"]:
        held += f"; samples of {_count(info['waiting'], 'job')} wait for `joblens db compact`"
    under_way = info["running"]
    if isinstance(under_way, list) and under_way:
        held += f"; {len(under_way)} under way: {', '.join(map(str, under_way[:5]))}"
    return "\n".join([*wrap("", str(info["about"])), *wrap("", held)]) + "\n"


def _count(number: object, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
