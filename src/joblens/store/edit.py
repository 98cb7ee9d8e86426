"""Changes of stored jobs by people: tags, annotations, deletion. A change is a new version of the record.

The owner of a job may change it, and so may the staff: root and the owner of the store.
"""

from __future__ import annotations

import math
import os
import pwd
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from joblens.core.errors import JoblensError, OutsideError, UsageError
from joblens.store import ingest
from joblens.store.edits import JUDGED, Change, add_edit, apply_change, find_edits, remove_edits
from joblens.store.home import Home
from joblens.store.location import safe_name
from joblens.store.saving import changing, save_record

if TYPE_CHECKING:
    from joblens.record.report import Job, JobRecord
    from joblens.store.catalog.listing import Identity
    from joblens.store.catalog.queries import JobCatalog
    from joblens.store.lake.lake import Lake

_LONGEST_NAME, _LONGEST_VALUE = 256, 65_536
_MOST = 1000  # names of one job


class NotAllowedError(JoblensError):
    """The job belongs to another user."""


def parse_pairs(texts: list[str]) -> dict[str, str]:
    """`name:value` or `name=value`. Raises UsageError."""
    found: dict[str, str] = {}
    for text in texts:
        places = [at for at in (text.find(":"), text.find("=")) if at > 0]
        name, value = (text[: min(places)].strip(), text[min(places) + 1 :].strip()) if places else ("", "")
        if not name:
            raise UsageError(f"{text!r:.60} is not name:value")
        if len(name) > _LONGEST_NAME or len(value) > _LONGEST_VALUE or not (name + value).isprintable():
            raise UsageError(f"the name or the value of {name!r:.60} is too long, or not printable")
        found[name] = value
    return found


def change(
    home: Home,
    find: Callable[[], JobRecord],
    part: str,
    pairs: Mapping[str, str],
    remove: list[str],
    replace: bool,
) -> dict[str, str]:
    """Change `tags` or `annotations` of a job: merged with those that it has, or in place of them.

    The record of a job that has not ended is not stored: it gets them when it is.
    Return what it has now. Raises NotAllowedError, LookupError and OSError.
    """
    wanted = Change(add=dict(pairs), remove=remove, in_place=replace)
    with changing(home):
        record = find()
        job = record.job
        check_allowed(home, job)
        before: dict[str, str] = getattr(job, part) or {}
        now = changed(before, wanted, part)
        run = (job.cluster, job.id, job.start)
        if not record.written or find_edits(home.path, run) is not None:
            add_edit(home.path, run, part, wanted)
        if record.written and now != before:
            setattr(job, part, now)
            # After what it changes, also if that was written by a host whose clock is ahead.
            record.written = max(time.time_ns(), record.written + 1)
            waits = save_record(home, record)
            if waits:
                raise OutsideError(waits)
    return now


def changed(before: Mapping[str, str], wanted: Change, part: str) -> dict[str, str]:
    """Raises UsageError if these are too many, or one of them is not for people."""
    if part == "annotations" and JUDGED in (*wanted.add, *wanted.remove):
        raise UsageError(f"the annotation {JUDGED!r} follows from the models of a job: choose another name")
    now = apply_change(before, wanted, part)
    if len(now) > _MOST:
        raise UsageError(f"a job can have {_MOST} {part}, and not {len(now)}")
    return now


def delete(home: Home, catalog: JobCatalog, lake: Lake, record: JobRecord, until: float = math.inf) -> None:
    """Delete a job: its rows in the lake, then all versions of its record. Repeated, it removes the rest.

    `until`: when a run with the same id began that has no record yet.
    Raises NotAllowedError, OutsideError and OSError.
    """
    job = record.job
    check_allowed(home, job)
    if not record.written:
        raise JoblensError(f"job {job.shown_id} has not ended yet")
    delete_runs(
        home, catalog, lake, [Stored(job.cluster, job.id, job.start, job.last, bool(job.nodes), until)]
    )


class Stored(NamedTuple):
    """A run of a job that has a record."""

    cluster: str
    id: str
    start: float
    last: float  # its end, or its start where that is unknown
    has_nodes: bool = True  # what has none was never sampled under the name of its cluster
    until: float = math.inf  # the start of a run with the same id that has no record yet

    @property
    def identity(self) -> Identity:
        return self.cluster, self.id, self.start


def delete_runs(home: Home, catalog: JobCatalog, lake: Lake, runs: Sequence[Stored]) -> None:
    """Delete several jobs: each file is rewritten once. The caller knows that this is allowed."""
    from joblens.store.lake.removal import Removed, remove_jobs

    with changing(home):
        removed = []
        for run in runs:
            forget_archives(home, run.id)
            _remove_pending(home, run)
            after, before = catalog.borders(run.identity, run.last)
            cluster = run.cluster if run.has_nodes else ""
            removed.append(Removed(run.id, run.start, run.last, cluster, after, min(before, run.until)))
        remove_jobs(lake, removed)
        remove_edits(home.path, [run.identity for run in runs])
        catalog.remove([run.identity for run in runs])


def forget_archives(home: Home, job: str) -> None:
    """Forget which archives of a job were stored, so that each of them can be stored again."""
    with suppress(FileNotFoundError):
        shutil.rmtree(home.submitted / safe_name(job))


def _remove_pending(home: Home, run: Stored) -> None:
    pending = ingest.load_job(home.waiting / safe_name(run.id))
    if pending is not None and (pending.end or pending.facts).start == run.start:
        ingest.remove(pending.folder)


def check_allowed(home: Home, job: Job) -> None:
    """Raises NotAllowedError."""
    if not is_allowed(home, job.user):
        raise NotAllowedError(
            f"job {job.shown_id} is {job.user}'s: only they and the owner of the store may change it"
        )


def is_allowed(home: Home, user: str) -> bool:
    """Whether the caller may change jobs of a user."""
    return is_staff(home) or user == own_name()


def is_staff(home: Home) -> bool:
    return os.geteuid() in (0, home.path.stat().st_uid)


def own_name() -> str | None:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return None
