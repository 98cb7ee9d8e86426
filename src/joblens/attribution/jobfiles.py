"""Job files: a scheduler's prolog or `joblens run` declares in a file which processes belong to a job.

A file is trusted only if it and its folder can be written by root only, or by the agent's own user if the
agent is not root.
"""

from __future__ import annotations

import os
import stat
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from joblens.core.host import Host
from joblens.core.json_file import parse_json

_LARGEST = 1 << 16
_MOST_FILES = 4096
_TEXTS = ("id", "cluster", "node", "step", "source")  # the other fields are numbers
SLURM = "slurm"
# Creating, removing or replacing a file changes its folder, and then all files are checked; also at every
# fifth load, as writing in place does not change it. File timestamps are coarse: a change shortly after a
# load may have the same time.
_CHECK_ALL = 5
_MOMENT_NS = 1_000_000_000


class JobFile(NamedTuple):
    id: str
    uid: int
    start: int = 0
    cluster: str = ""
    node: str = ""
    step: str = ""
    pid: int = 0  # this process and its descendants
    pid_start: int = 0  # its start in clock ticks since boot
    session: int = 0
    gpus: Tuple[str, ...] = ()  # assigned to the job: UUID, index or bus address
    # With neither pid nor session, all processes of the user belong to it, if the user has no second job
    # here.
    source: str = ""  # "slurm": facts about a job whose processes are known by cgroup or slurmstepd


class JobFiles:
    """The job files of a folder, each parsed only when it has changed."""

    def __init__(self, host: Host, folder: str) -> None:
        self.host = host
        self.folder = folder.strip("/")
        self.problems: Dict[str, str] = {}
        self._known: Dict[str, Tuple[Tuple[int, ...], Optional[JobFile]]] = {}
        self._last: List[JobFile] = []
        self._folder_was: Tuple[int, ...] = ()
        self._loads = 0

    def load(self) -> List[JobFile]:
        """Return the same list while nothing has changed."""
        self._loads += 1
        if self._loads % _CHECK_ALL and self._is_as_before():
            return self._last
        self.problems.clear()
        known, self._known = self._known, {}
        found: List[JobFile] = []
        for name in self._list():
            job = self._load(f"{self.folder}/{name}", known)
            if job is not None:
                found.append(job)
        if found != self._last:
            self._last = found
        return self._last

    def _is_as_before(self) -> bool:
        try:
            return _version(self.host.stat(self.folder)) == self._folder_was
        except OSError:
            return False

    def _list(self) -> List[str]:
        self._folder_was = ()
        try:
            status = self.host.stat(self.folder)
            if abs(time.time_ns() - status.st_mtime_ns) > _MOMENT_NS:  # coarse timestamps
                self._folder_was = _version(status)
            untrusted = distrust(status, self.host.uid, stat.S_ISDIR)
            names = [] if untrusted else self.host.list(self.folder)
        except FileNotFoundError:  # no jobs are declared here
            return []
        except OSError as error:
            untrusted, names = error.strerror or str(error), []
        if untrusted:
            self._reject(self.folder, untrusted)
        names = sorted(name for name in names if name.endswith(".json"))
        if len(names) > _MOST_FILES:
            self.problems[self.folder] = f"only the first {_MOST_FILES} job files are used"
        return names[:_MOST_FILES]

    def _load(
        self, path: str, known: Dict[str, Tuple[Tuple[int, ...], Optional[JobFile]]]
    ) -> Optional[JobFile]:
        try:
            status = self.host.stat(path)
            untrusted = distrust(status, self.host.uid, stat.S_ISREG)
            if untrusted:
                self._reject(path, untrusted)
                return None
            version = _version(status)
            if path in known and known[path][0] == version:
                self._known[path] = known[path]
                return known[path][1]
            job = parse_job_file(self.host.read_once(path))
            if job.source == SLURM and not job.start:  # the prolog wrote it when the job started
                job = job._replace(start=int(status.st_mtime))
        except FileNotFoundError:  # the job has just ended
            return None
        except (OSError, ValueError) as error:
            self._reject(path, str(error))
            return None
        self._known[path] = (version, job)
        return job

    def _reject(self, path: str, why: str) -> None:
        self.problems[path] = f"{why}; ignored"


def _version(status: os.stat_result) -> Tuple[int, ...]:
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def distrust(status: os.stat_result, uid: int, is_kind: Any) -> str:
    """Return why it is not trusted, "" if it is."""
    owners: Set[int] = {0, uid}
    if not is_kind(status.st_mode):
        return "not a regular file or folder"
    if status.st_uid not in owners:
        return f"belongs to user {status.st_uid}, not to root"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "writable by users other than its owner"
    return "" if status.st_size <= _LARGEST or stat.S_ISDIR(status.st_mode) else "too large"


def _parse_gpus(value: Any) -> Tuple[str, ...]:
    if not isinstance(value, list) or any(type(it) not in (str, int) for it in value):
        raise ValueError(f"gpus is {value!r:.60}")
    return tuple(map(str, value))


def parse_job_file(data: bytes) -> JobFile:
    """Raises ValueError with the reason."""
    found = parse_json(data)
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    known = {name: value for name, value in found.items() if name in JobFile._fields}
    known["gpus"] = _parse_gpus(known.get("gpus", []))
    for name, value in known.items():
        if name != "gpus" and type(value) is not (str if name in _TEXTS else int):
            raise ValueError(f"{name} is {value!r:.60}")
    if known.get("source", SLURM) != SLURM:
        raise ValueError(f"source is {known['source']!r:.60}; only {SLURM!r} is allowed")
    if not known.get("id") or known.get("uid", -1) < 0:
        raise ValueError("id or uid is missing")
    return JobFile(**known)
