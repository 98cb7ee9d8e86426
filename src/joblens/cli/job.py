from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from joblens.cli.table import progress, warn, write
from joblens.core.errors import JoblensError

if TYPE_CHECKING:
    from joblens.api import Store
    from joblens.record.report import JobRecord
    from joblens.schedulers.facts import BatchJob
    from joblens.store.catalog.index import Run

EXAMPLE = """example:
  joblens job last
  joblens job r1nfmafbw90t4 --json
  joblens job 4200_7
  joblens job 4242@cluster2
  joblens job 4242 --run 1
  joblens job 4242 --store http://127.0.0.1:9090
  joblens job last --between "time steps"
  joblens job last --from +10m --to 13:02:30"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID|last", help="of the job, also ID@CLUSTER, or the beginning of it")
    parser.add_argument(
        "--run",
        dest="number",
        type=int,
        metavar="N",
        help="of several with this id the first, second and so on; else it is the last",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.add_argument("--between", metavar="MARK", help="only while this mark was set (MARK#2: the second)")
    parser.add_argument("--step", metavar="S", help="only while this step of it ran")
    parser.add_argument(
        "--from", dest="first", metavar="T", help="only from then on: 13:02, +10m after the start"
    )
    parser.add_argument("--to", dest="last", metavar="T", help="and until then")
    parser.add_argument(
        "--store", metavar="WHERE",
        help="from a server that speaks PromQL: its URL, its data folder, or tsdb, the one of the settings",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    from joblens.api import Store
    from joblens.jobs.live import add_runs, find_live

    problems: list[str] = []
    session = _settle(options.id)
    with Store(progress=progress("days of records")) as store:
        found = [session] if session else find_live(store.home, options.id, problems)
        runs = add_runs(store.runs(options.id), found)
        try:
            record = _report(options, store, found, runs)
            _count_tasks(record, store)
        except LookupError as error:
            raise JoblensError(str(error.args[0])) from None
        finally:
            warn(store.problems + problems)
    _number(record, runs)
    if options.json:
        write(json.dumps(_plain(record), indent=2) + "\n")
    else:
        from joblens.reports.style import Style
        from joblens.reports.text import render_report

        write(render_report(record, Style.of(sys.stdout)))
    return 0


def _plain(record: JobRecord) -> Mapping[str, object]:
    """In the store a job that never started is known by its end."""
    plain = record.to_dict()
    if record.job.never_started:
        plain["job"]["start"] = None
    return plain


def _settle(name: str) -> BatchJob | None:
    """Return the facts of a job whose user mode runs; finalise one that has ended."""
    from joblens.store.home import find_home

    home = find_home()
    if not (home.path / "usermode").is_dir():
        return None
    from joblens.usermode.finish import settle

    return settle(home, name, lambda words: warn([words]))


def _report(options: argparse.Namespace, store: Store, found: list[BatchJob], runs: list[Run]) -> JobRecord:
    """Return the record of the requested run, or of a part of it. Raises LookupError if there is none."""
    live, number = _meant(options, store, found, runs)
    where = options.store
    if where is None:
        try:
            record = _find(store, options, live, number)
        except LookupError:
            if live is not None:
                raise LookupError(f"job {live.shown_id} waits: {live.state} {live.reason}".rstrip()) from None
            from joblens.cli.from_tsdb import CONFIGURED, configured

            if options.id == "last" or not configured():
                raise
            where = CONFIGURED
        else:
            return _part(options, store, record)
    from joblens.cli.from_tsdb import report_from_tsdb

    return report_from_tsdb(options, store, live, where, number)


def _part(options: argparse.Namespace, store: Store, record: JobRecord) -> JobRecord:
    """The whole record unless a part is asked for: to show what is stored needs no analysis."""
    if {options.between, options.step, options.first, options.last} == {None}:
        return record
    from joblens.analysis.window_report import find_part, summarise_part

    part = find_part(record, options.between, options.step, options.first, options.last)
    return record if part is None else summarise_part(record, store.reader(record), part)


def _meant(
    options: argparse.Namespace, store: Store, found: list[BatchJob], runs: list[Run]
) -> tuple[BatchJob | None, int | None]:
    """One that runs or has no record yet, or the number of a stored one; neither is the newest stored."""
    from joblens.jobs.facts import identity
    from joblens.store.catalog.index import choose_run

    if options.number is None:
        return (found[-1] if found else None), None
    chosen, stored = choose_run(runs, options.number), store.runs(options.id)
    if chosen in stored:
        return None, stored.index(chosen) + 1
    return next(job for job in found if identity(job) == chosen[:3]), None


def _find(store: Store, options: argparse.Namespace, live: BatchJob | None, number: int | None) -> JobRecord:
    """LookupError if there is none. Of one that has just ended the record may be there already."""
    from joblens.jobs.live import has_run, summarise_live

    if live is None or not has_run(live):
        return store.job(options.id, number)
    if live.end is not None and options.number is None:
        with suppress(LookupError):
            record = store.job(options.id)
            if record.job.start >= (live.start or 0.0):
                return record
    return summarise_live(store.home, live)


def _count_tasks(record: JobRecord, store: Store) -> None:
    """How many the array has of which it is one; nothing of others. Those that wait are not counted."""
    from joblens.jobs.live import add_live
    from joblens.store.catalog.listing import JobFilter

    job = record.job
    if job.array_job:
        wanted = JobFilter(user=job.user, cluster=job.cluster, array=job.array_job, limit=0)
        # Problems with the list of running jobs are reported already.
        rows = add_live(store.home, wanted, store.jobs(wanted), [])
        record.array_tasks = len({row.shown_id for row in rows})


def _number(record: JobRecord, runs: list[Run]) -> None:
    """Which of the runs it is, and all of them: ids are reused, and jobs are requeued."""
    from joblens.record.report import Run

    this = (record.job.cluster, record.job.id, record.job.start)
    record.run = next((number for number, run in enumerate(runs, 1) if run[:3] == this), None)
    record.runs = [Run(number, *run) for number, run in enumerate(runs, 1)]
