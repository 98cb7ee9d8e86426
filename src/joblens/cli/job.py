from __future__ import annotations

import argparse
import json
import os
import sys

from joblens.errors import JoblensError

EXAMPLE = """example:
  joblens job last
  joblens job r1nfmafbw90 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID|last", help="of the job, or the beginning of it")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    from joblens.api import open_store

    store = open_store()
    try:
        record = store.job(options.id)
    except LookupError as error:
        raise JoblensError(str(error.args[0])) from None
    finally:
        for problem in store.problems:
            print(f"joblens: {problem}", file=sys.stderr)
    if options.json:
        json.dump(record, sys.stdout, indent=2)
        print()
    else:
        from joblens.reports.text import Style, render_report

        sys.stdout.write(render_report(record, Style(sys.stdout.isatty() and "NO_COLOR" not in os.environ)))
    return 0
