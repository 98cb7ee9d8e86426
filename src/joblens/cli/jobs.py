from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from joblens.cli.table import progress, render_table, warn, write
from joblens.core.errors import UsageError
from joblens.core.units import render_bytes, render_cores, render_exit, render_seconds

if TYPE_CHECKING:
    from joblens.store.catalog.listing import JobRow

EXAMPLE = """example:
  joblens jobs
  joblens jobs --name 'train*' --since 7d --sort cpu --limit 50
  joblens jobs --tag model:resnet --json
  joblens jobs --partition gpu --state TIMEOUT --since 1d"""

STATES = (
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL",
    "DEADLINE", "REQUEUED", "RUNNING", "PENDING", "UNKNOWN", "CONFIGURING", "COMPLETING", "SUSPENDED",
    "STOPPED", "REQUEUE_HOLD", "SPECIAL_EXIT", "REVOKED", "ENDED",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from joblens.store.catalog.listing import SORTS

    parser.add_argument("--user", metavar="U", help="of this user")
    parser.add_argument("--name", metavar="PATTERN", help="of such a name, with * and ?")
    parser.add_argument(
        "--state",
        type=str.upper,
        choices=STATES,
        metavar="STATE",
        help="in Slurm's word; PENDING lists those that wait",
    )
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
        "--since", metavar="TIME", help="begun at or after: 2026-11-15T13:02, 2026-11-15, 7d ago"
    )
    parser.add_argument("--until", metavar="TIME", help="begun at or before, written in the same way")
    parser.add_argument("--sort", choices=tuple(SORTS), default="start", help="the newest and largest first")
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="0 for all (default 20)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument("--csv", action="store_true", help="as CSV")


def run(options: argparse.Namespace) -> int:
    from joblens.api.lookup import list_jobs
    from joblens.api.store import Store
    from joblens.store.catalog.listing import JobFilter, parse_time

    if options.limit < 0:
        raise UsageError(f"--limit is {options.limit}; it can be 0 for all, or more")
    wanted = JobFilter(
        options.user,
        options.name,
        options.state,
        parse_time(options.since),
        parse_time(options.until),
        _tags(options.tag),
        options.sort,
        options.reverse,
        options.limit,
        options.cluster,
        options.partition,
        options.account,
        options.node,
        options.array,
    )
    problems: list[str] = []
    with Store(progress=progress("days of records")) as store:
        found = list_jobs(store, wanted, problems)
        empty = not found and not store.jobs(limit=1)
        warn(store.problems + problems)
    if options.json:
        write(json.dumps([it._asdict() for it in found], indent=2) + "\n")
    elif options.csv:
        write(render_csv(found))
    elif found:
        write("\n".join(render(found)) + "\n")
    else:
        none = "no job is stored yet; begin with: joblens run -- CMD" if empty else "no job is like that"
        print(f"joblens: {none}", file=sys.stderr)
    return 0


def _tags(texts: list[str]) -> tuple[tuple[str, str], ...]:
    if not texts:
        return ()
    from joblens.run.facts import parse_tags

    return tuple(parse_tags(texts).items())


def render_csv(found: list[JobRow]) -> str:
    from joblens.core import csv_cells
    from joblens.store.catalog.listing import COLUMNS

    return csv_cells.render_csv(COLUMNS, (job[:-1] for job in found))


def render(found: list[JobRow]) -> list[str]:
    users = len({job.user for job in found}) > 1
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
        )
        for job in found
    ]
    head = ("job", "start", *(["user"] if users else []), "name", "took", "CPU", "memory", "state")
    name = head.index("name")
    drop = [head.index(title) for title in ("memory", "CPU", "start", "user", "took") if title in head]
    return render_table(head, rows, left=(*range(name + 1), len(head) - 1), shrink=name, drop=drop)


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
    used = f"{job.cpu_seconds / job.duration_seconds:.1f}"
    return f"{used}/{render_cores(job.cores)}" if job.cores else used
