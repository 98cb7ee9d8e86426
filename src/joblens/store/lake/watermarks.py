"""Up to which moment the lake has samples of a node, and of a job there. Each sample is read once."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from joblens.core.files import changed_at
from joblens.store.lake.folder import is_of_hub, list_folder
from joblens.store.lake.lake import Files, Lake

_SETS = {"load": "''", "job": "coalesce(jobid, '')"}  # a row per sample of the node, and a row per job
_CONDITIONS = {"load": "coalesce(jobid, '') = ''", "job": "true"}  # samples of `joblens run` name their job
_COLUMNS = {"time": "TIMESTAMP_NS", "node": "VARCHAR", "jobid": "VARCHAR"}
_BEFORE = 3600.0  # seconds
_JOB_KEPT = 2 * 3600.0
_MOST_JOBS = 200_000


class Unread:
    """The samples of a set that hubs have stored and that were not read yet. Each sample is read once."""

    def __init__(self, lake: Lake, since: float | None = None) -> None:
        """`since`: what was stored before, in seconds since 1970, does not matter any more."""
        self._lake = lake
        self._since = (time.time() if since is None else since) - _BEFORE
        self._changed: dict[Path, int] = {}
        self._seen: dict[Path, frozenset[str]] = {}

    def read(self, set_name: str, columns: Mapping[str, str], query: str) -> Iterator[tuple[Any, ...]]:
        """Samples of any day can come: a node that was cut off sends what it has kept."""
        for folder in (self._lake.path / f"set={set_name}").glob("date=*"):
            if self._has_changed(folder):
                yield from self._read(folder, columns, query)

    def _has_changed(self, folder: Path) -> bool:
        try:
            changed = folder.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if self._changed.get(folder) == changed:
            return False
        # The time of a folder is coarse: one that changed just now is read again.
        settled = time.time_ns() - changed > 3 * 10**9
        self._changed[folder] = changed if settled else 0
        return True

    def _read(self, folder: Path, columns: Mapping[str, str], query: str) -> list[tuple[Any, ...]]:
        seen = self._seen.get(folder, frozenset())
        covered: set[str] = set()  # what is read then, also in other files that were merged since

        def unread() -> Files:
            listing = list_folder(folder)
            covered.clear()
            covered.update(path.name for path in listing.files)
            covered.update(name for it in listing.manifests for name in it.replaces)
            new = (path for path in listing.files if path.name not in seen and is_of_hub(path.name))
            merged_since = {name for it in listing.manifests if it.replaces <= seen for name in it.files}
            return Files(
                (path for path in new if path.name not in merged_since and self._is_recent(path)), unread
            )

        rows = self._lake.query(unread(), columns, query)
        self._seen[folder] = frozenset(covered)
        return rows

    def _is_recent(self, path: Path) -> bool:
        return changed_at(path, math.inf) > self._since  # what is gone is listed again


class Arrivals:
    def __init__(self, lake: Lake, since: float | None = None) -> None:
        """`since`: what was stored before, in seconds since 1970, does not matter any more."""
        self._unread = Unread(lake, since)
        self._nodes: dict[str, float] = {}
        self._jobs: dict[tuple[str, str], float] = {}

    def of_node(self, node: str) -> float:
        """Return 0 if the lake has no sample of it."""
        return self._nodes.get(short(node), 0.0)

    def of_job(self, job: str, node: str) -> float:
        return self._jobs.get((job, short(node)), 0.0)

    def look(self) -> None:
        for set_name, job_of in _SETS.items():
            columns = f"{job_of}, coalesce(node, ''), epoch_ns(max(time)) / 1e9"
            query = f"SELECT {columns} FROM {{lake}} WHERE {_CONDITIONS[set_name]} GROUP BY ALL"
            for job, node, last in self._unread.read(set_name, _COLUMNS, query):
                self._take(str(job), short(str(node)), last)
        self._forget()

    def _take(self, job: str, node: str, last: float) -> None:
        self._nodes[node] = max(self._nodes.get(node, 0.0), last)
        if job:
            self._jobs[job, node] = max(self._jobs.get((job, node), 0.0), last)

    def _forget(self) -> None:
        old = time.time() - _JOB_KEPT
        if len(self._jobs) > _MOST_JOBS or any(last < old for last in self._jobs.values()):
            kept = sorted(
                ((key, last) for key, last in self._jobs.items() if last >= old), key=lambda item: item[1]
            )
            self._jobs = dict(kept[-_MOST_JOBS:])


def short(node: str) -> str:
    """A scheduler may call c1 what calls itself c1.example.org."""
    return node.partition(".")[0]
