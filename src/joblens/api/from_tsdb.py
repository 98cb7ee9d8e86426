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
from joblens.core.errors import JoblensError, OutsideError, ServerError, UsageError

if TYPE_CHECKING:
    from joblens.api.lookup import Tsdb
    from joblens.api.source import JobQuery
    from joblens.api.store import Store
    from joblens.core.config import Settings
    from joblens.jobs.from_tsdb import JobInputs
    from joblens.record.report import JobRecord
    from joblens.schedulers.facts import BatchJob
    from joblens.store.catalog.scope import Scope
    from joblens.store.tsdb.promql import Server

CONFIGURED = "tsdb"  # the server in the settings
_SCHEDULER_SECONDS = 10.0
_MOST_AT_ONCE = 4  # lookups for users: each runs commands of the batch system


class BusyError(ServerError):
    """Too many jobs are being looked up."""


class SchedulerError(ServerError):
    """The batch system, which knows whose a job is, does not answer."""


class Lookups:
    """Lookups in flight: one of each viewer, and few in all."""

    def __init__(self, most: int = _MOST_AT_ONCE) -> None:
        self._most = most
        self._viewers: set[Scope] = set()
        self._lock = threading.Lock()

    @contextmanager
    def of(self, viewer: Scope) -> Iterator[None]:
        """Raises BusyError at once."""
        with self._lock:
            if viewer in self._viewers:
                raise BusyError("another job is being looked up for you; retry")
            if len(self._viewers) >= self._most:
                raise BusyError("too many jobs are being looked up; retry")
            self._viewers.add(viewer)
        try:
            yield
        finally:
            with self._lock:
                self._viewers.discard(viewer)


_lookups = Lookups()


def report_from_tsdb(
    tsdb: Tsdb, where: str, query: JobQuery, store: Store, live: BatchJob | None, run: int | None
) -> JobRecord:
    """Report the running job, or a run of a stored one. Raises JoblensError."""
    if not tsdb.strict:
        return _report(tsdb, where, query, store, live, run)
    with _lookups.of(store.scope):
        return _report(tsdb, where, query, store, live, run)


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
    """Take owner, start and end from the store, else from the batch system, else from the series. Any writer
    of the server can name any owner there: without `server` these do not count. Raises LookupError."""
    from joblens.jobs.from_tsdb import inputs_from_record, inputs_from_scheduler, inputs_from_series

    if live is not None and live.start is not None:
        return inputs_from_scheduler(live)
    with suppress(LookupError):
        return inputs_from_record(store.job(name, run))
    job = _ask_slurm(name, None if server else store.scope)
    if job is not None and job.start is not None:
        return inputs_from_scheduler(job)
    if server is None:
        raise NotFoundError(not_found(name))
    try:
        return inputs_from_series(server, name)
    except LookupError as error:
        raise JoblensError(str(error.args[0])) from None


def _ask_slurm(name: str, scope: Scope | None) -> BatchJob | None:
    """`scope`: only of jobs in it; raises SchedulerError if Slurm does not answer. Without, a job that Slurm
    does not report may still have series."""
    if shutil.which("sacct") is None or name == "last":
        return None
    from joblens.schedulers.slurm.client import Slurm

    id, _, cluster = name.partition("@")
    slurm = Slurm(_SCHEDULER_SECONDS)
    try:
        found = slurm.job(id) if scope is None else slurm.job_among(id, scope.users, scope.accounts)
    except OutsideError as error:
        if scope is None:
            return None
        raise SchedulerError("the batch system does not answer; retry later") from error
    return found if found is not None and cluster in ("", found.cluster) else None


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
