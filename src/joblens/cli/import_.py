from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.cli.figures import render_count
from joblens.cli.table import progress, warn, write
from joblens.cli.workers import add_workers, check_workers
from joblens.core.errors import UsageError
from joblens.store.catalog.listing import parse_time

if TYPE_CHECKING:
    from joblens.importers.input_files import ImportResult
    from joblens.importers.ldms import LdmsResult
    from joblens.jobs.backfill import JobsResult
    from joblens.jobs.epmt_archives import EpmtResult

EXAMPLE = """example:
  joblens import ldms /var/store/ldms
  joblens import ldms --cluster fox meminfo.1700000000 vmstat.1700000000.gz
  sacct -a -D --parsable2 --format ALL -S 2026-01-01 > past; joblens import sacct past
  joblens import sacct --live --since 90d
  joblens import epmt --zone US/Eastern /archive/epmt"""

_DAYS = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    systems = parser.add_subparsers(dest="system", required=True, metavar="SYSTEM")
    what = "files of LDMS' CSV store, or folders of them; rows are never imported twice"
    ldms = systems.add_parser("ldms", help=what, description=what[0].upper() + what[1:] + ".")
    ldms.add_argument("paths", nargs="+", metavar="PATH")
    ldms.add_argument("--cluster", default="", metavar="NAME", help="cluster of the nodes")
    ldms.add_argument("--json", action="store_true", help="print the result as JSON")
    what = "past jobs of Slurm: output of sacct --parsable2 or --json, or queried now"
    sacct = systems.add_parser("sacct", help=what, description=what[0].upper() + what[1:] + ".")
    sacct.add_argument(
        "paths", nargs="*", metavar="FILE", help="text with a header line, or JSON; - is standard input"
    )
    sacct.add_argument("--live", action="store_true", help="run sacct, on a machine of the cluster")
    sacct.add_argument(
        "--since",
        metavar="TIME",
        help=f"with --live: jobs that ended after 2026-01-01, or 90d ago (default {_DAYS}d)",
    )
    sacct.add_argument("--cluster", default="", metavar="NAME", help="cluster of jobs without one")
    sacct.add_argument("--json", action="store_true", help="print the result as JSON")
    what = "job archives of EPMT: .tgz files and folders, with all processes and threads"
    epmt = systems.add_parser("epmt", help=what, description=what[0].upper() + what[1:] + ".")
    epmt.add_argument("paths", nargs="+", metavar="ARCHIVE|DIR", help="archives, or folders of them")
    epmt.add_argument(
        "--zone", default="", metavar="ZONE", help="of times without one (archives of 2019): Asia/Kolkata"
    )
    epmt.add_argument("--cluster", default="", metavar="NAME", help="cluster of the jobs")
    add_workers(epmt, "imported")
    epmt.add_argument("--json", action="store_true", help="print the result as JSON")


def run(options: argparse.Namespace) -> int:
    from joblens.core.secrets import use_masks

    use_masks()
    return {"ldms": _ldms, "sacct": _sacct, "epmt": _epmt}[options.system](options)


def _epmt(options: argparse.Namespace) -> int:
    from joblens.jobs.epmt_archives import import_epmt
    from joblens.store.home import find_home, make_home

    workers = check_workers(options.workers)
    home, paths = make_home(find_home()), [Path(path) for path in options.paths]
    result = import_epmt(home, paths, options.zone, options.cluster, progress("MiB"), workers=workers)
    _print(result, render_epmt(result), options.json)
    return 3 if result.unusable or not result.files else 0


def _ldms(options: argparse.Namespace) -> int:
    from joblens.importers.ldms import import_ldms
    from joblens.store.home import find_home, make_home
    from joblens.store.lake.lake import Lake

    home = make_home(find_home())
    paths = [Path(path) for path in options.paths]
    result = import_ldms(Lake(home.lake), paths, options.cluster, progress("MiB"))
    _print(result, render(result), options.json)
    return 3 if result.unusable or not result.files else 0


def _print(result: ImportResult, lines: list[str], as_json: bool) -> None:
    from dataclasses import asdict

    warn(result.problems)
    write((json.dumps(asdict(result), indent=2) if as_json else "\n".join(lines)) + "\n")


def _sacct(options: argparse.Namespace) -> int:
    if bool(options.paths) == options.live:
        raise UsageError("joblens import sacct needs files, or --live")
    if options.since and not options.live:
        raise UsageError("--since needs --live; for a file, limit the output of sacct itself (-S)")
    result = _live(options) if options.live else _files(options)
    _print(result, render_jobs(result), options.json)
    return 3 if result.unusable else 0


def _files(options: argparse.Namespace) -> JobsResult:
    from joblens.jobs.backfill import import_files
    from joblens.store.home import find_home, make_home

    paths = [Path(path) for path in options.paths]
    return import_files(make_home(find_home()), paths, options.cluster, progress("MiB"))


def _live(options: argparse.Namespace) -> JobsResult:
    from joblens.jobs.backfill import import_live
    from joblens.schedulers.slurm.client import Slurm
    from joblens.store.home import find_home, make_home

    since = parse_time(options.since) or time.time() - _DAYS * 86_400
    home = make_home(find_home())
    return import_live(home, Slurm(), since, options.cluster, progress("quarters of a day"))


def render_jobs(result: JobsResult) -> list[str]:
    parts = [render_count(result.jobs, "new job")]
    if result.known:
        parts.append(f"{render_count(result.known, 'job')} already stored")
    if result.not_ended:
        parts.append(f"{render_count(result.not_ended, 'job')} not ended yet, skipped")
    return parts + _render_skipped(result)


def render_epmt(result: EpmtResult) -> list[str]:
    parts = [render_count(result.jobs, "new job")]
    if result.jobs:
        parts[0] += f", {render_count(result.processes, 'process')}, {render_count(result.threads, 'thread')}"
    if result.replaced:
        parts.append(f"{render_count(result.replaced, 'job')} replaced, now with a time zone")
    if result.known:
        parts.append(f"{render_count(result.known, 'job')} already stored")
    if result.broken:
        parts.append(f"{render_count(result.broken, 'broken record')}: see the findings of the jobs")
    if not result.files:
        print("joblens: no archive of EPMT found", file=sys.stderr)
    return parts + _render_skipped(result)


def render(result: LdmsResult) -> list[str]:
    parts = [f"{render_count(result.rows, 'new row')} from {render_count(result.files, 'file')}"]
    if result.sets:
        parts[0] += ": " + ", ".join(f"{name} {count}" for name, count in sorted(result.sets.items()))
    if result.repeated:
        parts.append(f"{render_count(result.repeated, 'row')} already stored")
    if not result.files:
        print("joblens: no LDMS file found", file=sys.stderr)
    return parts + _render_skipped(result)


def _render_skipped(result: ImportResult) -> list[str]:
    parts = [f"{render_count(result.waiting, 'record')} to be delivered to the database"] * bool(
        result.waiting
    )
    if result.bad:
        parts.append(f"{render_count(result.bad, 'bad line')} skipped")
    if result.unusable:
        parts.append(f"{render_count(result.unusable, 'file')} of {result.files} skipped, whole or in part")
    return parts
