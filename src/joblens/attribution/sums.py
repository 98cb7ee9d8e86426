"""`job` and `step`: what each job, and each step of it, has used on this node so far.

CPU time and memory come from the job's cgroup where it has one that tells them, and from its processes
otherwise. Storage I/O is the larger of the two: a v1 group does not see buffered writes, no group sees
network file systems, and processes can end unseen. `job_info` says which it was.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Set, Tuple

from joblens.attribution.devices import DeviceLists, Given, JobName
from joblens.attribution.gpu_shares import OWNED_GPU_PROCESS, GpuShares
from joblens.attribution.ledger import Estates, Identity, Ledger, Member, Name, Used, knows_io
from joblens.attribution.sharing import Memory, SharedMemory
from joblens.collectors.cgroup_limits import Limits
from joblens.collectors.cgroups import SCHEMA as CGROUP
from joblens.collectors.gpu.reading import GPU_PROCESS
from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Job, Key, Owner, Rows, Schema

if TYPE_CHECKING:  # `joblens run` needs no owners, and they take 5 ms to load
    from joblens.attribution.owners import Owners


def _micro(name: str, what: str) -> Column:
    return Column(name + "_seconds", COUNTER, what, divisor=1_000_000)


_COLUMNS = (
    _micro("cpu", "time on cores"),
    _micro("user", "time in programs"),
    _micro("system", "time in the kernel"),
    Column("memory_bytes", GAUGE, "anonymous and shared memory, what is shared counted once; no cache"),
    Column("charged_bytes", GAUGE, "memory charged to the cgroup, cache included"),
    Column("charged_peak_bytes", GAUGE, "the most that was ever charged, cache included"),
    Column("memory_limit_bytes", GAUGE, "the limit of the cgroup's memory"),
    Column("read_chars_bytes", COUNTER, "bytes read by system calls"),
    Column("written_chars_bytes", COUNTER, "bytes written by system calls"),
    Column("read_bytes", COUNTER, "bytes read from storage"),
    Column("written_bytes", COUNTER, "bytes written to storage"),
    Column("processes", GAUGE, "processes now"),
    Column("threads", GAUGE, "threads now"),
    Column("oom_kills", COUNTER, "processes killed because the cgroup's memory ran out"),
    Column("cpus", GAUGE, "cores that the cgroup may use"),
    _micro("run_delay", "time that threads of sampled processes were ready to run and waited for a core"),
    _micro("throttled", "time that threads stood still because of the cgroup's CPU quota"),
    Column("blocked", GAUGE, "processes that wait for storage now"),
)
# `jobid` and not `job`, which Prometheus puts on every series itself.
JOB = Schema("job", ("cluster", "jobid", "node"), _COLUMNS)
STEP = Schema("step", ("cluster", "jobid", "step", "node"), _COLUMNS)
INFO = Schema(
    "job_info",
    ("cluster", "jobid", "node", "user", "uid", "source", "cpu_from", "memory_from", "io_from"),
    (Column("", GAUGE, "1 for each job on the node, with what is known of it"),),
)
OWNED_PROCESS = Schema("process", ("cluster", "jobid", "step", "node", *PROCESS.labels), PROCESS.columns)
_GROUP = {column.name: index for index, column in enumerate(CGROUP.columns)}
_THREADS, _STATE = PROCESS.position("threads"), PROCESS.position("state")
_DELAY = PROCESS.position("run_delay_seconds")
_BLOCKED = ord("D")  # uninterruptible sleep, proc(5)
_MOST_SEARCHES = 5  # for the limits of a job that may have none
_FORGOTTEN = 86_400  # seconds without a process after which a job's file was left behind by a lost Epilog

Processes = List[Tuple[ProcessKey, List[int]]]


def _name(owner: Owner) -> Name:
    return owner.job.cluster, owner.job.id, owner.step, owner.node


class Account:
    """What is known of one job, or one step, on this node."""

    def __init__(self, job: Job, since: int = 0) -> None:
        self.job = job
        self.group: Optional[List[int]] = None
        self.path = ""  # of the cgroup
        self.ledger = Ledger(since)
        self.memory: Optional[Memory] = None
        self.uid = self.told_uid = -1
        self.processes = 0
        self.threads = 0
        self.blocked = 0
        self.limits: Dict[str, int] = {}  # what a cgroup around the job has counted since its start
        self._around: Optional[Limits] = None
        self._limit_searches = 0
        self._most_kills = ABSENT
        self.io_known = False
        self.delay_known = False  # kernels can be built without it
        self.looked_for = False
        self.seen = job.start  # with a process or a cgroup, in seconds since 1970

    def take(
        self, processes: Processes, sharing: SharedMemory, foreign: Mapping[Identity, Used] = {}
    ) -> None:
        self.looked_for = True
        self.processes = len(processes)
        self.threads = sum(values[_THREADS] for _, values in processes)
        self.blocked = sum(values[_STATE] == _BLOCKED for _, values in processes)
        self.ledger.expect(foreign)
        self.ledger.update(processes)
        people = [(key, values) for key, values in processes if key.uid] or processes
        self.uid = self._whose([key.uid for key, _ in people])
        self.delay_known = self.delay_known or any(values[_DELAY] != ABSENT for _, values in processes)
        if people:
            self.io_known = all(knows_io(values) for _, values in people)
        if self.of_group("anon_bytes") == ABSENT:
            self.memory = sharing.measure(processes)

    def take_limits(self, host: Host, processes: Processes) -> None:
        """Of the groups around a job that has none of its own, from when it is first seen."""
        if self.group is not None or not processes:
            return
        if not (self._around and self._around.are_known) and self._limit_searches < _MOST_SEARCHES:
            self._limit_searches += 1  # the process can just have ended
            self._around = Limits(host, str(processes[0][0].pid))
        if self._around is not None:
            self.limits = self._around.increase()

    def close(self) -> None:
        if self._around is not None:
            self._around.close()

    def _whose(self, uids: List[int]) -> int:
        """Root's own are there first and last, around those of the job's user."""
        if self.told_uid >= 0:
            return self.told_uid
        if not any(uids) and (self.uid >= 0 or not uids):
            return self.uid
        # Most, and not the first: Flux's own user has the process from which a job's come.
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
        """Steps take theirs along when they end, as v1 counts in the groups of those that were killed."""
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


_NOBODY: Name = ("", "", "", "")


class Attribution:
    takes = frozenset(("process", "cgroup", "gpu"))

    def __init__(self, host: Host, owners: Owners) -> None:
        self.host, self.owners = host, owners
        self.accounts: Dict[Name, Account] = {}
        self._declared: Set[Name] = set()
        self.forgotten: Set[str] = set()  # jobs of which there is a file, and nothing else for a long time
        self._estates = Estates()
        self._sharing = SharedMemory(host)
        self._fresh = False
        self._devices = DeviceLists(host)
        self._shares = GpuShares()
        self._gpus: Optional[Rows] = None
        self._uses: Optional[Rows] = None
        self._of_pid: Dict[int, Name] = {}
        self._looked_for: Set[int] = set()  # pids of which it is known whose they are, or that nobody knows
        self._wanted: Set[int] = set()
        self._keys: Dict[str, Tuple[Key, ...]] = {}
        # Of the last scan:
        self._scanned: Tuple[Optional[Tuple[Key, ...]], List[ProcessKey]] = (None, [])
        self._owned: Tuple[Tuple[Key, ...], List[Optional[Owner]]] = ((), [])
        self._names: List[Tuple[Name, ...]] = []

    def take(self, rows: Rows) -> Rows:
        """The rows as they are told: those of processes have their job in front of their keys."""
        if rows.schema.set == "process":
            return self.take_processes(rows)
        if rows.schema.set == "gpu_process":
            return self.take_uses(rows)
        if rows.schema.set == "cgroup":
            self.take_groups(rows)
        elif rows.schema.set == "gpu":
            self._gpus = rows
        return rows

    def disown(self, rows: Rows) -> Rows:
        """The same as `take` while nothing is known of jobs."""
        schema = {"process": OWNED_PROCESS, "gpu_process": OWNED_GPU_PROCESS}.get(rows.schema.set)
        if schema is None:
            return rows
        return Rows(schema, tuple((*_NOBODY, *key) for key in rows.keys), rows.values)

    def take_groups(self, groups: Rows) -> None:
        seen: Dict[Name, List[int]] = {}
        for number, key in enumerate(groups.keys):
            owner = self.owners.of_path(str(key[0]))
            if owner is not None:
                self._account(owner).path = str(key[0])
                seen[_name(owner)] = groups.row(number)
        for name, account in self.accounts.items():
            account.group = seen.get(name)
        self._drop_ended()

    def take_processes(self, processes: Rows) -> Rows:
        """The same rows with their job in front of the key, for those that have one."""
        if processes.keys is not self._scanned[0]:
            self._scanned = (processes.keys, [key for key in processes.keys if isinstance(key, ProcessKey)])
        keys = self._scanned[1]
        owners = self.owners.of_processes(keys)
        for declared in self.owners.declared:
            self._account(declared)
        self._declared = set(map(_name, self.owners.declared))
        self.forgotten = set()
        is_as_before = self._are_owned_as_before(processes.keys, owners)
        if not is_as_before:
            whose = {id(it): it for it in owners}.values()
            names_of = {id(owner): self._accounts_of(owner) for owner in whose}
            self._names = [names_of[id(owner)] for owner in owners]
        members = [
            Member(key, processes.row(number), names)
            for number, (key, names) in enumerate(zip(keys, self._names))
        ]
        left = self._estates.update(members)
        of_account: Dict[Name, Processes] = {}
        for key, values, names in members:
            for name in names:
                of_account.setdefault(name, []).append((key, values))
        is_alone = sum(not name[2] for name in self.accounts) == 1  # else it can have been another's
        for name, account in self.accounts.items():
            mine = of_account.get(name, [])
            account.take(mine, self._sharing, left.get(name, {}))
            if is_alone and account.job.source == "file" and not name[2]:
                account.take_limits(self.host, mine)
        self._drop_ended()
        self._fresh = True
        self._looked_for = {key.pid for key in keys} | self._wanted
        self._wanted = set()
        if not is_as_before:
            self._sharing.forget((key.pid, key.start) for key in keys)
            self._owned = (processes.keys, owners)
            self._of_pid = {key.pid: _name(owner) for key, owner in zip(keys, owners) if owner}
            jobs = [_name(owner) if owner else _NOBODY for owner in owners]
            self._same("process", tuple((*job, *key) for job, key in zip(jobs, keys)))
        return Rows(OWNED_PROCESS, self._keys["process"], processes.values)

    def _are_owned_as_before(self, keys: Tuple[Key, ...], owners: List[Optional[Owner]]) -> bool:
        """By identity, which is what stays from one scan to the next while nothing changes."""
        before = self._owned
        return (
            "process" in self._keys
            and keys is before[0]
            and len(owners) == len(before[1])
            and all(map(is_, owners, before[1]))
        )

    def take_uses(self, uses: Rows) -> Rows:
        """Processes on GPUs, with their job in front of the key."""
        self._uses = uses
        self._wanted = {int(key[1]) for key in uses.keys} - self._looked_for
        keys = tuple((*self._of_pid.get(int(key[1]), _NOBODY), *key) for key in uses.keys)
        return Rows(OWNED_GPU_PROCESS, self._same("gpu_process", keys), uses.values)

    def _accounts_of(self, owner: Optional[Owner]) -> Tuple[Name, ...]:
        """Of the job, and of its step if there is one; nobody has none."""
        if owner is None:
            return ()
        parts = (owner._replace(step=""), owner) if owner.step else (owner,)
        for part in parts:
            self._account(part)
        return tuple(map(_name, parts))

    def wants_processes(self) -> bool:
        """Whether there is a job of which only its cgroup has been seen, or a new process on a GPU."""
        return bool(self._wanted) or not all(account.looked_for for account in self.accounts.values())

    def _account(self, owner: Owner) -> Account:
        """Make sure that there is one. Another start under the same name is another job."""
        account = self.accounts.get(_name(owner))
        if account is None or (account.job.start and owner.job.start not in (0, account.job.start)):
            account = self.accounts[_name(owner)] = Account(owner.job, self.owners.began(owner.job))
        elif owner.job.start:
            account.job = owner.job
        account.told_uid = self.owners.told_uid(owner.job)
        return account

    def _drop_ended(self) -> None:
        """Not those that a scheduler's hooks have not yet told to be over: another step may come."""
        now = self.host.now_ns() // 1_000_000_000
        for name, account in list(self.accounts.items()):
            if account.group is not None or account.processes:
                account.seen = now
            elif name not in self._declared:
                self.accounts.pop(name).close()
            elif now - account.seen > _FORGOTTEN:
                self.forgotten.add(account.job.id)
                self.accounts.pop(name).close()

    def rows(self) -> List[Rows]:
        """As of now: what was not measured since the last call is absent."""
        fresh, self._fresh = self._fresh, False
        gpus = self._job_gpus()
        self._gpus = self._uses = None
        return [*self._rows(self.accounts, fresh), *gpus]

    def _job_gpus(self) -> List[Rows]:
        if self._gpus is None:
            return []
        uses = self._uses or Rows(GPU_PROCESS, (), [])
        found = self._shares.share(self._gpus, uses, self.job_of, self._given(), self._sees)
        return [Rows(found.schema, self._same("job_gpu", found.keys), found.values)]

    def job_of(self, pid: int) -> Optional[JobName]:
        """As of the last look at processes."""
        found = self._of_pid.get(pid)
        return (found[0], found[1], found[3]) if found else None

    def _sees(self, job: JobName) -> bool:
        """Who is not root can look at the open files of their own processes."""
        cluster, name, node = job
        account = self.accounts.get((cluster, name, "", node))
        return self.host.sees_all_processes() or (account is not None and account.uid == self.host.uid)

    def _given(self) -> Dict[JobName, Given]:
        found: Dict[JobName, Given] = {}
        for (cluster, job, step, node), account in self.accounts.items():
            devices = self._devices.of_group(account.path) if account.path and not step else None
            if devices is not None:
                found[(cluster, job, node)] = Given(devices, "cgroup")
        for file in self.owners.files.load():
            if file.gpus and file.id not in self.forgotten:
                owner = self.owners.of_file(file)
                found[(owner.job.cluster, owner.job.id, owner.node)] = Given(frozenset(file.gpus), "file")
        return found

    def latest(self, processes_known: bool = True) -> Tuple[Rows, ...]:
        """As last known, for somebody who looks once in a while.

        While processes cannot be read, a job of which there is nothing else may have ended long ago.
        """
        jobs, steps = self._rows(self._accounts_known(processes_known), processes_known)
        return jobs, steps, self.infos(processes_known)

    def infos(self, processes_known: bool = True) -> Rows:
        accounts = self._accounts_known(processes_known)
        keys = tuple(self._info_key(name, account) for name, account in accounts.items() if not name[2])
        return Rows(INFO, self._same("job_info", keys), [1] * len(keys))

    def _accounts_known(self, processes_known: bool) -> Mapping[Name, Account]:
        if processes_known:
            return self.accounts
        return {name: account for name, account in self.accounts.items() if account.group is not None}

    def _rows(self, accounts: Mapping[Name, Account], fresh: bool) -> Tuple[Rows, Rows]:
        job_keys: List[Key] = []
        step_keys: List[Key] = []
        job_values: List[int] = []
        step_values: List[int] = []
        for name, account in accounts.items():
            cluster, job, step, node = name
            if step:
                step_keys.append(name)
                step_values += account.values(fresh)
            else:
                job_keys.append((cluster, job, node))
                job_values += account.values(fresh)
        return (
            Rows(JOB, self._same("job", tuple(job_keys)), job_values),
            Rows(STEP, self._same("step", tuple(step_keys)), step_values),
        )

    def _info_key(self, name: Name, account: Account) -> Key:
        cluster, job, _, node = name
        user = self.host.user(account.uid) if account.uid >= 0 else ""
        uid = account.uid if account.uid >= 0 else ""
        return (cluster, job, node, user, uid, account.job.source, *account.sources())

    def _same(self, which: str, keys: Tuple[Key, ...]) -> Tuple[Key, ...]:
        """The tuple of last time if it is equal, so that it is encoded and printed only once."""
        if self._keys.get(which) != keys:
            self._keys[which] = keys
        return self._keys[which]
