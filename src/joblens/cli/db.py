from __future__ import annotations

import argparse
import json
import sys

from joblens.units import render_bytes

EXAMPLE = """example:
  joblens db info
  joblens db compact
  joblens db retain --days 365"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="where the store is, how much is in it, and whether all is well")
    info.add_argument("--json", action="store_true", help="as JSON")
    actions.add_parser("compact", help="put the many small files of each day into one; readers do not notice")
    retain = actions.add_parser("retain", help="remove samples and jobs of days that are older")
    retain.add_argument("--days", type=int, required=True, metavar="N")


def run(options: argparse.Namespace) -> int:
    from joblens.api import open_store

    store = open_store()
    for problem in store.problems:
        print(f"joblens: {problem}", file=sys.stderr)
    if options.action == "compact":
        done = store.compact(_progress if sys.stderr.isatty() else None)
        print(f"{done} files compacted", file=sys.stderr)
    elif options.action == "retain":
        removed = store.retain(options.days)
        print(f"{removed} files removed", file=sys.stderr)
    elif options.json:
        json.dump(store.info(), sys.stdout, indent=2)
        print()
    else:
        info = store.info()
        print(store.home.describe())
        print(f"{info['jobs']} jobs, {info['files']} files of samples, {render_bytes(info['bytes'])}")
    return 0


def _progress(done: int, whole: int) -> None:
    sys.stderr.write(f"\rjoblens: {done} of {whole} folders" + ("\r\x1b[K" if done == whole else ""))
    sys.stderr.flush()
