"""The audit log: a line of JSON for each read of another person's job by staff."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from joblens.core.errors import sentence
from joblens.serve.errors import ApiError
from joblens.serve.policy import Viewer


class Entry(Struct, frozen=True, omit_defaults=True):
    time: str
    viewer: str
    uid: int
    role: str
    how: str
    route: str
    owner: str | Sequence[str]  # of a listing: of all jobs in it that are another person's
    job: str = ""
    jobs: int = 0  # of a listing: how many of them are another person's
    query: str = ""


class Audit:
    """Appends to a file. What cannot be logged is not shown."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
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

    def note_job(self, viewer: Viewer, route: str, job: str, owner: str | None) -> None:
        """Log the read of one job, if it is another person's. Raises ApiError if that fails."""
        if viewer.is_other(owner):
            self._write(viewer, route, owner=owner or "", job=job)

    def note_listing(self, viewer: Viewer, route: str, owners: Sequence[str | None], query: str) -> None:
        """Log a listing, if jobs of other persons are in it. Raises ApiError if that fails."""
        others = [owner or "" for owner in owners if viewer.is_other(owner)]
        if others:
            self._write(viewer, route, owner=sorted(set(others)), jobs=len(others), query=query[:1000])

    def _write(self, viewer: Viewer, route: str, **what: object) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        entry = Entry(now, viewer.user, viewer.uid, viewer.role, viewer.how, route, **what)  # type: ignore[arg-type]
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
