"""Persistent state of the follower, bounded in size.

    state.json    the time from which accounting is asked, and ended jobs that accounting has not reported
    late.json     jobs whose record lacks samples; it is rebuilt when they arrive
    status.json   status for people; the follower does not read it
    flush         touched when samples are awaited: the hub then stores what it has received
    lock          held by the process, so that there is only one

Which jobs have a record is not stored here: the records themselves show it, so that the two cannot disagree.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from joblens.core.errors import MalformedError
from joblens.core.files import write_quickly, write_whole
from joblens.core.json_file import parse_json, render_json
from joblens.jobs.facts import identity
from joblens.record.fields import Part, read
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.listing import Identity

VERSION = 1
MOST_GONE = 10_000
MOST_LATE = 5_000


class Gone(Part):
    """A job that no longer runs, whose end accounting has not reported."""

    job: BatchJob
    seen: float  # running, for the last time


class Late(Part):
    """Its record is there, and samples of these nodes may still come."""

    job: BatchJob
    nodes: tuple[str, ...]
    since: float


class _StateFile(Part):
    version: int
    since: float | None
    cluster: str
    gone: list[Gone]


class _LateFile(Part):
    version: int
    late: list[Late]


class FollowerStatus(Part, kw_only=True):
    """The file `status.json`."""

    time: float = 0.0
    scheduler: str = ""
    state: str = ""  # working or failing
    error: str = ""
    answered: float = 0.0  # when the scheduler last did; 0.0: not yet
    waiting: int = 0
    late: int = 0
    left_out: int = 0
    pid: int = 0
    calls: int = 0
    failed_calls: int = 0
    finished: int = 0
    running: int = 0
    pending: int = 0


_File = TypeVar("_File", _StateFile, _LateFile)


class State:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.since: float | None = None
        self.cluster = ""  # as accounting calls it
        self.gone: dict[Identity, Gone] = {}
        self.late: dict[Identity, Late] = {}
        self._saved: dict[str, bytes] = {}

    @property
    def status(self) -> Path:
        return self.folder / "status.json"

    def load(self) -> list[str]:
        """Return what could not be read, a sentence each: the follower then starts further back."""
        problems: list[str] = []
        found = _load(self.folder / "state.json", _StateFile, problems)
        if found is not None:
            self.since, self.cluster = found.since, found.cluster
            self.gone = {identity(it.job): it for it in found.gone}
        late = _load(self.folder / "late.json", _LateFile, problems)
        self.late = {identity(it.job): it for it in late.late} if late else {}
        return problems

    def save(self) -> None:
        """On the disk on return, if it has changed."""
        for many, most in ((self.gone, MOST_GONE), (self.late, MOST_LATE)):
            while len(many) > most:
                many.pop(next(iter(many)))
        self._save("late.json", _LateFile(VERSION, list(self.late.values())))
        self._save("state.json", _StateFile(VERSION, self.since, self.cluster, list(self.gone.values())))

    def _save(self, name: str, found: _StateFile | _LateFile) -> None:
        data = json.dumps(found.to_dict()).encode()
        if self._saved.get(name) != data:
            write_whole(str(self.folder / name), data)
            self._saved[name] = data

    def ask_to_flush(self) -> None:
        """Raises OSError."""
        write_quickly(str(self.folder / "flush"), b"")

    def tell(self, status: FollowerStatus) -> None:
        with suppress(OSError):  # the error itself reports a full disk, in the log
            write_quickly(str(self.status), render_json(status.to_dict()))


def _load(path: Path, kind: type[_File], problems: list[str]) -> _File | None:
    try:
        found = read(parse_json(path.read_bytes()), kind)
        if found.version != VERSION:
            raise ValueError(f"version {found.version}")
        return found
    except FileNotFoundError:
        return None
    except ValueError as error:
        problems.append(str(MalformedError(str(path), f"cannot be read: {error!s:.100}")))
        return None
