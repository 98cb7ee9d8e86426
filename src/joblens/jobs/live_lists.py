"""The lists of jobs that wait, run or have just ended, which followers of batch systems write down.

live/HUB.json   in the store, replaced as a whole each time that the batch system was asked
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.core.errors import MalformedError
from joblens.core.files import make_folder, write_quickly
from joblens.core.json_file import parse_json
from joblens.core.named_tuple import NamedTuple
from joblens.schedulers.slurm.states import WAITING
from joblens.store.catalog.listing import Identity, JobRow
from joblens.store.home import Home
from joblens.store.location import safe_name

if TYPE_CHECKING:  # a listing without live jobs does not load them
    from joblens.schedulers.facts import BatchJob

# Where one gives a time at which such a job may begin.
_WAITING = WAITING | {"REQUEUED"}
OLD_SECONDS = 300.0  # who follows asks several times in this time
EXPIRED_SECONDS = 86_400.0  # after which the list of pending and running jobs is unknown
_MOST_WAITING = 20_000
_MOST_STEPS = 100  # of one that has just ended; its record has them all
_LARGEST = 1 << 28
_RECENT_NS = 100_000_000  # in which a file could be replaced without a new time
_TASKS = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")


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


class LiveIndex:
    """By id and by user: a question about one job does not search through all that wait."""

    def __init__(self, jobs: Iterable[BatchJob]) -> None:
        self.jobs = tuple(jobs)
        self.rows: dict[int, tuple[Identity, JobRow]] = {}  # of listings, by id() of the job
        self._by_user: dict[str, list[BatchJob]] = defaultdict(list)
        self._by_id: dict[str, list[BatchJob]] = defaultdict(list)
        self._arrays: dict[str, list[BatchJob]] = defaultdict(list)  # those whose tasks wait together
        for job in self.jobs:
            self._by_user[job.user].append(job)
            for id in {job.id, job.shown_id}:
                self._by_id[id].append(job)
            if job.array_task.startswith("["):
                self._arrays[job.array_job].append(job)

    def of(self, users: Collection[str]) -> list[BatchJob]:
        return [job for user in users for job in self._by_user.get(user, ())]

    def find(self, id: str) -> list[BatchJob]:
        """Return the jobs with this id, as their scheduler or as people write it.

        A task of an array that waits is one of many that wait together: 4200_5 is in 4200_[1-10%2].
        """
        found = self._by_id.get(id, [])
        array, _, task = id.partition("_")
        if not (task.isascii() and task.isdigit() and len(task) < 19):
            return list(found)
        tasks = (job for job in self._arrays.get(array, ()) if job not in found)
        return [*found, *(job for job in tasks if _has_task(job, int(task)))]

    def has(self, job: BatchJob) -> bool:
        return any((it.cluster, it.id) == (job.cluster, job.id) for it in self._by_id.get(job.id, ()))


def _has_task(job: BatchJob, task: int) -> bool:
    return any(_is_between(task, it) for it in job.array_task[1:-1].partition("%")[0].split(","))


def _is_between(number: int, tasks: str) -> bool:
    """Parse `7`, `1-10` or `1-10:2` (every other); Slurm ends a list that is too long in `...`."""
    found = _TASKS.fullmatch(tasks)
    if not found:
        return False
    first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
    return first <= number <= last and (number - first) % max(step, 1) == 0


_known: dict[Path, _Read] = {}  # of the store that was read last
_reading = threading.Lock()


def runs(job: BatchJob) -> bool:
    return job.start is not None and job.state not in _WAITING


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


def open_index(home: Home, problems: list[str]) -> LiveIndex:
    """Return the jobs of all these lists."""
    return _read(home, problems).jobs


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
    newest = sorted(lists, key=lambda it: it.time, reverse=True)
    if not newest:
        return
    from joblens.jobs.facts import identity

    known: set[Identity] = set()
    clusters: dict[str, float] = {}  # with the time of their last report
    for found in newest:
        newer = {name for name, when in clusters.items() if when - found.time > OLD_SECONDS}
        jobs, ended = (
            tuple(job for job in some if job.cluster not in newer and identity(job) not in known)
            for some in (found.jobs, found.ended)
        )
        known.update(identity(job) for job in (*jobs, *ended))
        for cluster in found.clusters():
            clusters.setdefault(cluster, found.time)
        yield found._replace(jobs=jobs, ended=ended)


def remove_expired(home: Home, own: str) -> None:
    """Remove the files of hubs that no longer exist. Raises OSError."""
    for path in (home.path / "live").glob("*.json"):
        with suppress(FileNotFoundError):
            if path != _file(home, own) and time.time() - path.stat().st_mtime > EXPIRED_SECONDS:
                path.unlink()
