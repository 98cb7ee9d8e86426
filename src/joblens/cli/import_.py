from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.cli.table import progress, tell, write
from joblens.core.errors import UsageError
from joblens.store.catalog.listing import parse_time

if TYPE_CHECKING:
    from joblens.jobs.backfill import Outcome as Jobs

EXAMPLE = """example:
  joblens import ldms /var/store/ldms
  joblens import ldms --cluster fox meminfo.1700000000 vmstat.1700000000.gz
  sacct -a -D --parsable2 --format ALL -S 2026-01-01 > past; joblens import sacct past
  joblens import sacct --live --since 90d"""

_DAYS = 7


def add_arguments(parser: argparse.ArgumentParser) -> None:
    systems = parser.add_subparsers(dest="system", required=True, metavar="SYSTEM")
    what = "files of LDMS' CSV store, or folders of them; what is there already is not taken twice"
    ldms = systems.add_parser("ldms", help=what, description=what[0].upper() + what[1:] + ".")
    ldms.add_argument("paths", nargs="+", metavar="PATH")
    ldms.add_argument("--cluster", default="", metavar="NAME", help="whose nodes they are")
    ldms.add_argument("--json", action="store_true", help="as JSON, what was done")
    what = "jobs of Slurm's past: text of sacct --parsable2 or --json, or asked for now"
    sacct = systems.add_parser("sacct", help=what, description=what[0].upper() + what[1:] + ".")
    sacct.add_argument("paths", nargs="*", metavar="FILE", help="with a header line; - is the input")
    sacct.add_argument("--live", action="store_true", help="ask sacct, on a machine of the cluster")
    sacct.add_argument(
        "--since", metavar="TIME", help=f"with --live: ended after 2026-01-01, or 90d ago (default {_DAYS}d)"
    )
    sacct.add_argument(
        "--cluster", default="", metavar="NAME", help="whose jobs they are, if they do not say"
    )
    sacct.add_argument("--json", action="store_true", help="as JSON, what was done")


def run(options: argparse.Namespace) -> int:
    return {"ldms": _ldms, "sacct": _sacct}[options.system](options)


def _ldms(options: argparse.Namespace) -> int:
    from joblens.importers.ldms import import_ldms
    from joblens.store.home import find_home, make_home
    from joblens.store.lake.lake import Lake

    home = make_home(find_home())
    paths = [Path(path) for path in options.paths]
    done = import_ldms(Lake(home.lake), paths, options.cluster, progress("MiB"))
    tell(done.problems)
    if options.json:
        write(json.dumps(done.describe(), indent=2) + "\n")
    else:
        write("\n".join(render(done.describe())) + "\n")
    return 3 if done.unusable or not done.files else 0


def _sacct(options: argparse.Namespace) -> int:
    if bool(options.paths) == options.live:
        raise UsageError("joblens import sacct needs files, or --live")
    if options.since and not options.live:
        raise UsageError("--since is for --live; ask sacct for what is meant (-S) to get less into a file")
    done = _live(options) if options.live else _files(options)
    tell(done.problems)
    if options.json:
        write(json.dumps(done.describe(), indent=2) + "\n")
    else:
        write("\n".join(render_jobs(done)) + "\n")
    return 3 if done.unusable else 0


def _files(options: argparse.Namespace) -> Jobs:
    from joblens.jobs.backfill import import_files
    from joblens.store.home import find_home, make_home

    paths = [Path(path) for path in options.paths]
    return import_files(make_home(find_home()), paths, options.cluster, progress("MiB"))


def _live(options: argparse.Namespace) -> Jobs:
    from joblens.jobs.backfill import import_live
    from joblens.schedulers.slurm.client import Slurm
    from joblens.store.home import find_home, make_home

    since = parse_time(options.since) or time.time() - _DAYS * 86_400
    home = make_home(find_home())
    return import_live(home, Slurm(), since, options.cluster, progress("quarters of a day"))


def render_jobs(done: Jobs) -> list[str]:
    parts = [_count(done.jobs, "new job")]
    if done.known:
        parts.append(f"{_count(done.known, 'job')} known already")
    if done.not_ended:
        parts.append(f"{_count(done.not_ended, 'job')} not ended yet, left out")
    if done.bad:
        parts.append(f"{_count(done.bad, 'bad line')} left out")
    if done.unusable:
        parts.append(f"{_count(done.unusable, 'file')} of {done.files} left out, or the rest of it")
    return parts


def render(done: dict[str, object]) -> list[str]:
    sets = done["sets"]
    parts = [f"{done['rows']} new rows from {_count(done['files'], 'file')}"]
    if isinstance(sets, dict) and sets:
        parts[0] += ": " + ", ".join(f"{name} {count}" for name, count in sorted(sets.items()))
    if done["repeated"]:
        parts.append(f"{done['repeated']} rows were there already")
    if done["bad"]:
        parts.append(f"{_count(done['bad'], 'bad line')} left out")
    if done["unusable"]:
        parts.append(f"{_count(done['unusable'], 'file')} of {done['files']} left out, or the rest of it")
    if not done["files"]:
        print("joblens: no file of LDMS is there", file=sys.stderr)
    return parts


def _count(number: object, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
