from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from joblens.cli import source as sources
from joblens.cli.source import check_limit, choose_source, open_chosen
from joblens.cli.table import add_output, render_table, warn, write
from joblens.core.units import render_bytes, render_cores, render_exit, render_load, render_seconds

if TYPE_CHECKING:
    from joblens.api.source import Listed
    from joblens.store.catalog.listing import JobFilter, JobRow

EXAMPLE = """example:
  joblens jobs
  joblens jobs --name 'train*' --since 7d --sort cpu --limit 50
  joblens jobs --tag model:resnet --json
  joblens jobs --partition gpu --state TIMEOUT --since 1d
  joblens jobs --node c7 --exit 137
  joblens jobs --server /run/joblens/serve.sock"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from joblens.store.catalog.listing import SORTS

    add_filters(parser)
    parser.add_argument("--sort", choices=tuple(SORTS), default="start", help="the newest and largest first")
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="0 for all (default 20)")
    add_output(parser)
    sources.add_arguments(parser)


def add_filters(parser: argparse.ArgumentParser) -> None:
    from joblens.schedulers.slurm.states import STATES

    parser.add_argument("--user", metavar="U", help="of this user")
    parser.add_argument("--name", metavar="PATTERN", help="of such a name, with * and ?")
    parser.add_argument(
        "--state",
        type=str.upper,
        choices=sorted(STATES),
        metavar="STATE",
        help="in Slurm's word; PENDING lists those that wait",
    )
    parser.add_argument("--exit", type=int, metavar="CODE", help="that ended with this exit code")
    for name, what in (
        ("partition", "in this partition or queue"),
        ("account", "on this account"),
        ("node", "that ran on this node"),
        ("cluster", "of this cluster"),
        ("array", "that are tasks of this array"),
    ):
        parser.add_argument(f"--{name}", metavar=name[0].upper(), help=what)
    parser.add_argument(
        "--tag", action="append", default=[], metavar="K:V", help="with this tag; can be repeated"
    )
    parser.add_argument(
        "--annotation", action="append", default=[], metavar="K:V", help="with this annotation; the same"
    )
    parser.add_argument(
        "--judged", choices=("usual", "unusual"), help="that are so by their model, see joblens model"
    )
    parser.add_argument(
        "--since", metavar="TIME", help="begun at or after: 2026-11-15T13:02, 2026-11-15, 7d ago"
    )
    parser.add_argument("--until", metavar="TIME", help="begun at or before, written in the same way")


def filter_of(options: argparse.Namespace) -> JobFilter:
    """Return what `add_filters` has given. Raises UsageError."""
    from joblens.store.catalog.listing import JobFilter, parse_time

    judged = (("judged", options.judged),) if options.judged else ()
    names = ("user", "name", "state", "cluster", "partition", "account", "node", "array")
    return JobFilter(
        **{name: getattr(options, name) for name in names},
        since=parse_time(options.since),
        until=parse_time(options.until),
        tags=_tags(options.tag),
        annotations=(*_tags(options.annotation), *judged),
        exit_code=options.exit,
    )


def run(options: argparse.Namespace) -> int:
    from joblens.api.source import Listed, shown

    check_limit(options.limit)
    order = {"sort": options.sort, "reverse": options.reverse, "limit": options.limit}
    wanted = filter_of(options)._replace(**order)
    with open_chosen(choose_source(options)) as source:
        try:
            found = [Listed(shown(job), origin) for job, origin in source.listed(wanted)]
            empty = "" if found or source.jobs(limit=1) else source.why_empty()
        finally:
            warn(source.problems)
        several = source.several
    if options.json:
        write(json.dumps([_plain(it, several) for it in found], indent=2) + "\n")
    elif options.csv:
        write(render_csv(found, several))
    elif found:
        write("\n".join(render(found)) + "\n")
    else:
        print(f"joblens: {empty or 'no job is like that'}", file=sys.stderr)
    return 0


def _tags(texts: list[str]) -> tuple[tuple[str, str], ...]:
    if not texts:
        return ()
    from joblens.run.facts import parse_tags

    return tuple(parse_tags(texts).items())


def _plain(found: Listed, several: bool) -> dict[str, Any]:
    return {**found.job._asdict(), **({"from": found.origin} if several else {})}


def render_csv(found: Sequence[Listed], several: bool = False) -> str:
    from joblens.core import csv_cells
    from joblens.store.catalog.listing import COLUMNS

    if not several:
        return csv_cells.render_csv(COLUMNS, (it.job[:-1] for it in found))
    return csv_cells.render_csv((*COLUMNS, "from"), ((*it.job[:-1], it.origin) for it in found))


def render(found: Sequence[Listed]) -> list[str]:
    users = len({job.user for job, _ in found}) > 1
    several = len({it.origin for it in found}) > 1
    rows = [
        (
            job.shown_id or job.id,
            _when(job.start),
            *([job.user] if users else []),
            job.name,
            _took(job),
            _cores(job),
            _known(job.memory_peak_bytes, render_bytes),
            _state(job),
            *([origin] if several else []),
        )
        for job, origin in found
    ]
    users_head, several_head = ["user"] * users, ["from"] * several
    head = ("job", "start", *users_head, "name", "took", "CPU", "memory", "state", *several_head)
    name = head.index("name")
    names = ("memory", "CPU", "start", "user", "took", "from")
    drop = [head.index(title) for title in names if title in head]
    left = (*range(name + 1), *range(head.index("state"), len(head)))
    return render_table(head, rows, left=left, shrink=name, drop=drop)


def _when(moment: float | None) -> str:
    """As `ls -l` has it: the time for what is recent, else the year."""
    if moment is None:
        return "-"
    recent = -86_400 < time.time() - moment < 180 * 86_400
    return time.strftime("%d %b %H:%M" if recent else "%d %b %Y", time.localtime(moment))


def _known(value: Any, show: Any) -> str:
    return "-" if value is None else str(show(value))


def _took(job: JobRow) -> str:
    """Nothing of a job that was never given a node."""
    from joblens.api.source import never_started

    return "-" if never_started(job) else _known(job.duration_seconds, render_seconds)


def _state(job: JobRow) -> str:
    """`FAILED 2`, `FAILED SIGKILL`; accounting has no exit code for what a signal ended."""
    ended = render_exit(job.exit_code) if job.state == "FAILED" and job.exit_code else ""
    return f"{job.state} {ended}".rstrip()


def _cores(job: JobRow) -> str:
    if job.cpu_seconds is None or not job.duration_seconds:
        return "-"
    used = render_load(job.cpu_seconds / job.duration_seconds)
    return f"{used}/{render_cores(job.cores)}" if job.cores else used
