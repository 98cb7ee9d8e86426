"""Jobs that wait, run or have just ended: the follower writes them down, listings and reports show them.

live/HUB.json   in the store, replaced as a whole each time that the batch system was asked
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from joblens.core.errors import MalformedError
from joblens.core.files import list_names, make_folder, write_quickly
from joblens.core.json_file import parse_json
from joblens.jobs.live_index import LiveIndex
from joblens.schedulers.slurm.fields import ENDED
from joblens.store.catalog.cursor import Cursor, is_after, parse_cursor, sort_rows
from joblens.store.catalog.index import Run
from joblens.store.catalog.listing import Identity, JobFilter, JobRow, name_nodes
from joblens.store.catalog.scope import ALL, Scope
from joblens.store.home import Home
from joblens.store.location import safe_name

if TYPE_CHECKING:  # a listing without live jobs does not load them
    from joblens.record.report import JobRecord
    from joblens.schedulers.facts import BatchJob
    from joblens.store.lake.lake import Lake

# In the words of the batch systems, where one gives a time at which such a job may begin.
WAITING = frozenset("PENDING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT".split())
OLD_SECONDS = 300.0  # who follows asks several times in this time
EXPIRED_SECONDS = 86_400.0  # after which the list of pending and running jobs is unknown
_OVER = ENDED | {"ENDED"}  # the exit status of an inferred job is unknown
_MOST_WAITING = 20_000
_MOST_STEPS = 100  # of one that has just ended; its record has them all
_LARGEST = 1 << 28
_LAG = 60.0  # seconds after which a sample should be there
_RECENT_NS = 100_000_000  # in which a file could be replaced without a new time
_ATTEMPTS = 3  # to read a lake and a journal at one moment
_ON_THEIR_WAY = "it has just ended: its record is made when all samples have arrived"


FindStored = Callable[[Iterable[Identity]], Collection[Identity]]


class Live(NamedTuple):
    time: float  # when the batch system was asked
    jobs: tuple[BatchJob, ...]
    left_out: int = 0  # jobs that wait, beyond those that are kept
    ended: tuple[BatchJob, ...] = ()  # that have no record yet; their exit status may be unknown
    cluster: str = ""  # whose jobs they are, if that is known

    @property
    def is_old(self) -> bool:
        return time.time() - self.time > OLD_SECONDS

    def clusters(self) -> set[str]:
        return {self.cluster, *(job.cluster for job in (*self.jobs, *self.ended))} - {""}


class _File(NamedTuple):
    """A list is replaced as a whole: another one differs in one of these."""

    name: str
    changed: int  # in nanoseconds
    inode: int
    size: int


_known: dict[Path, _Read] = {}  # of the store that was read last
_reading = threading.Lock()


def runs(job: BatchJob) -> bool:
    return job.start is not None and job.state not in WAITING


def has_run(job: BatchJob) -> bool:
    """Or runs: also one that was put back into the queue, before its record is made."""
    return runs(job) or (job.start is not None and job.end is not None)


def save_live(
    home: Home,
    name: str,
    jobs: Sequence[BatchJob],
    now: float,
    ended: Iterable[BatchJob] = (),
    cluster: str = "",
) -> None:
    """Write without fsync: it is replaced in half a minute."""
    running = [job for job in jobs if runs(job)]
    waiting = [job for job in jobs if not runs(job)]
    kept = running + waiting[:_MOST_WAITING]
    found = {
        "version": 1,
        "time": now,
        "cluster": cluster,
        "jobs": [job.to_dict() for job in kept],
        "left_out": len(jobs) - len(kept),
        "ended": [job.replace(steps=job.steps[:_MOST_STEPS]).to_dict() for job in ended],
    }
    path = _file(home, name)
    make_folder(path.parent)
    write_quickly(str(path), json.dumps(found).encode("utf-8", "replace"))


def load_live(home: Home, name: str) -> Live:
    """FileNotFoundError, or MalformedError."""
    return _load(_file(home, name))


def _file(home: Home, name: str) -> Path:
    return home.path / "live" / f"{safe_name(name)}.json"


def _load(path: Path) -> Live:
    from joblens.record.fields import read
    from joblens.schedulers.facts import BatchJob

    try:
        with path.open("rb") as file:
            found = parse_json(file.read(_LARGEST))
        if found["version"] != 1:
            raise ValueError(f"version {found['version']!r:.20}")
        jobs, ended = (read(found.get(name, []), tuple[BatchJob, ...]) for name in ("jobs", "ended"))
        cluster = str(found.get("cluster", ""))  # which earlier versions did not write
        return Live(float(found["time"]), jobs, int(found["left_out"]), ended, cluster)
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedError(str(path), f"no list of live jobs: {error!s:.100}") from None


class _Read(NamedTuple):
    """The lists of a store, as they were read from these files."""

    files: tuple[_File, ...]
    lists: tuple[Live, ...]
    problems: list[str]
    jobs: LiveIndex


def load_all(home: Home, problems: list[str]) -> tuple[Live, ...]:
    """Return the lists of all followers that write to this store, the newest first. Each job is in one of
    them. Jobs of a cluster that another follower has reported much later are left out."""
    return _read(home, problems).lists


def _read(home: Home, problems: list[str]) -> _Read:
    """Read the lists again only if a file has changed."""
    with _reading:  # of several threads only one has to read them
        files = tuple(_list_files(home))
        found = _known.get(home.path)
        if found is None or found.files != files:
            unreadable: list[str] = []
            lists = tuple(_merge(_each(home, files, unreadable)))
            jobs = (job for live in lists for job in (*live.jobs, *live.ended))
            found = _Read(files, lists, unreadable, LiveIndex(jobs))
            _known.clear()
            if all(time.time_ns() - it.changed > _RECENT_NS for it in files):
                _known[home.path] = found
    problems += found.problems
    for live in found.lists:
        if live.is_old and live.jobs:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(live.time))
            problems.append(f"the list of pending and running jobs is from {when}: is the hub running?")
    return found


def _list_files(home: Home) -> Iterator[_File]:
    for path in sorted((home.path / "live").glob("*.json")):
        with suppress(FileNotFoundError):
            status = path.stat()
            if time.time() - status.st_mtime <= EXPIRED_SECONDS:
                yield _File(path.name, status.st_mtime_ns, status.st_ino, status.st_size)


def _each(home: Home, files: Iterable[_File], problems: list[str]) -> Iterator[Live]:
    for file in files:
        try:
            yield _load(home.path / "live" / file.name)
        except FileNotFoundError:
            continue
        except MalformedError as error:
            problems.append(str(error))


def _merge(lists: Iterable[Live]) -> Iterator[Live]:
    from joblens.jobs.facts import identity

    known: set[Identity] = set()
    clusters: dict[str, float] = {}  # with the time of their last report
    for found in sorted(lists, key=lambda it: it.time, reverse=True):
        newer = {name for name, when in clusters.items() if when - found.time > OLD_SECONDS}
        jobs, ended = (
            tuple(job for job in some if job.cluster not in newer and identity(job) not in known)
            for some in (found.jobs, found.ended)
        )
        known.update(identity(job) for job in (*jobs, *ended))
        for cluster in found.clusters():
            clusters.setdefault(cluster, found.time)
        yield found._replace(jobs=jobs, ended=ended)


def _is_expired(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > EXPIRED_SECONDS


def remove_expired(home: Home, own: str) -> None:
    """Remove the files of hubs that no longer exist. Raises OSError."""
    for path in (home.path / "live").glob("*.json"):
        with suppress(FileNotFoundError):
            if path != _file(home, own) and _is_expired(path):
                path.unlink()


def add_live(
    home: Home,
    wanted: JobFilter,
    stored: list[JobRow],
    problems: list[str],
    now: float | None = None,
    more: Iterable[BatchJob] = (),
    scope: Scope = ALL,
    find_stored: FindStored | None = None,
) -> list[JobRow]:
    """Add running and just ended jobs to the stored ones, or pending ones if requested, and sort all.
    `more`: running jobs without a follower. `find_stored` tells which have a record, also on another page or
    outside of the filter; without it these are the rows in `stored`."""
    cursor = parse_cursor(wanted)
    now = (cursor.now if cursor else 0.0) or (time.time() if now is None else now)
    followed = {
        identity: row
        for identity, row in _followed(home, wanted, problems, now, more, scope)
        if _is_on_page(row, wanted, scope, cursor)
    }
    ran = (identity for identity, row in followed.items() if row.state != "PENDING")  # others have no record
    known = find_stored(ran) if find_stored else {(it.cluster, it.id, it.start) for it in stored}
    started = [row for row in _started_here(home, wanted, now) if _is_on_page(row, wanted, scope, cursor)]
    found = [*started, *(row for identity, row in followed.items() if identity not in known)]
    return sort_rows([*found, *stored], wanted)[: wanted.limit or None] if found else stored


def _is_on_page(row: JobRow, wanted: JobFilter, scope: Scope, cursor: Cursor | None) -> bool:
    return scope.allows(row.user, row.account) and (cursor is None or is_after(row, cursor, wanted))


def _started_here(home: Home, wanted: JobFilter, now: float) -> list[JobRow]:
    """Jobs that `joblens run` runs."""
    if not list_names(str(home.incoming)):
        return []
    from joblens.jobs.running import as_facts, find_running, has_tags, summarise_running

    rows = []
    for found in find_running(home):
        job = as_facts(found)
        if _is_meant(job, wanted) and has_tags(found, wanted.tags):
            used, row = summarise_running(found).used, _row(job, now)
            rows.append(
                row._replace(
                    cpu_seconds=used.cpu_seconds,
                    memory_peak_bytes=used.memory_peak_bytes,
                    processes=used.processes,
                    # as of the same moment
                    duration_seconds=row.duration_seconds
                    if used.cpu_seconds is None
                    else used.duration_seconds,
                    tags=found.facts.tags or {},
                )
            )
    return rows


def _followed(
    home: Home,
    wanted: JobFilter,
    problems: list[str],
    now: float,
    more: Iterable[BatchJob],
    scope: Scope,
) -> list[tuple[Identity, JobRow]]:
    """Return the jobs of batch systems and of user mode, also those that have got their record meanwhile."""
    if wanted.tags:  # which only the jobs of `joblens run` have
        return []
    index = _read(home, problems).jobs
    users = _users(wanted, scope)
    reported = index.jobs if users is None else index.of(users)
    every = [*reported, *(job for job in more if not index.has(job))]
    if not every:
        return []
    from joblens.jobs.facts import identity

    return [
        (identity(job), _row(job, now))
        for job in every
        if (runs(job) or job.state == wanted.state) and _is_meant(job, wanted)
    ]


def _users(wanted: JobFilter, scope: Scope) -> Collection[str] | None:
    """Return the users whose jobs can be meant; None if these are all."""
    if wanted.user is not None:
        return {wanted.user}
    return None if scope.everything or scope.accounts else scope.users


def _is_meant(job: BatchJob, wanted: JobFilter) -> bool:
    start = (job.start if runs(job) else job.submit) or 0.0
    return (
        wanted.user in (None, job.user)
        and wanted.state in (None, job.state)
        and wanted.cluster in (None, job.cluster)
        and wanted.partition in (None, job.partition)
        and wanted.account in (None, job.account)
        and wanted.array in (None, job.array_job)
        and (wanted.node is None or wanted.node in job.nodes)
        and (wanted.name is None or fnmatchcase(job.name, wanted.name.replace("[", "[[]")))
        and (wanted.since is None or start >= wanted.since)
        and (wanted.until is None or start <= wanted.until)
    )


def _row(job: BatchJob, now: float) -> JobRow:
    """As the listing of stored jobs has them."""
    from joblens.jobs.facts import first

    start = job.start if runs(job) else None
    until = now if job.end is None or job.state not in _OVER else job.end
    return JobRow(
        job.cluster,
        job.id,
        start,
        name=job.name,
        user=job.user,
        node=job.nodes[0] if job.nodes else "",
        source=job.scheduler,
        state=job.state,
        duration_seconds=None if start is None else max(until - start, 0.0),
        cores=first(job.allocated.cores, job.asked.cores),
        verdict="" if runs(job) else job.reason,
        shown_id=job.shown_id,
        nodes=name_nodes(job.nodes) if job.nodes else "",
        partition=job.partition,
        account=job.account,
        tags={},
    )


def find_live(home: Home, name: str, problems: list[str], scope: Scope = ALL) -> list[BatchJob]:
    """By the number under which it runs, or as people write it; also ID@CLUSTER. The newest is the last.

    There are several where one that was put back into the queue has no record of its first run yet.
    """
    id, _, cluster = name.partition("@")
    every = _read(home, problems).jobs.find(id) if id else []
    found = [job for job in every if cluster in ("", job.cluster) and scope.allows(job.user, job.account)]
    return sorted(found, key=lambda job: job.start or 0.0)


def add_runs(stored: list[Run], live: Iterable[BatchJob]) -> list[Run]:
    """To those that have a record, those that run or have none yet; the oldest first."""
    from joblens.jobs.facts import identity

    known = {(run.cluster, run.id, run.start) for run in stored}
    began = [job for job in live if has_run(job) and identity(job) not in known]
    more = [Run(*identity(job), job.end, job.state) for job in began]
    return sorted([*stored, *more], key=lambda run: (run.start, run.id))


class OpenLake(Protocol):
    """Opens the lake with what is still in a journal; it may raise MovedError while it is used."""

    def __call__(
        self, home: Home, nodes: Collection[tuple[str, str]], problems: list[str]
    ) -> AbstractContextManager[Lake]: ...


def summarise_live(home: Home, job: BatchJob, open_lake: OpenLake | None = None) -> JobRecord:
    """Summarise a running job. Without `open_lake`, of what a hub's sink has stored."""
    from joblens.store.lake.lake import Lake, MovedError

    if open_lake is None:
        return _summarise(job, Lake(home.lake))
    nodes = {(job.cluster, node) for node in job.nodes}
    for _ in range(_ATTEMPTS):
        problems: list[str] = []
        with suppress(MovedError), open_lake(home, nodes, problems) as lake:
            record = _summarise(job, lake)
            record.data.problems += problems
            return record
    return _summarise(job, Lake(home.lake))


def _summarise(job: BatchJob, lake: Lake) -> JobRecord:
    from joblens.analysis.summary import summarise
    from joblens.jobs.facts import INTERVAL, end_of, facts_of
    from joblens.store.reader import LakeReader

    end = end_of(job, [_ON_THEIR_WAY]) if job.state in _OVER and job.end is not None else None
    facts = facts_of(job, INTERVAL)
    facts.known_until = _known_until(job)
    record = summarise(facts, end, LakeReader(lake))
    if end is None and not record.data.samples:  # its end is as far as samples go, which is not at all
        until = time.time() if job.end is None else min(job.end, time.time())
        record.used.duration_seconds = max(until - record.job.start, 0.0)
    record.data.problems += lake.problems
    return record


def _known_until(job: BatchJob) -> float | None:
    """It runs, so what is not in samples by now is missing, and not still to come."""
    if not runs(job) or job.state == "UNKNOWN":
        return None
    return min(time.time() - _LAG, job.end if job.end is not None else float("inf"))
