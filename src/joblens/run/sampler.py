"""The process that looks on: samples the command and all that comes from it, until it is told to end.

It shares the command's process group, so that it sees which signals went to the whole group, and is
deaf to all of them.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple, TypeVar

from joblens.attribution.sums import JOB, OWNED_PROCESS, Account
from joblens.collectors.cgroup_limits import Limits
from joblens.collectors.cpu import cpu
from joblens.collectors.disk import disk
from joblens.collectors.lazy import lazy_energy, lazy_infiniband, lazy_lustre, lazy_nfs, lazy_slingshot
from joblens.collectors.load import load
from joblens.collectors.memory import memory
from joblens.collectors.network import network
from joblens.collectors.pressure import pressure
from joblens.collectors.process.collector import ProcessKey, processes
from joblens.core.errors import sentence
from joblens.core.files import sync_with_folders
from joblens.core.host import Host
from joblens.core.model import Job, Key, Rows, Sample
from joblens.run.batches import Batches
from joblens.run.before import Before
from joblens.run.clock import Clock, start_clock
from joblens.run.gpus import JobGpus
from joblens.run.inherited_usage import InheritedUsage
from joblens.run.kernel_events import JobEvents
from joblens.run.mark_file import JobMarks
from joblens.run.memory import JobMemory
from joblens.run.streams import wait_readable
from joblens.run.totals import Inherited

# Short jobs are looked at more often in their first second.
_FIRST_LOOKS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6)
_MOST_PROBLEMS = 20
_DEVICES_SECONDS = 5.0  # adapters are asked for every counter of theirs
_TOO_MUCH = ("nfs_operation",)
_DEAF_TO = (signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ)
Found = TypeVar("Found")
Read = Callable[[], Tuple[Rows, ...]]


class Told(NamedTuple):
    """The watcher's ends of the pipes from and to the supervisor."""

    told: (
        int  # brings the pid of the command that has begun, and what the supervisor has inherited at its end
    )
    hears: int  # takes each signal that came, as a byte


def _open_all(host: Host, collectors: Iterable[Callable[[Host], Read]]) -> List[Read]:
    """Those that this machine has something for."""
    found: List[Read] = []
    for collector in collectors:
        try:
            found.append(collector(host))
        except OSError:
            continue
    return found


