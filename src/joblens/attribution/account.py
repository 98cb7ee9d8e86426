"""Usage of one job or step on this node by its cgroup and its processes: the columns of `job` and `step`."""

from __future__ import annotations

from joblens.attribution.ledger import Identity, Ledger, Used, knows_io
from joblens.attribution.sharing import Memory, SharedMemory
from joblens.collectors.cgroup_limits import Limits, find_limits
from joblens.collectors.cgroups import SCHEMA as CGROUP
from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Job, Schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Mapping, Optional, Tuple


def _micro(name: str, what: str) -> Column:
    return Column(name + "_seconds", COUNTER, what, divisor=1_000_000)


_COLUMNS = (
    _micro("cpu", "CPU time"),
    _micro("user", "CPU time in user mode"),
    _micro("system", "CPU time in kernel mode"),
    Column("memory_bytes", GAUGE, "anonymous and shared memory, shared memory counted once, without cache"),
    Column("charged_bytes", GAUGE, "memory charged to the cgroup, cache included"),
    Column("charged_peak_bytes", GAUGE, "peak of the memory charged to the cgroup, cache included"),
    Column("memory_limit_bytes", GAUGE, "memory limit of the cgroup"),
    Column("read_chars_bytes", COUNTER, "bytes read by system calls"),
    Column("written_chars_bytes", COUNTER, "bytes written by system calls"),
    Column("read_bytes", COUNTER, "bytes read from storage"),
    Column("written_bytes", COUNTER, "bytes written to storage"),
    Column("processes", GAUGE, "current processes"),
    Column("threads", GAUGE, "current threads"),
    Column("oom_kills", COUNTER, "processes killed by the OOM killer for the cgroup's limit"),
    Column("cpus", GAUGE, "cores in the cgroup's cpuset"),
    _micro("run_delay", "time that threads of sampled processes were runnable and waited for a core"),
    _micro("throttled", "time that threads were throttled by the cgroup's CPU quota"),
    Column("blocked", GAUGE, "processes currently blocked on storage I/O"),
)
# `jobid` instead of `job`, which Prometheus sets on every series itself.
JOB = Schema("job", ("cluster", "jobid", "node"), _COLUMNS)
STEP = Schema("step", ("cluster", "jobid", "step", "node"), _COLUMNS)
INFO = Schema(
    "job_info",
    ("cluster", "jobid", "node", "user", "uid", "source", "cpu_from", "memory_from", "io_from"),
    (Column("", GAUGE, "1 for each job on the node, with its owner and sources as labels"),),
)
OWNED_PROCESS = Schema("process", ("cluster", "jobid", "step", "node", *PROCESS.labels), PROCESS.columns)
_GROUP = {column.name: index for index, column in enumerate(CGROUP.columns)}
_THREADS, _STATE = PROCESS.position("threads"), PROCESS.position("state")
_DELAY = PROCESS.position("run_delay_seconds")
_BLOCKED = ord("D")  # uninterruptible sleep, proc(5)
_BEFORE_EXEC = tuple(map(PROCESS.position, ("rss_anon_bytes", "user_seconds", "system_seconds")))
_MOST_SEARCHES = 5  # for the limits of a job, which may have none

Processes = list[tuple[ProcessKey, list[int]]]


