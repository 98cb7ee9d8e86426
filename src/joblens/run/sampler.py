"""The sampling process of `joblens run`: samples the command and its descendants until the command ends.

It is in the command's process group, so that it sees which signals went to the whole group. It ignores all of
them.
"""

from __future__ import annotations

import os
import time

from joblens.attribution.account import JOB, OWNED_PROCESS, Account
from joblens.collectors.cgroup_limits import Limits, find_limits
from joblens.collectors.cpu import cpu
from joblens.collectors.disk import disk
from joblens.collectors.lazy import (
    lazy_energy,
    lazy_infiniband,
    lazy_lustre,
    lazy_nfs,
    lazy_slingshot,
    may_have_gpus,
)
from joblens.collectors.load import load
from joblens.collectors.memory import memory
from joblens.collectors.network import network
from joblens.collectors.pressure import pressure
from joblens.collectors.process.collector import ProcessKey, processes
from joblens.core.errors import sentence
from joblens.core.files import sync_with_folders
from joblens.core.host import Host
from joblens.core.model import Job, Key, Rows, Sample
from joblens.core.named_tuple import NamedTuple
from joblens.run.batches import Batches
from joblens.run.clock import Clock, start_clock
from joblens.run.inherited_usage import InheritedUsage
from joblens.run.kernel_events import JobEvents
from joblens.run.mark_file import JobMarks
from joblens.run.memory import JobMemory
from joblens.run.plain_signal import signal
from joblens.run.streams import wait_readable
from joblens.run.usage import Before, Inherited

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable, List, Optional, Set, Tuple, TypeVar

    from joblens.run.facts import RunFacts
    from joblens.run.gpus import JobGpus
    from joblens.wire.header import Head

    Found = TypeVar("Found")
    Read = Callable[[], Tuple[Rows, ...]]


# Seconds after the start: short jobs are sampled more often in their first second.
_FIRST_SAMPLES = (0.0, 0.03, 0.1, 0.25, 0.55)
_MOST_PROBLEMS = 20
_DEVICES_SECONDS = 5.0  # reading all counters of an adapter is slow
_OMITTED = ("nfs_operation",)
_IGNORED = (signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGXFSZ)


class SamplerPipes(NamedTuple):
    """The sampler's ends of the pipes from and to the supervisor."""

    control: int  # brings the pid of the command at its start, and the supervisor's usage at its end
    signals: int  # takes the number of each signal that arrives, as a byte


def _open_all(host: Host, collectors: Iterable[Callable[[Host], Read]]) -> List[Read]:
    """Open the collectors that work on this machine."""
    found: List[Read] = []
    for collector in collectors:
        try:
            found.append(collector(host))
        except OSError:
            continue
    return found


def _open_gpus(host: Host, job: Tuple[str, str, str], given: Optional[Tuple[str, ...]]) -> Optional[JobGpus]:
    """Most nodes have none, and to load their modules takes as long as three samples."""
    if not may_have_gpus(host):
        return None
    from joblens.run.gpus import JobGpus

    return JobGpus(host, job, given)


