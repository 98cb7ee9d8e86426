from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from joblens.cli import job_ends
from joblens.cli import source as sources
from joblens.cli.source import choose_source, open_chosen
from joblens.cli.table import warn, write
from joblens.core.errors import JoblensError, OutsideError, UsageError

if TYPE_CHECKING:
    from joblens.api.lookup import Tsdb
    from joblens.api.sources import Choice
    from joblens.core.config import Settings
    from joblens.schedulers.facts import BatchJob

EXAMPLE = """example:
  joblens job last
  joblens job r1nfmafbw90t4 --json
  joblens job 4200_7
  joblens job 4242@cluster2
  joblens job 4242 --run 1
  joblens job 4242 --server https://login.example.org:9479 --token-file joblens.token
  joblens job 4242 --store http://127.0.0.1:9090
  joblens job last --between "time steps"
  joblens job last --processes --sort memory --limit 5
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
    job_ends.add_arguments(parser)
    sources.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from joblens.api.source import JobQuery

    query = JobQuery(options.id, options.number, options.between, options.step, options.first, options.last)
    choice = choose_source(options)
    view = job_ends.chosen_view(options)
    if options.store is not None and not choice.own:
        raise UsageError("--store and --server are mutually exclusive")
    if options.store is not None:  # which a service does not have
        choice = choice._replace(server=None)
    session = _settle(options.id, choice) if choice.own else None
    with open_chosen(choice) as source:
        if view:
            job_ends.show(view, source, options)
            warn(source.problems)
            return 0
        try:
            record = source.find(query, tsdb=lambda: _tsdb(options), session=session)
        except LookupError as error:
            raise JoblensError(str(error.args[0])) from None
        finally:
            warn(source.problems)
    if options.json:
        from joblens.api.lookup import plain_report

        write(json.dumps(plain_report(record), indent=2) + "\n")
    else:
        from joblens.reports.style import Style
        from joblens.reports.text import render_report

        write(render_report(record, Style.of(sys.stdout)))
    return 0


def _tsdb(options: argparse.Namespace) -> Tsdb:
    from joblens.api.lookup import Tsdb

    return Tsdb(_settings, options.store or "", options.store is not None)


def _settings() -> Settings:
    from joblens.cli.settings import load_agent
    from joblens.core.config_files import load_layers

    return load_agent(load_layers(None, os.environ))


def _settle(name: str, choice: Choice) -> BatchJob | None:
    """Return the facts of a job whose user mode runs; finalise one that has ended."""
    from joblens.store.home import find_home

    try:
        home = find_home(choice.home)
    except OutsideError:  # a user without a home folder, who can read the service
        if choice.server is None:
            raise
        return None
    if not (home.path / "usermode").is_dir():
        return None
    from joblens.usermode.finish import settle

    return settle(home, name, lambda words: warn([words]))
