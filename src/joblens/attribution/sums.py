"""`job` and `step`: usage of each job and each of its steps on this node so far.

CPU time and memory come from the job's cgroup if it has one with these controllers, else from its processes.
Storage I/O is the larger of the two: a v1 cgroup does not count buffered writes, no cgroup counts network
file systems, and processes can end between two scans. `job_info` has the sources.
"""

from __future__ import annotations

from operator import is_
from typing import Dict, List, Mapping, Optional, Set, Tuple

from joblens.attribution.account import INFO, JOB, OWNED_PROCESS, STEP, Account, Processes
from joblens.attribution.devices import DeviceLists, Given, JobName
from joblens.attribution.gpu_shares import OWNED_GPU_PROCESS, GpuShares
from joblens.attribution.ledger import ForeignUsage, Member, Name
from joblens.attribution.owners import Owners
from joblens.attribution.sharing import SharedMemory
from joblens.collectors.gpu.reading import GPU_PROCESS
from joblens.collectors.process.collector import ProcessKey
from joblens.core.host import Host
from joblens.core.model import Key, Owner, Rows

_FORGOTTEN = 86_400  # seconds without a process, after which a job file counts as left by a failed Epilog


def _name(owner: Owner) -> Name:
    return owner.job.cluster, owner.job.id, owner.step, owner.node


_UNATTRIBUTED: Name = ("", "", "", "")


class Attribution:
    takes = frozenset(("process", "cgroup", "gpu"))

    def __init__(self, host: Host, owners: Owners) -> None:
        self.host, self.owners = host, owners
        self.accounts: Dict[Name, Account] = {}
        self._declared: Set[Name] = set()
        self.forgotten: Set[str] = set()  # jobs with a file but nothing else for a long time
        self._foreign = ForeignUsage()
        self._sharing = SharedMemory(host)
        self._fresh = False
        self._devices = DeviceLists(host)
        self._shares = GpuShares()
        self._gpus: Optional[Rows] = None
        self._uses: Optional[Rows] = None
        self._of_pid: Dict[int, Name] = {}
        self._known_pids: Set[int] = set()  # pids that the last scan has seen, or that were searched in vain
        self._wanted: Set[int] = set()
        self._keys: Dict[str, Tuple[Key, ...]] = {}
        # From the last scan:
        self._scanned: Tuple[Optional[Tuple[Key, ...]], List[ProcessKey]] = (None, [])
        self._owned: Tuple[Tuple[Key, ...], List[Optional[Owner]]] = ((), [])
        self._names: List[Tuple[Name, ...]] = []

    def take(self, rows: Rows) -> Rows:
        """Return the rows for output: those of processes have their job before their keys."""
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
        """As `take` while jobs are unknown."""
        schema = {"process": OWNED_PROCESS, "gpu_process": OWNED_GPU_PROCESS}.get(rows.schema.set)
        if schema is None:
            return rows
        return Rows(schema, tuple((*_UNATTRIBUTED, *key) for key in rows.keys), rows.values)

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
        """Return the same rows with the job before the key, empty if unattributed."""
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
            distinct = {id(it): it for it in owners}.values()
            names_of = {id(owner): self._accounts_of(owner) for owner in distinct}
            self._names = [names_of[id(owner)] for owner in owners]
        members = [
            Member(key, processes.row(number), names)
            for number, (key, names) in enumerate(zip(keys, self._names))
        ]
        left = self._foreign.update(members)
        of_account: Dict[Name, Processes] = {}
        for key, values, names in members:
            for name in names:
                of_account.setdefault(name, []).append((key, values))
        is_alone = sum(not name[2] for name in self.accounts) == 1  # else a limit may be another's
        for name, account in self.accounts.items():
            mine = of_account.get(name, [])
            account.take(mine, self._sharing, left.get(name, {}))
            if is_alone and account.job.source == "file" and not name[2]:
                account.take_limits(self.host, mine)
        self._drop_ended()
        self._fresh = True
        self._known_pids = {key.pid for key in keys} | self._wanted
        self._wanted = set()
        if not is_as_before:
            self._sharing.forget((key.pid, key.start) for key in keys)
            self._owned = (processes.keys, owners)
            self._of_pid = {key.pid: _name(owner) for key, owner in zip(keys, owners) if owner}
            jobs = [_name(owner) if owner else _UNATTRIBUTED for owner in owners]
            self._same("process", tuple((*job, *key) for job, key in zip(jobs, keys)))
        return Rows(OWNED_PROCESS, self._keys["process"], processes.values)

    def owned(self) -> Tuple[List[ProcessKey], List[Optional[Owner]]]:
        """Return the processes of the last scan and their owners."""
        return self._scanned[1], self._owned[1]

    def _are_owned_as_before(self, keys: Tuple[Key, ...], owners: List[Optional[Owner]]) -> bool:
        """Compare by identity, which is preserved between scans while nothing changes."""
        before = self._owned
        return (
            "process" in self._keys
            and keys is before[0]
            and len(owners) == len(before[1])
            and all(map(is_, owners, before[1]))
        )

    def take_uses(self, uses: Rows) -> Rows:
        """Return processes on GPUs with their job before the key."""
        self._uses = uses
        self._wanted = {int(key[1]) for key in uses.keys} - self._known_pids
        keys = tuple((*self._of_pid.get(int(key[1]), _UNATTRIBUTED), *key) for key in uses.keys)
        return Rows(OWNED_GPU_PROCESS, self._same("gpu_process", keys), uses.values)

    def _accounts_of(self, owner: Optional[Owner]) -> Tuple[Name, ...]:
        """Return those of the job and of its step, if any; none for an unattributed process."""
        if owner is None:
            return ()
        parts = (owner._replace(step=""), owner) if owner.step else (owner,)
        for part in parts:
            self._account(part)
        return tuple(map(_name, parts))

    def wants_processes(self) -> bool:
        """Whether there is a job of which only the cgroup is known, or a new process on a GPU."""
        return bool(self._wanted) or not all(account.scanned for account in self.accounts.values())

    def _account(self, owner: Owner) -> Account:
        """Return the account, a new one if needed. Another start under the same name is another job."""
        account = self.accounts.get(_name(owner))
        if account is None or (account.job.start and owner.job.start not in (0, account.job.start)):
            account = self.accounts[_name(owner)] = Account(owner.job, self.owners.began(owner.job))
        elif owner.job.start:
            account.job = owner.job
        account.declared_uid = self.owners.declared_uid(owner.job)
        return account

    def _drop_ended(self) -> None:
        """Keep those whose end a scheduler's hooks have not yet reported: another step may start."""
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
        """Return current rows: what was not measured since the last call is absent."""
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
        """Return the job of a process as of the last scan."""
        found = self._of_pid.get(pid)
        return (found[0], found[1], found[3]) if found else None

    def _sees(self, job: JobName) -> bool:
        """An unprivileged agent can read the open files of its own user's processes only."""
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
        """Return the last known rows, for a reader between two ticks.

        While processes cannot be read, a job without a cgroup may have ended long ago.
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
        """Return the previous tuple if it is equal, so that it is encoded and printed only once."""
        if self._keys.get(which) != keys:
            self._keys[which] = keys
        return self._keys[which]
