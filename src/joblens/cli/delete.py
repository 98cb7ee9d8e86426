from __future__ import annotations

import argparse
import sys

from joblens.cli.job_choice import load_named
from joblens.cli.table import progress, warn
from joblens.core.errors import JoblensError, UsageError
from joblens.core.units import render_seconds

EXAMPLE = """example:
  joblens delete 4242
  joblens delete 4242@cluster2 --run 1 --yes"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "ids", nargs="+", metavar="ID", help="of the job, also ID@CLUSTER, or the beginning of it"
    )
    parser.add_argument("--run", dest="number", type=int, metavar="N", help="of several with this id")
    parser.add_argument("--yes", action="store_true", help="without asking")
    parser.add_argument("--home", metavar="DIR", help="from the store in this folder")


def run(options: argparse.Namespace) -> int:
    from joblens.api.store import Store

    with Store(options.home, progress=progress("days of records")) as store:
        if not options.yes:
            _ask([f"{it.job.shown_id} {it.job.name} ({render_seconds(it.job.duration)})"
                  for it in load_named(store, options.ids)])  # fmt: skip
        try:
            for name in options.ids:
                job = store.delete(name, options.number).job
                print(f"deleted job {job.shown_id}@{job.cluster}", file=sys.stderr)
        except LookupError as error:
            raise JoblensError(str(error.args[0])) from None
        finally:
            warn(store.problems)
    return 0


def _ask(jobs: list[str]) -> None:
    """Raises UsageError without a terminal, and JoblensError if the answer is no."""
    if not sys.stdin.isatty():
        raise UsageError("nothing is deleted: give --yes, or answer on a terminal")
    print("\n".join(jobs), file=sys.stderr)
    if input("delete? [y/N] ").strip().lower() not in ("y", "yes"):
        raise JoblensError("nothing is deleted")