class Account:
    """State of one job or step on this node."""

    def __init__(self, job: Job, since: int = 0) -> None:
        self.job = job
        self.group: Optional[List[int]] = None
        self.path = ""  # of the cgroup
        self.ledger = Ledger(since)
        self.memory: Optional[Memory] = None
        self.uid = self.declared_uid = -1
        self.processes = 0
        self.threads = 0
        self.blocked = 0
        self.limits: Dict[str, int] = {}  # increase of the counters of an enclosing cgroup since its start
        self._around: Optional[Limits] = None
        self._limit_searches = 0
        self._most_kills = ABSENT
        self.io_known = False
        self.delay_known = False  # kernels can be built without it
        self.scanned = False
        self.seen = job.start  # last time with a process or a cgroup, in seconds since 1970

    def take(
        self, processes: Processes, sharing: SharedMemory, foreign: Mapping[Identity, Used] = {}
    ) -> None:
        self.scanned = True
        self.processes = len(processes)
        self.threads = sum(values[_THREADS] for _, values in processes)
        self.blocked = _count_blocked(processes)
        self.ledger.expect(foreign)
        self.ledger.update(processes)
        users = [(key, values) for key, values in processes if key.uid] or processes
        self.uid = self._choose_uid([key.uid for key, _ in users])
        self.delay_known = self.delay_known or any(values[_DELAY] != ABSENT for _, values in processes)
        if users:
            self.io_known = all(knows_io(values) for _, values in users)
        if self.of_group("anon_bytes") == ABSENT:
            self.memory = sharing.measure(processes)

    def take_limits(self, host: Host, processes: Processes) -> None:
        """Read the cgroups around a job that has none of its own, from its first sample on."""
        if self.group is not None or not processes:
            return
        if not (self._around and self._around.are_known) and self._limit_searches < _MOST_SEARCHES:
            self._limit_searches += 1  # the process may have just ended
            self._around = Limits(host, find_limits(host, str(processes[0][0].pid)))
        if self._around is not None:
            self.limits = self._around.increase()

    def close(self) -> None:
        if self._around is not None:
            self._around.close()

    def _choose_uid(self, uids: List[int]) -> int:
        """Root's processes are the first and last of a job, around those of its user."""
        if self.declared_uid >= 0:
            return self.declared_uid
        if not any(uids) and (self.uid >= 0 or not uids):
            return self.uid
        # The most frequent, not the first: Flux's own user has the parent of a job's processes.
        return max(set(uids), key=lambda uid: (uids.count(uid), uid))

    def of_group(self, name: str) -> int:
        return ABSENT if self.group is None else self.group[_GROUP[name]]

    def sources(self) -> Tuple[str, str, str]:
        cpu = "cgroup" if self.of_group("cpu_seconds") != ABSENT else "processes"
        if self.of_group("anon_bytes") != ABSENT:
            memory = "cgroup"
        else:
            memory = self.memory.source if self.memory else "unknown"
        if self.of_group("read_bytes") != ABSENT:
            return cpu, memory, "both" if self.io_known else "cgroup"
        return cpu, memory, "processes" if self.io_known else "unknown"

    def values(self, processes_fresh: bool) -> List[int]:
        used = self.ledger.used if processes_fresh else None
        io = used if self.io_known else None
        return [
            *self._cpu(used),
            self._memory(processes_fresh),
            self.of_group("memory_bytes"),
            self.of_group("memory_peak_bytes"),
            self.of_group("memory_limit_bytes"),
            io.read_chars if io else ABSENT,
            io.written_chars if io else ABSENT,
            self._storage("read_bytes", self.ledger.used.read, io is not None),
            self._storage("written_bytes", self.ledger.used.written, io is not None),
            self.processes if processes_fresh else ABSENT,
            self.threads if processes_fresh else ABSENT,
            self._oom_kills(),
            self.of_group("cpus"),
            used.run_delay if used and self.delay_known else ABSENT,
            self._of_limits("throttled_seconds"),
            self.blocked if processes_fresh else ABSENT,
        ]

    def _oom_kills(self) -> int:
        """Keep the maximum: in v1 kills are counted in the steps' cgroups, which vanish with them."""
        self._most_kills = max(self._most_kills, self._of_limits("oom_kills"))
        return self._most_kills

    def _of_limits(self, name: str) -> int:
        return self.limits.get(name, ABSENT) if self.group is None else self.of_group(name)

    def _cpu(self, used: Optional[Used]) -> Tuple[int, int, int]:
        whole = self.of_group("cpu_seconds")
        if whole != ABSENT:
            return whole, self.of_group("user_seconds"), self.of_group("system_seconds")
        if used is None:
            return ABSENT, ABSENT, ABSENT
        return used.user + used.system, used.user, used.system

    def _storage(self, name: str, of_processes: int, known: bool) -> int:
        group = self.of_group(name)
        if group != ABSENT:
            return max(group, of_processes)
        return of_processes if known else ABSENT

    def _memory(self, processes_fresh: bool) -> int:
        anon, shmem = self.of_group("anon_bytes"), self.of_group("shmem_bytes")
        if anon != ABSENT:
            return anon + (shmem if shmem != ABSENT else 0)
        return self.memory.bytes if self.memory and processes_fresh else ABSENT


def _count_blocked(processes: Processes) -> int:
    """Count processes that wait for storage. After vfork(2) a parent is in the same state until its child,
    which shares its memory and has not computed yet, executes a program: that child may wait for a core."""
    waiting = [(key, values) for key, values in processes if values[_STATE] == _BLOCKED]
    if not waiting:
        return 0
    memory, user, system = _BEFORE_EXEC
    forked = {
        (key.parent, key.command, values[memory])
        for key, values in processes
        if values[user] + values[system] == 0
    }
    return sum((key.pid, key.command, values[memory]) not in forked for key, values in waiting)
