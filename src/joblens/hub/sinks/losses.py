"""Rows of users that a sink has dropped: user, job, reason, and the times of the first and the last row.

A JSON file of bounded size with one entry per user and job. An entry ends when nothing was dropped for a
while. Its message stays the same until then, so that no user can fill the log.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from joblens.core.files import write_whole
from joblens.core.json_file import parse_json
from joblens.record.fields import read

_OVER_SECONDS = 600.0  # without a dropped row: then it is over
_MOST_JOBS = 50  # of one user; all further ones share an entry
_MOST_ENTRIES = 2000  # the oldest go
_MOST_NAMED = 8  # users


class Entry(Struct):
    user: str
    job: str  # "": all that are not listed by name
    why: str
    over: bool
    since: float  # times of the rows
    until: float
    noticed: float
    rows: int = 0
    segment: int = 0
    of_segment: int = 0


class Dropped(NamedTuple):
    """Rows of one user and job."""

    why: str
    rows: int
    since: float  # times of the rows
    until: float


class Losses:
    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.path, self._now = path, now
        self._entries: list[Entry] = []
        self._dropped: dict[tuple[str, str], Dropped] = {}

    def load(self) -> None:
        """Load the file. Called first and after every failure."""
        self._entries, self._dropped = _load(self.path), {}

    def add(self, user: str, job: str, new: Dropped) -> None:
        old = self._dropped.get((user, job), new._replace(rows=0))
        self._dropped[user, job] = Dropped(
            old.why, old.rows + new.rows, min(old.since, new.since), max(old.until, new.until)
        )

    def save(self, segment: int) -> tuple[str, ...]:
        """Write durably, and return messages about losses that go on or are over. A repeat counts once."""
        now = self._now()
        before = {it.user for it in self._entries if not it.over}
        for it in self._entries:
            it.over = it.over or now - it.noticed > _OVER_SECONDS
        over = before - {it.user for it in self._entries if not it.over} - {u for u, _ in self._dropped}
        said = [self._describe_end(user) for user in sorted(over)[:_MOST_NAMED]]
        if self._dropped or over:
            self._count(segment, now)
            write_whole(str(self.path), json.dumps(msgspec.to_builtins(self._entries), indent=1).encode())
            self._dropped = {}
        return (*said, *self._describe())

    def _describe(self) -> list[str]:
        first = {it.user: it.why for it in reversed(self._entries) if not it.over}
        said = [f"rows of user {user} are dropped: {why}" for user, why in sorted(first.items())]
        if len(said) > _MOST_NAMED:
            said[_MOST_NAMED:] = [f"rows of more users are dropped: they are in {self.path}"]
        return said

    def _describe_end(self, user: str) -> str:
        rows = sum(it.rows for it in self._entries if it.user == user)
        return f"rows of user {user} are stored again; {rows} were dropped"

    def _count(self, segment: int, now: float) -> None:
        going_on = {(it.user, it.job): it for it in self._entries if not it.over}
        jobs = Counter(user for user, _ in going_on)
        for it in going_on.values():
            if it.segment == segment:  # counted before a crash, and not known to be stored
                it.rows -= it.of_segment
            it.of_segment = 0
        for (user, job), dropped in self._dropped.items():
            name = user, job if (user, job) in going_on or jobs[user] < _MOST_JOBS else ""
            entry = going_on.get(name)
            if entry is None:
                entry = going_on[name] = Entry(*name, dropped.why, False, dropped.since, dropped.until, 0.0)
                jobs[user] += 1
                self._entries.append(entry)
            entry.rows += dropped.rows
            entry.of_segment += dropped.rows
            entry.since = min(entry.since, dropped.since)
            entry.until = max(entry.until, dropped.until)
            entry.segment, entry.noticed = segment, now
        del self._entries[:-_MOST_ENTRIES]


def _load(path: Path) -> list[Entry]:
    """Load the entries, none if the file is damaged: it is for people only."""
    try:
        return read(parse_json(path.read_bytes()), list[Entry])
    except (OSError, ValueError):
        return []
