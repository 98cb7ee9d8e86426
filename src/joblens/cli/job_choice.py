"""Jobs that a command compares: by their ids, or by name, tags and time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from joblens.core.errors import JoblensError, UsageError

if TYPE_CHECKING:
    from joblens.api.store import Store
    from joblens.record.report import JobRecord


def add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="PATTERN", help="jobs of such a name, with * and ?")
    parser.add_argument("--user", metavar="U", help="jobs of this user")
    parser.add_argument(
        "--tag", action="append", default=[], metavar="K:V", help="with this tag; can be repeated"
    )
    parser.add_argument(
        "--annotation", action="append", default=[], metavar="K:V", help="with this annotation; the same"
    )
    parser.add_argument("--since", metavar="TIME", help="begun at or after: 2026-11-15, 7d ago")
    parser.add_argument("--until", metavar="TIME", help="begun at or before")


def check_limit(limit: int) -> None:
    """Raises UsageError."""
    if limit < 0:
        raise UsageError(f"--limit is {limit}; it can be 0 for all, or more")


def load_named(store: Store, names: list[str]) -> list[JobRecord]:
    """Raises JoblensError that says which is not there."""
    try:
        return [store.job(name) for name in names]
    except LookupError as error:
        raise JoblensError(str(error.args[0])) from None


def load_chosen(store: Store, options: argparse.Namespace) -> list[JobRecord]:
    """Those with these ids, or all that the filters select, in order of their start."""
    from joblens.cli.jobs import _tags
    from joblens.store.catalog.listing import JobFilter, parse_time

    wanted = JobFilter(
        options.user,
        options.name,
        since=parse_time(options.since),
        until=parse_time(options.until),
        tags=_tags(options.tag),
        annotations=_tags(options.annotation),
        limit=0,
    )
    if options.ids:
        if wanted != JobFilter(limit=0):
            raise UsageError("write ids of jobs or filters, not both")
        return load_named(store, options.ids)
    if wanted == JobFilter(limit=0):
        raise UsageError("write ids of jobs, or a filter such as --name or --tag")
    rows = sorted(store.jobs(wanted), key=lambda row: row.start or 0.0)
    return [store.report((row.cluster, row.id, row.start or 0.0)) for row in rows]
