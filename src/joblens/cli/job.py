from __future__ import annotations

import argparse
import json
import sys

from joblens.cli.table import progress, tell, write
from joblens.errors import JoblensError

EXAMPLE = """example:
  joblens job last
  joblens job r1nfmafbw90t4 --json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID|last", help="of the job, or the beginning of it")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(options: argparse.Namespace) -> int:
    from joblens.api import Store

    with Store(progress=progress("days of records")) as store:
        try:
            record = store.job(options.id)
        except LookupError as error:
            raise JoblensError(str(error.args[0])) from None
        finally:
            tell(store.problems)
    if options.json:
        write(json.dumps(record, indent=2) + "\n")
    else:
        from joblens.reports.text import Style, render_report

        write(render_report(record, Style.on(sys.stdout.isatty())))
    return 0
