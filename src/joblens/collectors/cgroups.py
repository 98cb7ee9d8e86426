"""`cgroup`: what the groups that schedulers make have used and may use, v1 and v2 in the same columns.

See Documentation/admin-guide/cgroup-v1/ and cgroup-v2.rst. Only below the folders in PLACES is looked.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase, translate
from typing import Callable, Dict, Iterator, List, Optional, Pattern, Set, Tuple

from joblens.collectors.cgroup_files import Mounts, parse_mounts, read_group
from joblens.host import Host
from joblens.model import ABSENT, COUNTER, GAUGE, Column, Key, Rows, Schema

# Where schedulers put their groups, as folder patterns from the top of a hierarchy. Every folder that
# matches one whole is a row. A `container` in front stands for the groups of an engine run by root.
PLACES = (
    "slurm*/uid_*/job_*",
    "slurm*/uid_*/job_*/step_*",
    "*.slice/*slurmstepd.scope/*",
    "*.slice/*slurmstepd.scope/*/step_*",
    "pbs*.service/jobid/*",
    "pbs*.slice/pbs*-*.slice",
    "pbspro/*",
    "user.slice/user-*.slice/user@*.service/*shell-*.service",
)
_CONTAINERS = ("docker/*/", "system.slice/docker-*.scope/", "kubepods*/*/*/")


class _Place:
    """A folder on the way to a group: whether it is one itself, and what to look for in it."""

    def __init__(self) -> None:
        self.measured = False
        self.below: Dict[str, _Place] = {}
        self._any: Optional[Pattern[str]] = None

    def add(self, path: str) -> None:
        place = self
        for name in path.split("/"):
            place = place.below.setdefault(name, _Place())
        place.measured = True

    def matches(self, names: List[str]) -> Iterator[Tuple[str, _Place]]:
        # A v1 folder holds dozens of files beside its groups: one expression sorts them out.
        if self._any is None:
            self._any = re.compile("|".join(map(translate, self.below)))
        for name in filter(self._any.match, names):
            for pattern, place in self.below.items():
                if fnmatchcase(name, pattern):
                    yield name, place


def _build_top() -> _Place:
    top = _Place()
    for place in PLACES:
        for prefix in ("", *_CONTAINERS):
            top.add(prefix + place)
    return top


def _micro(name: str, what: str) -> Column:
    return Column(name + "_seconds", COUNTER, what, divisor=1_000_000)


SCHEMA = Schema(
    "cgroup",
    ("cgroup",),
    (
        _micro("cpu", "time on cores"),
        _micro("user", "time in programs"),
        _micro("system", "time in the kernel"),
        Column("throttled_periods", COUNTER, "periods in which the group ran into its limit of cores"),
        _micro("throttled", "time that tasks stood still because of that limit"),
        Column("memory_bytes", GAUGE, "memory charged to the group, cache included"),
        Column("memory_peak_bytes", GAUGE, "the most that was ever charged, cache included"),
        Column("memory_limit_bytes", GAUGE, "the limit of memory"),
        Column("anon_bytes", GAUGE, "memory of programs that no file stands behind"),
        Column("shmem_bytes", GAUGE, "shared memory and tmpfs"),
        Column("file_bytes", GAUGE, "page cache, shared memory included"),
        Column("kernel_bytes", GAUGE, "memory that the kernel uses for the group"),
        Column("swap_bytes", GAUGE, "memory swapped out"),
        Column("oom_kills", COUNTER, "processes killed because the group's memory ran out"),
        Column("read_bytes", COUNTER, "bytes read from block devices"),
        Column("written_bytes", COUNTER, "bytes written to block devices"),
        Column("reads", COUNTER, "reads from block devices"),
        Column("writes", COUNTER, "writes to block devices"),
        Column("tasks", GAUGE, "processes and threads"),
        Column("cpu_limit_cores", GAUGE, "the limit of cores by quota", divisor=1000),
        Column("cpus", GAUGE, "cores that the group may use"),
    ),
)
_NAMES = tuple(column.name for column in SCHEMA.columns)
_MOUNTS_READ_AGAIN = 64  # slurmd, which may be started after the agent, can mount what is missing
_LIKELY = ("memory", "cpuacct", "freezer", "cpuset")  # v1 controllers in which Slurm or PBS make groups


def cgroups(host: Host, only: str = "") -> Callable[[], Tuple[Rows, ...]]:
    """All, or those below folders of that name, such as `job_42`; where there are none, all the same."""
    mounts = Mounts({}, None)
    top = _build_top()
    readings = 0
    known: List[str] = []
    keys: Tuple[Key, ...] = ()

    def read() -> Tuple[Rows, ...]:
        nonlocal mounts, readings, known, keys
        if readings % _MOUNTS_READ_AGAIN == 0:
            mounts = parse_mounts(host.read_once("proc/self/mounts"))
        readings += 1
        groups = sorted(_find(host, mounts, top))
        if only:
            groups = [group for group in groups if only in group.split("/")] or groups
        if groups != known:
            for gone in set(known) - set(groups):
                for folder in {*mounts.v1.values(), mounts.v2 or ""}:
                    host.forget_below(f"{folder}/{gone}")
            known, keys = groups, tuple(("/" + group,) for group in groups)
        values: List[int] = []
        for group in known:
            facts = read_group(host, mounts, group)
            values += [facts.get(name, ABSENT) for name in _NAMES]
        return (Rows(SCHEMA, keys, values),)

    return read


def _find(host: Host, mounts: Mounts, top: _Place) -> Set[str]:
    folders = [mounts.v2] if mounts.v2 else []
    folders += [mounts.v1[name] for name in _LIKELY if name in mounts.v1]
    found: Set[str] = set()
    for folder in dict.fromkeys(folders):
        _search(host, folder, "", top, found)
    return found


def _search(host: Host, top: str, below: str, place: _Place, found: Set[str]) -> None:
    try:
        names = host.list(top + below)
    except OSError:  # removed since it was seen, or not a folder
        return
    for name, inner in place.matches(names):
        group = f"{below}/{name}"
        if inner.measured and host.exists(f"{top}{group}/cgroup.procs"):
            found.add(group[1:])
        if inner.below:
            _search(host, top, group, inner, found)
