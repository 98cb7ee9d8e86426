"""The cgroups that limit a job's cores and memory: how often the limits took effect while it ran.

A job started by `joblens run` or declared by a job file has no cgroup of its own, so the increase since its
start counts.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

from joblens.collectors.cgroup_files import Mounts, parse_mounts, read_group
from joblens.core.host import Host

_COUNTED_BY = {"cpu_limit_cores": "throttled_seconds", "memory_limit_bytes": "oom_kills"}
_CONTROLLERS = {"cpu_limit_cores": "cpu", "memory_limit_bytes": "memory"}


def read_limits(host: Host) -> Dict[str, int]:
    """Return the lowest limits of cores (in thousandths) and memory of our cgroup and its ancestors."""
    return {name: lowest for name, (lowest, _) in _find(host, _read_mounts(host)).items()}


class Limits:
    """Counters of the cgroups that limit a process, by default this one."""

    def __init__(self, host: Host, pid: str = "self", first: Optional[Dict[str, int]] = None) -> None:
        """`first` are counters read earlier, to count from there."""
        self._host, self._mounts = host, _read_mounts(host)
        self._groups = {name: group for name, (_, group) in _find(host, self._mounts, pid).items()}
        self.first = self._read() if first is None else first

    @property
    def are_known(self) -> bool:
        return bool(self._groups)

    def increase(self) -> Dict[str, int]:
        """Return `throttled_seconds` in microseconds and `oom_kills`, as far as such limits exist."""
        now = self._read()
        return {name: max(now[name] - first, 0) for name, first in self.first.items() if name in now}

    def close(self) -> None:
        for group in self._groups.values():
            for folder in {*self._mounts.v1.values(), self._mounts.v2 or ""} - {""}:
                self._host.forget_below(f"{folder}/{group}")

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


def _find(host: Host, mounts: Mounts, pid: str = "self") -> Dict[str, Tuple[int, str]]:
    """Return the lowest limit of each kind and its cgroup: a scheduler limits the job, not each leaf."""
    found: Dict[str, Tuple[int, str]] = {}
    paths = _read_paths(host, pid)
    for name, controller in _CONTROLLERS.items():
        for group in _groups_of(paths, controller):
            limit: Optional[int] = read_group(host, mounts, group).get(name)
            if limit and (name not in found or limit < found[name][0]):
                found[name] = limit, group
    return found


def _read_paths(host: Host, pid: str) -> List[Tuple[List[str], str]]:
    """Return controllers and the process's cgroup in their hierarchy: v2's line names no controllers."""
    try:
        lines = host.read_once(f"proc/{pid}/cgroup").decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    fields = (line.split(":", 2) for line in lines if line.count(":") >= 2)
    return [(controllers.split(","), path.strip("/")) for _, controllers, path in fields]


def _groups_of(paths: List[Tuple[List[str], str]], controller: str) -> List[str]:
    """A process can be in a different cgroup of each v1 hierarchy; only that of the controller limits it."""
    own = [path for controllers, path in paths if controller in controllers]
    chosen = own or [path for controllers, path in paths if controllers == [""]]
    return sorted({above for path in chosen for above in _with_those_above(path)}, key=len, reverse=True)


def _with_those_above(path: str) -> List[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts) + 1)]
