"""`cgroup`: usage and limits of the cgroups that schedulers make, v1 and v2 in the same columns.

See Documentation/admin-guide/cgroup-v1/ and cgroup-v2.rst. Only the folders in PLACES are searched.
"""

from __future__ import annotations

from joblens.collectors.cgroup_files import Mounts, parse_mounts, read_group
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Key, Reader, Rows, Schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterator, List, Optional, Pattern, Set, Tuple

# Where schedulers make their cgroups, as folder patterns from the top of a hierarchy. Every folder that
# matches a whole pattern is a row. Each also applies below _CONTAINERS, the cgroups of container engines run
# by root. Only root makes cgroups in these places. Users make theirs below `user@UID.service`: of these only
# Flux's own user is searched, by its uid.
PLACES = (
    "slurm*/uid_*/job_*",
    "slurm*/uid_*/job_*/step_*",
    "*.slice/*slurmstepd.scope/*",
    "*.slice/*slurmstepd.scope/*/step_*",
    "pbs*.service/jobid/*",
    "pbs*.slice/pbs*-*.slice",
    "pbspro/*",
)
_FLUX = "user.slice/user-{0}.slice/user@{0}.service/*shell-*.service"
_CONTAINERS = ("docker/*/", "system.slice/docker-*.scope/", "kubepods*/*/*/")


class _Place:
    """A folder on the way to a cgroup: whether it is one itself, and what to search for in it."""

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
        from fnmatch import fnmatchcase, translate

        # A v1 folder has dozens of files beside its cgroups: one regular expression filters them.
        if self._any is None:
            import re

            self._any = re.compile("|".join(map(translate, self.below)))
        for name in filter(self._any.match, names):
            for pattern, place in self.below.items():
                if fnmatchcase(name, pattern):
                    yield name, place


def _build_top(flux_uid: int) -> _Place:
    top = _Place()
    for place in PLACES:
        for prefix in ("", *_CONTAINERS):
            top.add(prefix + place)
    if flux_uid >= 0:
        top.add(_FLUX.format(flux_uid))
    return top


def _micro(name: str, what: str) -> Column:
    return Column(name + "_seconds", COUNTER, what, divisor=1_000_000)


SCHEMA = Schema(
    "cgroup",
    ("cgroup",),
    (
        _micro("cpu", "CPU time"),
        _micro("user", "CPU time in user mode"),
        _micro("system", "CPU time in kernel mode"),
        Column("throttled_periods", COUNTER, "periods in which the CPU quota was exhausted"),
        _micro("throttled", "time that tasks were throttled by the CPU quota"),
        Column("memory_bytes", GAUGE, "memory charged to the cgroup, cache included"),
        Column("memory_peak_bytes", GAUGE, "peak of the memory charged, cache included"),
        Column("memory_limit_bytes", GAUGE, "memory limit"),
        Column("anon_bytes", GAUGE, "anonymous memory"),
        Column("shmem_bytes", GAUGE, "shared memory and tmpfs"),
        Column("file_bytes", GAUGE, "page cache, shared memory included"),
        Column("kernel_bytes", GAUGE, "kernel memory charged to the cgroup"),
        Column("swap_bytes", GAUGE, "memory swapped out"),
        Column("oom_kills", COUNTER, "processes killed by the OOM killer for the cgroup's limit"),
        Column("read_bytes", COUNTER, "bytes read from block devices"),
        Column("written_bytes", COUNTER, "bytes written to block devices"),
        Column("reads", COUNTER, "reads from block devices"),
        Column("writes", COUNTER, "writes to block devices"),
        Column("tasks", GAUGE, "processes and threads"),
        Column("cpu_limit_cores", GAUGE, "CPU quota in cores", divisor=1000),
        Column("cpus", GAUGE, "cores in the cpuset"),
    ),
)
_NAMES = tuple(column.name for column in SCHEMA.columns)
_MOUNTS_READ_AGAIN = 64  # readings: slurmd, which may start after the agent, can mount missing controllers
_LIKELY = ("memory", "cpuacct", "freezer", "cpuset")  # v1 controllers in which Slurm or PBS make cgroups
_MOST_GROUPS = 2000  # that are read: some 0.2 ms each
_MOST_FOLDERS = 10_000  # that are searched for them


def cgroups(host: Host, only: str = "", flux_user: str = "") -> Reader:
    """Collect all, or those below folders named `only`, such as `job_42`, if there are any."""
    return _Cgroups(host, only, flux_user)


