"""Up to which moment the lake has samples of a node, and of a job there. Each file is looked at once."""

from __future__ import annotations

import time
from pathlib import Path

from joblens.files import list_names
from joblens.store.folder import HUB, job_file
from joblens.store.lake import Lake

_SETS = {"load": "''", "job": "coalesce(jobid, '')"}  # one has a row per look at the node, one per job
_COLUMNS = {"time": "TIMESTAMP_NS", "node": "VARCHAR", "jobid": "VARCHAR"}
_BEFORE = 3600.0  # seconds
_JOB_KEPT = 2 * 3600.0
_MOST_JOBS = 200_000


class Arrivals:
    def __init__(self, lake: Lake, since: float | None = None) -> None:
        """`since`: what was stored before, in seconds since 1970, does not matter any more."""
        self._lake = lake
        self._since = (time.time() if since is None else since) - _BEFORE
        self._changed: dict[Path, int] = {}
        self._seen: dict[Path, frozenset[str]] = {}
        self._nodes: dict[str, float] = {}
        self._jobs: dict[tuple[str, str], float] = {}

    def of_node(self, node: str) -> float:
        """0 if nothing has come."""
        return self._nodes.get(short(node), 0.0)

    def of_job(self, job: str, node: str) -> float:
        return self._jobs.get((job, short(node)), 0.0)

    def look(self) -> None:
        """Samples of any day can come: a node that was cut off sends what it has kept."""
        for set_name in _SETS:
            for folder in (self._lake.path / f"set={set_name}").glob("date=*"):
                new = self._new_files(folder)
                if new:
                    self._take(set_name, new)
        self._forget()

    def _new_files(self, folder: Path) -> list[Path]:
        try:
            changed = folder.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if self._changed.get(folder) == changed:
            return []
        names = frozenset(name for name in list_names(str(folder)) if _is_of_hub(name))
        new = names - self._seen.get(folder, frozenset())
        # A folder's time is coarse: one that changed just now is looked at again.
        settled = time.time_ns() - changed > 3 * 10**9
        self._changed[folder] = changed if settled else 0
        self._seen[folder] = names
        return [folder / name for name in sorted(new) if self._is_recent(folder / name)]

    def _is_recent(self, path: Path) -> bool:
        try:
            return path.stat().st_mtime > self._since
        except FileNotFoundError:
            return False

    def _take(self, set_name: str, files: list[Path]) -> None:
        columns = f"{_SETS[set_name]}, coalesce(node, ''), epoch_ns(max(time)) / 1e9"
        query = f"SELECT {columns} FROM {{lake}} GROUP BY ALL"
        for job, node, last in self._lake.query(files, _COLUMNS, query):
            name = short(str(node))
            self._nodes[name] = max(self._nodes.get(name, 0.0), last)
            if job:
                key = str(job), name
                self._jobs[key] = max(self._jobs.get(key, 0.0), last)

    def _forget(self) -> None:
        old = time.time() - _JOB_KEPT
        if len(self._jobs) > _MOST_JOBS or any(last < old for last in self._jobs.values()):
            kept = sorted(
                ((key, last) for key, last in self._jobs.items() if last >= old), key=lambda item: item[1]
            )
            self._jobs = dict(kept[-_MOST_JOBS:])


def _is_of_hub(name: str) -> bool:
    found = job_file(name)
    return found is not None and found.job.startswith(HUB)


def short(node: str) -> str:
    """A scheduler may call c1 what calls itself c1.example.org."""
    return node.partition(".")[0]
