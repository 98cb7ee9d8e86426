"""The cgroups around a job that limit its cores and memory: how often they did so while it ran.

A job that `joblens run` started has no group of its own, so what counts is the increase since its start.
"""

from __future__ import annotations

from typing import Dict, List, Optional

from joblens.collectors.cgroup_files import Mounts, parse_mounts, read_group
from joblens.host import Host

_COUNTED_BY = {"cpu_limit_cores": "throttled_seconds", "memory_limit_bytes": "oom_kills"}


def read_limits(host: Host) -> Dict[str, int]:
    """The lowest limit of cores (in thousandths) and of memory of our cgroup and all above it."""
    return {name: lowest for name, (lowest, _) in _find(host, _read_mounts(host)).items()}


class Limits:
    def __init__(self, host: Host) -> None:
        self._host, self._mounts = host, _read_mounts(host)
        self._groups = {name: group for name, (_, group) in _find(host, self._mounts).items()}
        self._first = self._read()

    def increase(self) -> Dict[str, int]:
        """`throttled_seconds` in microseconds and `oom_kills`, of those groups that there are."""
        now = self._read()
        return {name: max(now[name] - first, 0) for name, first in self._first.items() if name in now}

    def _read(self) -> Dict[str, int]:
        found: Dict[str, int] = {}
        for limit, group in self._groups.items():
            count = read_group(self._host, self._mounts, group).get(_COUNTED_BY[limit])
            if count is not None:
                found[_COUNTED_BY[limit]] = count
        return found


def _read_mounts(host: Host) -> Mounts:
    try:
        return parse_mounts(host.read_once("proc/self/mounts"))
    except OSError:
        return Mounts({}, None)


def _find(host: Host, mounts: Mounts) -> Dict[str, tuple[int, str]]:
    """By kind of limit, the lowest and its group: a scheduler limits the job, and not each leaf of it."""
    found: Dict[str, tuple[int, str]] = {}
    for group in _own_groups(host):
        facts = read_group(host, mounts, group)
        for name in _COUNTED_BY:
            limit: Optional[int] = facts.get(name)
            if limit and (name not in found or limit < found[name][0]):
                found[name] = limit, group
    return found


def _own_groups(host: Host) -> List[str]:
    try:
        lines = host.read_once("proc/self/cgroup").decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    paths = {line.split(":", 2)[2].strip("/") for line in lines if line.count(":") >= 2}
    return sorted({above for path in paths for above in _with_those_above(path)}, key=len, reverse=True)


def _with_those_above(path: str) -> List[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts) + 1)]