class _Cgroups(Reader):
    def __init__(self, host: Host, only: str, flux_user: str) -> None:
        self.host, self.only, self.flux_user = host, only, flux_user
        self._mounts = Mounts({}, None)
        self._makers: Tuple[int, ...] = (0,)  # uids that make cgroups for jobs
        self._top = _build_top(-1)
        self._readings = 0
        self._known: List[str] = []
        self._keys: Tuple[Key, ...] = ()

    def __call__(self) -> Tuple[Rows, ...]:
        if self._readings % _MOUNTS_READ_AGAIN == 0:
            self._read_machine()
        self._readings += 1
        groups = self._find()
        if groups != self._known:
            for gone in set(self._known) - set(groups):
                for folder in {*self._mounts.v1.values(), self._mounts.v2 or ""}:
                    self.host.forget_below(f"{folder}/{gone}")
            self._known, self._keys = groups, tuple(("/" + group,) for group in groups)
        values: List[int] = []
        for group in groups:
            facts = read_group(self.host, self._mounts, group)
            values += [facts.get(name, ABSENT) for name in _NAMES]
        return (Rows(SCHEMA, self._keys, values),)

    def _read_machine(self) -> None:
        self._mounts = parse_mounts(self.host.read_once("proc/self/mounts"))
        users = any(self.host.exists(f"{folder}/user.slice") for folder in self._folders())
        flux = self.host.uid_of(self.flux_user) if users and self.flux_user else -1
        makers = (0,) if flux < 0 else (0, flux)
        if makers != self._makers:
            self._makers, self._top = makers, _build_top(flux)

    def _folders(self) -> List[str]:
        folders = [self._mounts.v2] if self._mounts.v2 else []
        folders += [self._mounts.v1[name] for name in _LIKELY if name in self._mounts.v1]
        return list(dict.fromkeys(folders))

    def _find(self) -> List[str]:
        """Beyond the limit, jobs take precedence over their steps."""
        search = _Search(self.host, self._makers, set(self._known))
        for folder in self._folders():
            search.search(folder, "", self._top)
        found = sorted(search.found)
        if self.only:
            found = [group for group in found if self.only in group.split("/")] or found
        beyond = len(found) - _MOST_GROUPS
        self.warning = search.why_incomplete()
        if beyond > 0:
            self.warning = f"{beyond} of {len(found)} cgroups are not measured: the limit is {_MOST_GROUPS}"
            found = sorted(sorted(found, key=lambda group: ("/step_" in group, group))[:_MOST_GROUPS])
        return found


class _Search:
    """Search for cgroups in one reading. `known` are those of the previous one."""

    def __init__(self, host: Host, makers: Tuple[int, ...], known: Set[str]) -> None:
        self.host, self.makers, self.known = host, makers, known
        self.found: Set[str] = set()
        self._folders = 0
        self._foreign = 0

    def why_incomplete(self) -> str:
        if self._folders > _MOST_FOLDERS:
            return f"more than {_MOST_FOLDERS} cgroup folders: the rest is not searched"
        if not self._foreign:
            return ""
        return f"{self._foreign} cgroups are not measured: their parent folders belong to ordinary users"

    def search(self, top: str, below: str, place: _Place) -> None:
        names, owner = self._list(top + below)
        for name, inner in place.matches(names):
            self._folders += 1
            if self._folders > _MOST_FOLDERS:
                return
            group = f"{below}/{name}"
            if inner.measured and self._is_group(top + group, group[1:], owner):
                self.found.add(group[1:])
            if inner.below:
                self.search(top, group, inner)

    def _list(self, path: str) -> Tuple[List[str], int]:
        """Return the names in a folder and the folder's owner."""
        try:
            status = self.host.stat(path)
            if status.st_nlink == 2:  # no subfolder (fs/kernfs/inode.c)
                return [], 0
            return self.host.list(path), status.st_uid
        except OSError:  # removed since it was found, or not a folder
            return [], 0

    def _is_group(self, path: str, group: str, owner: int) -> bool:
        """Only the owner of its parent folder can have made a cgroup: in a container's folder, names prove
        nothing. The cgroup's own owner does not matter: Slurm gives steps to the job's user.
        """
        if group in self.known or group in self.found:
            return True
        if self.host.live and owner not in self.makers:
            self._foreign += 1
            return False
        return self.host.exists(path + "/cgroup.procs")
