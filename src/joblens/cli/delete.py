from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from joblens.cli.table import progress, warn, write
from joblens.core.errors import JoblensError, UsageError, printable
from joblens.core.units import render_seconds

if TYPE_CHECKING:
    from joblens.api.store import Store
    from joblens.record.report import Job, JobRecord

_MOST_SHOWN = 5

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
    parser.add_argument("--json", action="store_true", help="print what was deleted as JSON")


def run(options: argparse.Namespace) -> int:
    from joblens.api.store import Store

    deleted: list[Job] = []
    with Store(options.home, progress=progress("days of records")) as store:
        try:
            records = _distinct(_resolve(store, name, options.number) for name in options.ids)
            if not options.yes:
                _ask([_describe(it.job) for it in records])
            for record in records:
                deleted.append(job := store.delete(record).job)
                print(printable(f"deleted job {job.shown_id}@{job.cluster}"), file=sys.stderr)
        except LookupError as error:
            raise JoblensError(str(error.args[0])) from None
        finally:
            warn(store.problems)
            if options.json and (deleted or sys.exc_info()[0] is None):
                write(json.dumps([_plain(job) for job in deleted], indent=2) + "\n")
    return 0


def _plain(job: Job) -> dict[str, object]:
    return {
        name: getattr(job, name) for name in ("cluster", "id", "shown_id", "start", "end", "name", "user")
    }


def _distinct(records: Iterable[JobRecord]) -> list[JobRecord]:
    """A job that is named twice is deleted once."""
    return list({(it.job.cluster, it.job.id, it.job.start): it for it in records}.values())


def _resolve(store: Store, name: str, number: int | None) -> JobRecord:
    """Raises LookupError, and JoblensError if the name could be one of several runs."""
    runs = store.runs(name) if number is None and name != "last" else []
    if len(runs) > 1:
        shown = [f"{at}: {it.id}@{it.cluster} {_render_time(it.start)}" for at, it in enumerate(runs, 1)]
        some = ", ".join(shown[:_MOST_SHOWN]) + (", …" if len(runs) > _MOST_SHOWN else "")
        raise JoblensError(
            printable(f"nothing is deleted: {name} has {len(runs)} runs; choose one with --run N ({some})")
        )
    return store.job(name, number)


def _describe(job: Job) -> str:
    started, took = _render_time(job.start), render_seconds(job.duration)
    return printable(f"{job.shown_id}@{job.cluster} {job.name} of {job.user}, started {started} ({took})")


def _render_time(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def _ask(jobs: list[str]) -> None:
    """Raises UsageError without a terminal, and JoblensError if the answer is no."""
    if not sys.stdin.isatty():
        raise UsageError("nothing is deleted: give --yes, or answer on a terminal")
    print("\n".join(jobs) + "\ndelete? [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()  # "" at its end, Ctrl-D
    if not answer:
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        raise JoblensError("nothing is deleted")
