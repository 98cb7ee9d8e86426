"""`joblens job --store`: the report from a server that speaks PromQL, or from a folder that one has left."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.core.errors import JoblensError, UsageError

if TYPE_CHECKING:
    from joblens.api import Store
    from joblens.core.config import Settings
    from joblens.jobs.from_tsdb import Told
    from joblens.record.report import JobRecord
    from joblens.schedulers.facts import BatchJob
    from joblens.store.tsdb.promql import Server

CONFIGURED = "tsdb"  # the server that the settings name
_SCHEDULER_SECONDS = 10.0


def report_elsewhere(
    options: argparse.Namespace, store: Store, live: BatchJob | None, where: str, run: int | None = None
) -> JobRecord:
    """Report the running job, or this run of the stored ones. Raises JoblensError."""
    from joblens.analysis.window_report import find_part, summarise_part
    from joblens.jobs.from_tsdb import summarise_elsewhere

    with _open(where) as server:
        record, reader = summarise_elsewhere(server, _told(options.id, store, live, server, run))
        part = find_part(record, options.between, options.step, options.first, options.last)
        return record if part is None else summarise_part(record, reader, part)


def configured() -> str:
    """The server that the settings name, if they do."""
    return _settings().tsdb.url


def _told(name: str, store: Store, live: BatchJob | None, server: Server, run: int | None) -> Told:
    """Find the inputs of the summary in the store, else in the batch system, else in the series."""
    from joblens.jobs.from_tsdb import told_by_record, told_by_scheduler, told_by_series

    if live is not None and live.start is not None:
        return told_by_scheduler(live)
    with suppress(LookupError):
        return told_by_record(store.job(name, run))
    job = _ask_slurm(name)
    if job is not None and job.start is not None:
        return told_by_scheduler(job)
    try:
        return told_by_series(server, name)
    except LookupError as error:
        raise JoblensError(str(error.args[0])) from None


def _ask_slurm(name: str) -> BatchJob | None:
    if shutil.which("sacct") is None or name == "last":
        return None
    from joblens.schedulers.slurm.client import Slurm

    with suppress(JoblensError):
        return Slurm(_SCHEDULER_SECONDS).job(name.partition("@")[0])
    return None


@contextmanager
def _open(where: str) -> Iterator[Server]:
    from joblens.store.tsdb.promql import Server

    settings = _settings()
    if "://" not in where and where != CONFIGURED:
        with _started(Path(where), settings) as server:
            yield server
        return
    chosen = settings.tsdb
    url = chosen.url if where == CONFIGURED else where
    if not url:
        raise UsageError("no setting tsdb.url names a server; --store URL does")
    known = url.rstrip("/") == chosen.url.rstrip("/")  # a token goes to the server that it is for
    server = Server(url, chosen.token_file if known else "", chosen.ca_file if known else "")
    try:
        yield server
    finally:
        server.close()


@contextmanager
def _started(data: Path, settings: Settings) -> Iterator[Server]:
    """A server on a folder that one has left."""
    from joblens.store.tsdb.promql import Server
    from joblens.usermode.local_server import LocalServer, kind_of

    kind = kind_of(data)
    chosen = settings.usermode._replace(**{f"{kind}_datadir": str(data.resolve()), f"{kind}_logfile": ""})
    with tempfile.TemporaryDirectory(prefix="joblens-") as folder:
        local = LocalServer(kind, Path(folder), chosen)
        try:
            found = local.start()
            server = Server(found.url, found.token_file)
            yield server
            server.close()
        finally:
            local.stop()


def _settings() -> Settings:
    from joblens.cli.settings import load_agent
    from joblens.core.config_files import load_layers

    return load_agent(load_layers(None, os.environ))
