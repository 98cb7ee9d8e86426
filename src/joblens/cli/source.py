"""Options that say where jobs are read from: a store, or a service."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from joblens.cli.table import progress

if TYPE_CHECKING:
    from joblens.api.source import JobSource
    from joblens.api.sources import Choice


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
