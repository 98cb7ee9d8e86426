"""Jobs that a command compares: by their ids, or by the filters of `joblens jobs`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from joblens.core.errors import JoblensError, UsageError

if TYPE_CHECKING:
    from joblens.api.source import JobSource
    from joblens.record.report import JobRecord


def check_limit(limit: int) -> None:
    """Raises UsageError."""
    if limit < 0:
        raise UsageError(f"--limit is {limit}; it can be 0 for all, or more")


def add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", dest="numbers", nargs="+", default=[], metavar="N",
        help="of several runs with one ID these, or all; of several IDs one number each",
    )  # fmt: skip


def load_named(source: JobSource, names: list[str], runs: list[str]) -> list[JobRecord]:
    """Raises JoblensError that says which is not there."""
    from joblens.api.comparing import load_named

    try:
        return load_named(source, names, runs)
    except LookupError as error:
        raise JoblensError(str(error.args[0])) from None


def load_chosen(source: JobSource, options: argparse.Namespace) -> list[JobRecord]:
    """Those with these ids, or all that the filters select, in order of their start."""
    from joblens.api.comparing import load_filtered
    from joblens.cli.jobs import filter_of
    from joblens.store.catalog.listing import JobFilter

    wanted = filter_of(options)
    if not options.ids and options.numbers:
        raise UsageError("--run needs ids of jobs")
    if options.ids:
        if wanted != JobFilter():
            raise UsageError("write ids of jobs or filters, not both")
        return load_named(source, options.ids, options.numbers)
    if wanted == JobFilter():
        raise UsageError("write ids of jobs, or a filter such as --name or --tag")
    return load_filtered(source, wanted)
