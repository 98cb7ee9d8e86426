"""The report from a server that speaks PromQL, or from its data folder: `joblens job --store`."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.api.source import NotFoundError, not_found
from joblens.core.errors import JoblensError, ServerError, UsageError

if TYPE_CHECKING:
    from joblens.api.lookup import Tsdb
    from joblens.api.source import JobQuery
    from joblens.api.store import Store
    from joblens.core.config import Settings
    from joblens.jobs.from_tsdb import JobInputs
    from joblens.record.report import JobRecord
    from joblens.schedulers.facts import BatchJob
    from joblens.store.tsdb.promql import Server

CONFIGURED = "tsdb"  # the server in the settings
_SCHEDULER_SECONDS = 10.0
_asking = threading.Lock()


def report_from_tsdb(
    tsdb: Tsdb, where: str, query: JobQuery, store: Store, live: BatchJob | None, run: int | None
) -> JobRecord:
    """Report the running job, or a run of a stored one. Raises JoblensError."""
    if not tsdb.strict:
        return _report(tsdb, where, query, store, live, run)
    if not _asking.acquire(blocking=False):  # each question runs commands of the batch system
        raise ServerError("the batch system is being asked about another job; retry")
    try:
        return _report(tsdb, where, query, store, live, run)
    finally:
        _asking.release()


def _report(
    tsdb: Tsdb, where: str, query: JobQuery, store: Store, live: BatchJob | None, run: int | None
) -> JobRecord:
    from joblens.analysis.window_report import find_part, summarise_part
    from joblens.jobs.from_tsdb import summarise_from_server

    with _open(tsdb.settings(), where) as server:
        inputs = _inputs(query.id, store, live, None if tsdb.strict else server, run)
        if not store.scope.allows(inputs.facts.user, inputs.facts.account):
            raise NotFoundError(not_found(query.id))
        record, reader = summarise_from_server(server, inputs, tsdb.strict)
        part = find_part(record, query.between, query.step, query.first, query.last)
        return record if part is None else summarise_part(record, reader, part)


def _inputs(
    name: str, store: Store, live: BatchJob | None, server: Server | None, run: int | None
) -> JobInputs:
    """Take owner, start and end from the store, else from the batch system, else from the series. Whoever can
    write to the server can name any owner there: without `server` these do not count. Raises LookupError."""
    from joblens.jobs.from_tsdb import inputs_from_record, inputs_from_scheduler, inputs_from_series

    if live is not None and live.start is not None:
        return inputs_from_scheduler(live)
    with suppress(LookupError):
        return inputs_from_record(store.job(name, run))
    job = _ask_slurm(name)
    if job is not None and job.start is not None:
        return inputs_from_scheduler(job)
    if server is None:
        raise NotFoundError(not_found(name))
    try:
        return inputs_from_series(server, name)
    except LookupError as error:
        raise JoblensError(str(error.args[0])) from None


def _ask_slurm(name: str) -> BatchJob | None:
    if shutil.which("sacct") is None or name == "last":
        return None
    from joblens.schedulers.slurm.client import Slurm

    id, _, cluster = name.partition("@")
    with suppress(JoblensError):
        found = Slurm(_SCHEDULER_SECONDS).job(id)
        return found if found is not None and cluster in ("", found.cluster) else None
    return None


@contextmanager
def _open(settings: Settings, where: str) -> Iterator[Server]:
    from joblens.store.tsdb.promql import Server

    if "://" not in where and where != CONFIGURED:
        with _started(Path(where), settings) as server:
            yield server
        return
    chosen = settings.tsdb
    url = chosen.url if where == CONFIGURED else where
    if not url:
        raise UsageError("the setting tsdb.url is empty; set it, or pass --store URL")
    known = url.rstrip("/") == chosen.url.rstrip("/")  # the token is sent to no other server
    server = Server(url, chosen.token_file if known else "", chosen.ca_file if known else "")
    try:
        yield server
    finally:
        server.close()


@contextmanager
def _started(data: Path, settings: Settings) -> Iterator[Server]:
    """Start a server on an existing data folder."""
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
