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
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from joblens.core.errors import MalformedError
from joblens.core.files import write_quickly, write_whole
from joblens.core.json_file import parse_json
from joblens.jobs.facts import identity
from joblens.record.fields import read
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.listing import Identity

VERSION = 1
MOST_GONE = 10_000
MOST_LATE = 5_000


class Gone(NamedTuple):
    """A job that no longer runs, whose end accounting has not reported."""

    job: BatchJob
    seen: float  # running, for the last time


class Late(NamedTuple):
    """Its record is there, and samples of these nodes may still come."""

    job: BatchJob
    nodes: tuple[str, ...]
    since: float


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
        found = _load(self.folder / "state.json", _parse_state, problems)
        if found is not None:
            self.since, self.cluster, self.gone = found
        self.late = _load(self.folder / "late.json", _parse_late, problems) or {}
        return problems

    def save(self) -> None:
        """On the disk on return, if it has changed."""
        for many, most in ((self.gone, MOST_GONE), (self.late, MOST_LATE)):
            while len(many) > most:
                many.pop(next(iter(many)))
        gone = [{"job": it.job.to_dict(), "seen": it.seen} for it in self.gone.values()]
        late = [{"job": it.job.to_dict(), "nodes": it.nodes, "since": it.since} for it in self.late.values()]
        self._save("late.json", {"version": VERSION, "late": late})
        self._save(
            "state.json", {"version": VERSION, "since": self.since, "cluster": self.cluster, "gone": gone}
        )

    def _save(self, name: str, found: Mapping[str, object]) -> None:
        data = json.dumps(found).encode("utf-8", "replace")
        if self._saved.get(name) != data:
            write_whole(str(self.folder / name), data)
            self._saved[name] = data

    def ask_to_flush(self) -> None:
        """Raises OSError."""
        write_quickly(str(self.folder / "flush"), b"")

    def tell(self, status: Mapping[str, object]) -> None:
        with suppress(OSError):  # the error itself reports a full disk, in the log
            write_quickly(str(self.status), json.dumps({"time": time.time(), **status}).encode())


def _load(path: Path, parse: Callable[[Any], Any], problems: list[str]) -> Any:
    try:
        found = parse_json(path.read_bytes())
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']!r:.20}")
        return parse(found)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problems.append(str(MalformedError(str(path), f"cannot be read: {error!s:.100}")))
        return None


def _parse_state(found: Any) -> tuple[float | None, str, dict[Identity, Gone]]:
    since = None if found["since"] is None else float(found["since"])
    gone = [Gone(read(it["job"], BatchJob), float(it["seen"])) for it in found["gone"]]
    return since, str(found["cluster"]), {identity(it.job): it for it in gone}


def _parse_late(found: Any) -> dict[Identity, Late]:
    late = [
        Late(read(it["job"], BatchJob), tuple(map(str, it["nodes"])), float(it["since"]))
        for it in found["late"]
    ]
    return {identity(it.job): it for it in late}