class Sampler:
    def __init__(
        self,
        host: Host,
        facts: RunFacts,
        parent: int,
        clock: Optional[Clock] = None,
        folder: str = "",
        before: Optional[Before] = None,
        command: int = 0,
    ) -> None:
        self.host, self.clock = host, clock or start_clock()
        self.job = Job(facts.cluster, facts.id, "run", int(facts.start))
        self.node = facts.node
        self.inherited = InheritedUsage(host, parent, before.inherited if before else None)
        self.account = Account(self.job)
        self.problems: List[str] = []
        self._memory = JobMemory(host)
        limiting = before.limiting if before else find_limits(host)
        self._limits = Limits(host, limiting, before.limits if before else None)
        ignored = before.pids if before else frozenset()
        self._processes = processes(host, below=parent, first=command, ignored=ignored)
        self._node_sets = _open_all(host, (cpu, memory, load, disk, network, pressure))
        self._devices = _open_all(host, (lazy_energy, lazy_infiniband, lazy_slingshot, lazy_lustre, lazy_nfs))
        self._devices_due = 0.0
        self.gpus = _open_gpus(host, (self.job.cluster, self.job.id, self.node), facts.gpus)
        self._events = JobEvents(host, (self.job.cluster, self.job.id, self.node), self.clock.now_ns)
        self.marks = JobMarks(folder, (self.job.cluster, self.job.id, self.node), self.clock)
        self._pids: Set[int] = set()
        self._job_keys: Tuple[Key, ...] = ((self.job.cluster, self.job.id, self.node),)
        self._process_keys: Tuple[Key, ...] = ()
        self._total_key: Tuple[Key, ...] = (("total",),)

    def save_facts(self, folder: str) -> None:
        """Sync them to disk, for which the command has not waited."""
        try:
            sync_with_folders(f"{folder}/job.json")
        except OSError as error:
            self.problems.append(sentence(error))

    def all_problems(self) -> List[str]:
        return self.problems + (self.gpus.problems() if self.gpus else []) + self.marks.problems()

    def sample(self, last: bool = False, inherited: Optional[Inherited] = None) -> List[Sample]:
        """`inherited` is what the supervisor has read when the command ended."""
        now = self.clock.now_ns()
        found = self._read(lambda: self._sample_job(inherited)) + self._read(self._sample_gpus)
        for read in list(self._node_sets):
            rows = self._read(read)
            if not rows:
                self._node_sets.remove(read)
            found += [self._whole_node(it) for it in rows]
        if last or time.monotonic() >= self._devices_due:
            self._devices_due = time.monotonic() + _DEVICES_SECONDS
            for read in list(self._devices):
                found += self._sample_device(read)
        buses = self.gpus.buses if self.gpus else ()
        events = self._read(lambda: self._events.read(self._pids, buses))
        return [*(Sample(now, rows) for rows in found), *events, *self._read(self.marks.read)]

    def _read(self, read: Callable[[], Iterable[Found]]) -> List[Found]:
        """Isolate sources from each other, and record each error once."""
        try:
            return list(read())
        except Exception as error:
            problem = sentence(error)
            if problem not in self.problems and len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(problem)
            return []

    def _sample_job(self, inherited: Optional[Inherited]) -> Tuple[Rows, Rows]:
        # Before the processes: one that ends in between is then missed now, and not counted twice.
        self.inherited.read(inherited)
        (rows,) = self._processes()
        members = [(key, rows.row(n)) for n, key in enumerate(rows.keys) if isinstance(key, ProcessKey)]
        self.account.take([*self.inherited.entries, *members], self._memory)
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

    def _sample_gpus(self) -> Tuple[Rows, ...]:
        return self.gpus.read(self._pids) if self.gpus else ()

    def _sample_device(self, read: Read) -> List[Rows]:
        def sample() -> Iterable[Rows]:
            try:
                return read()
            except FileNotFoundError:  # not on this machine
                self._devices.remove(read)
                return ()

        return [rows for rows in self._read(sample) if rows.schema.set not in _OMITTED and rows.keys]

    def _whole_node(self, rows: Rows) -> Rows:
        """Keep only the sum of the cores; the node's agent records each core."""
        if rows.schema.set != "cpu":
            return rows
        return Rows(rows.schema, self._total_key, rows.row(0))


def run_sampler(
    pipes: SamplerPipes,
    signals: Set[int],
    parent: int,
    facts: RunFacts,
    folder: str,
    clock: Clock,
    before: Before,
) -> List[str]:
    """Sample until the command has ended. Return the problems."""
    _forward(signals, pipes.signals)
    head: Head = {"cluster": facts.cluster, "node": facts.node, "boot": facts.boot, "id": facts.id}
    command = _read_pid(pipes.control)
    if not command:  # it could not be started
        return []
    sampler, batches = Sampler(Host(), facts, parent, clock, folder, before, command), Batches(folder, head)
    begin = time.monotonic()
    samples = 0
    while True:
        batches.add(sampler.sample())
        if not samples:
            sampler.save_facts(folder)
        samples += 1
        due = begin + _next_sample(samples, time.monotonic() - begin, facts.interval)
        if wait_readable([pipes.control], due - time.monotonic()):
            break
    batches.add(sampler.sample(True, _read_inherited(pipes.control)))  # processes can outlive the command
    batches.flush()
    return sampler.all_problems() + batches.problems()


def _read_pid(control: int) -> int:
    digits = b"".join(
        iter(lambda: os.read(control, 1).strip(), b"")
    )  # to the end of the line, or of the pipe
    return int(digits or 0)


def _read_inherited(control: int) -> Optional[Inherited]:
    """Return None if the supervisor was killed before it could write."""
    data = b"".join(iter(lambda: os.read(control, 65536), b""))
    stat, zero, io = data.partition(b"\0")
    return Inherited(stat, io) if zero else None


def _next_sample(samples: int, elapsed: float, interval: float) -> float:
    """Return seconds after the start: the first few close together, then multiples of the interval."""
    if samples < len(_FIRST_SAMPLES) and _FIRST_SAMPLES[samples] < interval:
        return _FIRST_SAMPLES[samples]
    return (int(elapsed / interval) + 1) * interval


def _forward(signals: Set[int], pipe: int) -> None:
    """Write each signal to the pipe as a byte, which Python's C handler does at once."""
    os.set_blocking(pipe, False)
    signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