class Watch:
    def __init__(
        self,
        host: Host,
        facts: Dict[str, Any],
        parent: int,
        clock: Optional[Clock] = None,
        folder: str = "",
        before: Optional[Before] = None,
        command: int = 0,
    ) -> None:
        self.host, self.clock = host, clock or start_clock()
        self.job = Job(facts["cluster"], facts["id"], "run", int(facts["start"]))
        self.node = str(facts["node"])
        self.heir = InheritedUsage(host, parent, before.inherited if before else None)
        self.account = Account(self.job)
        self.problems: List[str] = []
        self._memory = JobMemory(host)
        self._limits = Limits(host, first=before.limits if before else None)
        self._processes = processes(host, below=parent, first=command)
        self._node_sets = _open_all(host, (cpu, memory, load, disk, network, pressure))
        self._devices = _open_all(host, (lazy_energy, lazy_infiniband, lazy_slingshot, lazy_lustre, lazy_nfs))
        self._devices_due = 0.0
        self.gpus = JobGpus(host, (self.job.cluster, self.job.id, self.node), facts.get("gpus"))
        self._events = JobEvents(host, (self.job.cluster, self.job.id, self.node), self.clock.now_ns)
        self.marks = JobMarks(folder, (self.job.cluster, self.job.id, self.node), self.clock)
        self._pids: Set[int] = set()
        self._job_keys: Tuple[Key, ...] = ((self.job.cluster, self.job.id, self.node),)
        self._process_keys: Tuple[Key, ...] = ()
        self._total_key: Tuple[Key, ...] = (("total",),)

    def save_facts(self, folder: str) -> None:
        """Onto the disk: the command has not waited for that."""
        try:
            sync_with_folders(f"{folder}/job.json")
        except OSError as error:
            self.problems.append(sentence(error))

    def sample(self, last: bool = False, inherited: Optional[Inherited] = None) -> List[Sample]:
        """`inherited` is what the supervisor has read itself when the command ended."""
        now = self.clock.now_ns()
        found = self._read(lambda: self._sample_job(inherited)) + self._read(
            lambda: self.gpus.read(self._pids)
        )
        for read in list(self._node_sets):
            rows = self._read(read)
            if not rows:
                self._node_sets.remove(read)
            found += [self._whole_node(it) for it in rows]
        if last or time.monotonic() >= self._devices_due:
            self._devices_due = time.monotonic() + _DEVICES_SECONDS
            for read in list(self._devices):
                found += self._read(partial(self._sample_device, read))
        events = self._read(lambda: self._events.read(self._pids, self.gpus.buses))
        return [*(Sample(now, rows) for rows in found), *events, *self._read(self.marks.read)]

    def _read(self, read: Callable[[], Iterable[Found]]) -> List[Found]:
        """One source's trouble is not the others', and is told once."""
        try:
            return list(read())
        except Exception as error:
            told = sentence(error)
            if told not in self.problems and len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(told)
            return []

    def _sample_job(self, inherited: Optional[Inherited]) -> Tuple[Rows, Rows]:
        # Before its descendants: one that ends in between is then seen late, and not twice.
        self.heir.look(inherited)
        (rows,) = self._processes()
        members = [(key, rows.row(n)) for n, key in enumerate(rows.keys) if isinstance(key, ProcessKey)]
        self.account.take([*self.heir.entries, *members], self._memory)
        self.account.processes = len(members)
        self.account.limits = self._limits.increase()
        self._pids = {key.pid for key, _ in members}
        self._memory.forget((key.pid, key.start) for key, _ in members)
        keys = tuple((self.job.cluster, self.job.id, "", self.node, *key) for key in rows.keys)
        if keys != self._process_keys:
            self._process_keys = keys
        return (
            Rows(JOB, self._job_keys, self.account.values(processes_fresh=True)),
            Rows(OWNED_PROCESS, self._process_keys, rows.values),
        )

    def _sample_device(self, read: Callable[[], Tuple[Rows, ...]]) -> Tuple[Rows, ...]:
        try:
            return tuple(rows for rows in read() if rows.schema.set not in _TOO_MUCH and rows.keys)
        except FileNotFoundError:  # not on this machine
            self._devices.remove(read)
            return ()

    def _whole_node(self, rows: Rows) -> Rows:
        """Of the cores only their sum: what each core does is the node's agent's to tell."""
        if rows.schema.set != "cpu":
            return rows
        return Rows(rows.schema, self._total_key, rows.row(0))


def watch(
    told: Told,
    signals: Set[int],
    parent: int,
    facts: Dict[str, Any],
    folder: str,
    clock: Clock,
    before: Before,
) -> List[str]:
    """Until told to stop. Gives what went wrong, as sentences."""
    _listen_to(signals, told.hears)
    head = {name: facts[name] for name in ("cluster", "node", "boot", "id")}
    command = _read_pid(told.told)
    if not command:  # it could not be started
        return []
    watcher, batches = Watch(Host(), facts, parent, clock, folder, before, command), Batches(folder, head)
    begin = time.monotonic()
    looks = 0
    while True:
        batches.add(watcher.sample())
        if not looks:
            watcher.save_facts(folder)
        looks += 1
        due = begin + _next_look(looks, time.monotonic() - begin, float(facts["interval"]))
        if wait_readable([told.told], due - time.monotonic()):
            break
    batches.add(watcher.sample(True, _read_inherited(told.told)))  # those that outlive the command
    batches.flush()
    return watcher.problems + watcher.gpus.problems() + watcher.marks.problems() + batches.problems()


def _read_pid(told: int) -> int:
    digits = b"".join(iter(lambda: os.read(told, 1).strip(), b""))  # to the end of the line, or of the pipe
    return int(digits or 0)


def _read_inherited(told: int) -> Optional[Inherited]:
    """None if the supervisor was killed before it could say it."""
    data = b"".join(iter(lambda: os.read(told, 65536), b""))
    stat, zero, io = data.partition(b"\0")
    return Inherited(stat, io) if zero else None


def _next_look(looks: int, elapsed: float, interval: float) -> float:
    """Seconds after the begin: the first few close together, then multiples of the interval."""
    if looks < len(_FIRST_LOOKS) and _FIRST_LOOKS[looks] < interval:
        return _FIRST_LOOKS[looks]
    return (int(elapsed / interval) + 1) * interval


def _listen_to(signals: Set[int], hears: int) -> None:
    """Each is one byte in the pipe, which Python's own handler writes at once, whatever we are doing."""
    os.set_blocking(hears, False)
    signal.set_wakeup_fd(hears, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
