"""The owner of a process is determined by the first of these that applies:

1. the cgroup that a scheduler put it in,
2. a job file that names it, an ancestor, its session or its user,
3. an ancestor that is a slurmstepd, if Slurm runs without cgroups,
4. the result of 2 or 3 at an earlier scan: it stays in its job when its parents end,
5. inference, for processes of ordinary users: the process group on a terminal, the session elsewhere.

Otherwise it is unattributed. Nothing that a user could forge counts: no environment, no process name, no
command line except that of a slurmstepd verified by joblens.attribution.slurmstepd.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from joblens.attribution.jobfiles import SLURM, JobFile, JobFiles
from joblens.attribution.paths import PathJob, parse_job_path
from joblens.attribution.slurmstepd import FORGED, SLURMD, TRUSTED, Stepds, parse_title
from joblens.collectors.process.collector import ProcessKey, may_be_stepd
from joblens.core.config import AttributionSettings
from joblens.core.host import Host
from joblens.core.model import Job, Owner

UP_VARIABLE = "JOBLENS_UP"  # the pid of the `joblens up` that has started this agent
_NOBODY_UID = 65534
_TICKS = 100
_ROUNDED = 2  # seconds
_MOST_PATHS = 1000  # cached: some 300 bytes each, and a few µs to parse again
_MOST_FACTS = 4096


class Owners:
    def __init__(self, host: Host, settings: AttributionSettings, cluster: str, node: str) -> None:
        self.host, self.settings = host, settings
        self.cluster, self.node = cluster, node
        self.files = JobFiles(host, settings.job_files)
        self.stepds = Stepds(host)
        self._boot = host.boot_time()
        self._paths: Dict[str, Optional[Owner]] = {}
        # Declared by Slurm's prolog, including jobs whose file is gone while their last process is not.
        self._facts: OrderedDict[str, Dict[str, JobFile]] = OrderedDict()  # by job, then by node
        self._claimed: Dict[str, int] = {}  # users of other jobs that files declare
        self.declared: List[Owner] = []  # jobs on this node by Slurm's hooks, with or without processes
        self.inherited: Dict[Tuple[int, int], Owner] = {}
        self._inferred: Dict[str, Owner] = {}
        self._files: Optional[List[JobFile]] = None  # as last loaded; those that claim processes are below
        self._claiming: List[JobFile] = []
        self._asked: Optional[Tuple[Sequence[ProcessKey], List[JobFile]]] = None  # what `_answer` is for
        self._answer: List[Optional[Owner]] = []
        self._is_sure = True
        self.up = _find_up() if host.live else 0  # it and its daemons are not a job
        self._of_files: Dict[int, Tuple[JobFile, Owner]] = {}  # by id() of the file, which is kept with it

    def problems(self) -> Dict[str, str]:
        """Return why a job file or a kind of process is not trusted."""
        stepds = {"slurmstepd": self.stepds.problem} if self.stepds.problem else {}
        return {**self.files.problems, **stepds}

    def of_path(self, path: str) -> Optional[Owner]:
        if path in self._paths:
            return self._paths[path]
        if len(self._paths) >= _MOST_PATHS:
            self._paths.clear()
        found = parse_job_path(path)
        if found and found.maker >= 0 and self.host.user(found.maker) != self.settings.flux_user:
            self.defer()  # its user may be unknown only now
            return None
        owner = self._paths[path] = self._owner_of_path(found) if found else None
        return owner

    def _owner_of_path(self, found: PathJob) -> Optional[Owner]:
        if found.scheduler == SLURM:
            if found.job not in self._facts:
                self._load_files()
            return self.of_slurm(found.job, found.step, found.node)
        return Owner(Job(self.cluster, found.job, found.scheduler), found.step, found.node or self.node)

    def defer(self) -> None:
        """Mark the result as preliminary: it is computed again even if nothing changes."""
        self._is_sure = False

    def _load_files(self) -> List[JobFile]:
        """Return those that claim processes, and store the others as facts."""
        files = self.files.load()
        if files is self._files:
            return self._claiming
        self._files = files
        for file in files:
            if file.source == SLURM and self._facts.get(file.id, {}).get(file.node) != file:
                self._facts.setdefault(file.id, {})[file.node] = file
                self._paths.clear()
        while len(self._facts) > _MOST_FACTS:
            self._facts.popitem(last=False)
        self.declared = [self.of_file(file) for file in files if file.source == SLURM]
        self._claiming = [file for file in files if file.source != SLURM]
        self._claimed = {file.id: file.uid for file in self._claiming}
        return self._claiming

    def declared_uid(self, job: Job) -> int:
        """Return the user of a job by Slurm's prolog or its job file; -1 if unknown."""
        if job.source == "file":
            return self._claimed.get(job.id, -1)
        facts = self._facts_of(job.id, "") if job.source == SLURM else None
        return facts.uid if facts else -1

    def _facts_of(self, job: str, node: str) -> Optional[JobFile]:
        """Return those of its last run: an earlier file may be known of a node where it no longer runs."""
        files = self._facts.get(job, {})
        if node in files or not files:
            return files.get(node)
        return max(files.values(), key=lambda file: file.start)

    def began(self, job: Job) -> int:
        """Return the start of a job declared by a file, in clock ticks since boot; 0 if unknown.

        Both times are whole seconds, so its own first process may appear to be slightly older.
        """
        known = job.source == "file" and job.start and self._boot
        return (job.start - self._boot - _ROUNDED) * _TICKS if known else 0

    def of_slurm(self, job: str, step: str, node: str = "") -> Optional[Owner]:
        """None for another node on this machine than `only_node`."""
        only = self.settings.only_node
        if only and node not in ("", only):
            return None
        node = "" if only else node
        facts = self._facts_of(job, node)
        if facts is None:
            return Owner(Job(self.cluster, job, SLURM), step, node or self.node)
        owner = self.of_file(facts)
        return owner._replace(step=step, node=node or owner.node)

    def of_processes(self, keys: Sequence[ProcessKey]) -> List[Optional[Owner]]:
        """Return one owner per key, in order: the same list while neither keys nor files change."""
        files = self._load_files()
        if self._asked and self._asked[0] is keys and self._asked[1] is files:
            return self._answer
        self._asked, self._is_sure = None, True
        search = _Search(self, keys, files)
        self._answer = [search.owner(key) for key in keys]
        self.stepds.keep(search.stepds)
        self.inherited = search.inherited
        self._inferred = search.inferred
        self._asked = (keys, files) if self._is_sure else None
        return self._answer

    def infer(self, name: str, leader: ProcessKey) -> Owner:
        """The leader's start is the job's, also after the leader has ended."""
        known = self._inferred.get(name)
        if known is not None:
            return known
        start = self._boot + leader.start // _TICKS
        return Owner(Job(self.cluster, name, "inferred", start), "", self.node)

    def of_file(self, found: JobFile) -> Owner:
        """Return the same object each time: a job can have very many processes."""
        known = self._of_files.get(id(found))
        if known is None:
            if len(self._of_files) >= _MOST_FACTS:
                self._of_files.clear()
            known = self._of_files[id(found)] = (found, self._make_owner(found))
        return known[1]

    def _make_owner(self, found: JobFile) -> Owner:
        job = Job(found.cluster or self.cluster, found.id, found.source or "file", found.start)
        long = self.node.startswith(found.node + ".")  # the host's name with its domain
        return Owner(job, found.step, self.node if long else found.node or self.node)


