"""The jobs that a command reads: from a store or a service, by ids or by the filters of `joblens jobs`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from joblens.cli.table import progress
from joblens.core.errors import JoblensError, UsageError

if TYPE_CHECKING:
    from joblens.api.source import JobSource
    from joblens.api.sources import Choice
    from joblens.record.report import JobRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", metavar="DIR", help="only from the store in this folder")
    parser.add_argument(
        "--server", metavar="PATH|URL", help="only from this service: its socket, or https://HOST:PORT"
    )
    parser.add_argument("--token-file", metavar="F", help="file with your token for the service")
    parser.add_argument("--ca-file", metavar="F", help="certificates of the CA, for https")


def choose_source(options: argparse.Namespace) -> Choice:
    from joblens.api.sources import choose

    return choose(options.home, options.server, options.token_file, options.ca_file)


def open_chosen(choice: Choice) -> JobSource:
    from joblens.api.sources import open_source

    return open_source(choice, progress("days of records"))


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
