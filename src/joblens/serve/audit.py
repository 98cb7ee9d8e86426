"""The audit log: a line of JSON for each read of another person's job by staff."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from joblens.core.errors import sentence
from joblens.record.report import Job
from joblens.schedulers.facts import BatchJob
from joblens.serve.errors import ApiError
from joblens.serve.policy import Viewer

_LIVE_SECONDS = 3600.0


class Entry(Struct, frozen=True, omit_defaults=True):
    time: str
    viewer: str
    uid: int
    role: str
    how: str
    route: str
    owner: str | Sequence[str]  # of a listing: of all jobs in it that are another person's
    cluster: str = ""
    job: str = ""
    start: str = ""  # which of several runs with this id
    jobs: int = 0  # of a listing: how many of them are another person's
    query: str = ""


class Audit:
    """Appends to a file. What cannot be logged is not shown."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._lock, self._clock = path, threading.Lock(), clock
        self._live: dict[tuple[int, str, str], dict[str, float]] = {}  # owners, and when they were logged
        self._file = -1
        self._is_torn = False  # the last line is incomplete
        self._open()

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self.path, flags, 0o600)
        os.fchmod(file, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file = file

    def reopen(self) -> None:
        """Go on in a new file after logrotate(8) has renamed the old one. Raises OSError."""
        with self._lock:
            self._open()

    def close(self) -> None:
        with self._lock:
            os.close(self._file)
            self._file = -1

    def note_job(self, viewer: Viewer, route: str, job: Job | BatchJob) -> None:
        """Log the read of one job, if it is another person's. Raises ApiError if that fails."""
        if viewer.is_other(job.user):
            start = "" if job.start is None else _utc(job.start)
            self._write(viewer, route, owner=job.user or "", cluster=job.cluster, job=job.id, start=start)

    def note_listing(self, viewer: Viewer, route: str, owners: Sequence[str | None], query: str) -> None:
        """Log a listing, if jobs of other persons are in it. Raises ApiError if that fails."""
        others = [owner or "" for owner in owners if viewer.is_other(owner)]
        if others:
            self._write(viewer, route, owner=sorted(set(others)), jobs=len(others), query=query[:1000])

    def note_live(self, viewer: Viewer, route: str, owners: Sequence[str]) -> None:
        """Log a live page, which is read every few seconds: each owner once per hour. Raises ApiError if that
        fails."""
        now = self._clock()
        known = self._live.get((viewer.uid, viewer.how, route), {})
        recent = {owner: when for owner, when in known.items() if now - when < _LIVE_SECONDS}
        new = [owner for owner in owners if viewer.is_other(owner) and owner not in recent]
        if new:
            self._write(viewer, route, owner=sorted(set(new)), jobs=len(new))
            self._live[viewer.uid, viewer.how, route] = {**recent, **dict.fromkeys(new, now)}

    def _write(self, viewer: Viewer, route: str, **what: object) -> None:
        entry = Entry(_utc(time.time()), viewer.user, viewer.uid, viewer.role, viewer.how, route, **what)  # type: ignore[arg-type]
        line = msgspec.json.encode(entry) + b"\n"
        try:
            with self._lock:
                self._append(line)
        except OSError as error:
            raise ApiError(
                503, f"this is another person's job, and the audit log cannot be written: {sentence(error)}"
            ) from None

    def _append(self, line: bytes) -> None:
        whole = b"\n" * self._is_torn + line
        done = os.write(self._file, whole)
        self._is_torn = self._is_torn if not done else done < len(whole)
        if done < len(whole):
            raise OSError("the disk is full")


def _utc(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