def _find_up() -> int:
    text = os.environ.get(UP_VARIABLE, "")
    return int(text) if text.isdigit() else 0


def _count_slurmd(by_pid: Mapping[int, ProcessKey]) -> int:
    """Count slurmd processes without those that one forks for hooks and steps."""
    found = {key.pid: key for key in by_pid.values() if key.name == SLURMD and key.uid == 0}
    return sum(key.parent not in found for key in found.values())


class _Search:
    """The search for owners in one scan: the result for a parent is reused for its children."""

    def __init__(self, owners: Owners, keys: Sequence[ProcessKey], files: List[JobFile]) -> None:
        self.owners = owners
        self.by_pid = {key.pid: key for key in keys}
        self.stepds = [key for key in keys if may_be_stepd(key)]
        self.several = bool(owners.settings.only_node) or _count_slurmd(self.by_pid) > 1
        self.by_session = {file.session: file for file in files if file.session}
        self.by_root = {file.pid: file for file in files if file.pid}
        whole_user = [file for file in files if not file.session and not file.pid]
        uids = [file.uid for file in whole_user]
        self.by_user = {file.uid: file for file in whole_user if uids.count(file.uid) == 1}
        self.of_users = {owners.of_file(file) for file in self.by_user.values()}
        self.inherited: Dict[Tuple[int, int], Owner] = {}
        self.inferred: Dict[str, Owner] = {}
        self._lineage: Dict[int, Optional[Owner]] = {}
        self._nodes: Optional[Dict[int, Optional[str]]] = None
        self._unchecked: Set[Owner] = set()  # whose slurmstepd could not be verified

    def owner(self, key: ProcessKey) -> Optional[Owner]:
        owner = self.owners.of_path(key.cgroup) if key.cgroup != "/" else None
        if owner is not None:
            return owner
        owner = self._by_lineage(key)
        if owner in self._unchecked and key.uid not in (0, self.owners.host.uid):
            return None  # unverified: counts only for root and the agent's own user
        if owner is not None:
            # A file that claims all processes of a user says nothing about them once it is gone: those that
            # were there before and continue, such as a terminal, are not the job's.
            if owner not in self.of_users:
                self.inherited[(key.pid, key.start)] = owner
            return owner
        return self._infer(key)

    def _by_lineage(self, key: ProcessKey) -> Optional[Owner]:
        line: List[ProcessKey] = []
        owner: Optional[Owner] = None
        current: Optional[ProcessKey] = key
        while current is not None and current.pid not in self._lineage and current not in line:
            line.append(current)
            owner = self._of_itself(current)
            if owner is not None:
                break
            current = self.by_pid.get(current.parent)
        if owner is None and current is not None:
            owner = self._lineage.get(current.pid)
        for passed in line:
            self._lineage[passed.pid] = owner
        return owner

    def _of_itself(self, key: ProcessKey) -> Optional[Owner]:
        root = self.by_root.get(key.pid)
        if root is not None and root.pid_start not in (0, key.start):
            root = None  # that process has ended and its pid was reused
        file = root or self.by_session.get(key.session) or self.by_user.get(key.uid)
        if file is not None and key.uid in (file.uid, 0):
            return self.owners.of_file(file)
        step = parse_title(key.command) if may_be_stepd(key) else None
        trust = self.owners.stepds.trust(key) if step else FORGED
        if step is None or trust == FORGED:
            return self.owners.inherited.get((key.pid, key.start))
        node = self._node(key.pid)
        owner = self.owners.of_slurm(step.job, step.id, node) if node is not None else None
        if owner is not None and trust != TRUSTED:
            self._unchecked.add(owner)
        return owner

    def _node(self, stepd: int) -> Optional[str]:
        """Return "" if there is only one node, None while it is unknown."""
        if not self.several:
            return ""
        if self._nodes is None:
            self._nodes = self._find_nodes()
        node = self._nodes.get(stepd)
        if node is None:
            self.owners.defer()
        return node

    def _find_nodes(self) -> Dict[int, Optional[str]]:
        """Map slurmstepd to node; what cannot be distinguished counts for the first of the job's nodes."""
        stepds = self.owners.stepds
        tasks: Dict[int, List[ProcessKey]] = {key.pid: [] for key in self.stepds}
        for key in self.by_pid.values():
            if key.parent in tasks:
                tasks[key.parent].append(key)
        found: Dict[int, Optional[str]] = {}
        of_job: Dict[str, Set[str]] = {}
        for key in self.stepds:
            step = parse_title(key.command)
            if step and stepds.trust(key) != FORGED:
                found[key.pid] = node = stepds.node(key, tasks[key.pid])
                of_job.setdefault(step.job, {self.owners.settings.only_node}).add(node or "")
        for key in self.stepds:
            step = parse_title(key.command)
            if step and found.get(key.pid) == "":
                found[key.pid] = min(of_job[step.job] - {""}, default="")
        return found

    def _is_no_job(self, key: ProcessKey) -> bool:
        """Whether it is joblens itself, or its slurmstepd has not yet set the title with the job."""
        up, seen = self.owners.up, {key.pid}
        if key.pid == up:
            return True
        parent = self.by_pid.get(key.parent)
        while parent is not None and parent.pid not in seen:
            if parent.pid == up or (may_be_stepd(parent) and self.owners.stepds.trust(parent) != FORGED):
                return True
            seen.add(parent.pid)
            parent = self.by_pid.get(parent.parent)
        return False

    def _infer(self, key: ProcessKey) -> Optional[Owner]:
        settings = self.owners.settings
        if not settings.infer or key.uid < settings.first_uid or key.uid == _NOBODY_UID:
            return None
        if self._is_no_job(key):
            return None
        # For processes of another pid namespace, groups that are not visible here are 0.
        number = (key.group if key.terminal else key.session) or key.group or key.pid
        name = f"{'g' if key.terminal else 's'}{number}"
        owner = self.inferred.get(name)
        if owner is None:
            owner = self.inferred[name] = self.owners.infer(name, self.by_pid.get(number, key))
        return owner
