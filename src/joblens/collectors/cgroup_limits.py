"""The cgroups that limit a job's cores and memory: how often the limits took effect while it ran.

A job started by `joblens run` or declared by a job file has no cgroup of its own, so the increase since its
start counts.
"""

from __future__ import annotations

from joblens.collectors.cgroup_files import (
    Mounts,
    parse_mounts,
    read_cpu_limit,
    read_group,
    read_memory_limit,
)
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Optional, Tuple

_COUNTED_BY = {"cpu_limit_cores": "throttled_seconds", "memory_limit_bytes": "oom_kills"}
_READ = {
    "cpu_limit_cores": ("cpu", read_cpu_limit),
    "memory_limit_bytes": ("memory", read_memory_limit),
}


class Limiting(NamedTuple):
    """The cgroups that limit a process: the lowest limits of it and its ancestors."""

    mounts: Mounts
    lowest: Dict[str, int]  # `cpu_limit_cores` in thousandths, `memory_limit_bytes`
    groups: Dict[str, str]  # by the same names


def find_limits(host: Host, pid: str = "self") -> Limiting:
    """A scheduler limits the job, not each leaf: so of each kind the lowest limit counts, and its cgroup."""
    lowest: Dict[str, int] = {}
    groups: Dict[str, str] = {}
    mounts, paths = _read_mounts(host), _read_paths(host, pid)
    for name, (controller, read) in _READ.items():
        for group in _groups_of(paths, controller):
            try:
                limit = read(host, mounts, group)
            except ValueError as error:  # more digits than int() accepts
                raise MalformedError(group, str(error)) from None
            if limit and (name not in lowest or limit < lowest[name]):
                lowest[name], groups[name] = limit, group
    return Limiting(mounts, lowest, groups)


class Limits:
    """Counters of the cgroups that limit a process."""

    def __init__(self, host: Host, found: Limiting, first: Optional[Dict[str, int]] = None) -> None:
        """`first` are counters read earlier, to count from there."""
        self._host, self._mounts, self._groups = host, found.mounts, found.groups
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
