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
from joblens.collectors.process.collector import PROCESS, ProcessKey, processes
from joblens.core.errors import MalformedError, sentence
from joblens.core.files import sync_with_folders, write_whole
from joblens.core.host import KMSG, Host
from joblens.core.model import ABSENT, GAUGE, Column, Job, Key, Rows, Sample, Schema
from joblens.core.named_tuple import NamedTuple
from joblens.core.procfs import parse_io, parse_stat
from joblens.run.clock import Clock, start_clock
from joblens.run.mark_file import JobMarks
from joblens.run.memory import JobMemory
from joblens.run.plain_signal import signal
from joblens.run.streams import wait_readable
from joblens.run.usage import Before, Inherited
from joblens.wire.batch import Batch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Collection, Dict, Iterable, List, Optional, Set, Tuple, TypeVar

    from joblens.attribution.devices import JobName
    from joblens.collectors.kernel_log import Event, KernelLog
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
# A batch is written after this many seconds or values: they bound what a crash loses, and memory. The first
# ones are written sooner, because most jobs are short.
_FIRST_SECONDS, _BATCH_SECONDS = 1.0, 15.0
_BATCH_VALUES = 200_000
_MOST_UNWRITTEN = 16 << 20  # bytes of batches after failed writes
_CHILD_USER, _CHILD_SYSTEM = (PROCESS.position(f"children_{name}_seconds") for name in ("user", "system"))
_NOTHING_OWN = tuple(PROCESS.position(name) for name in ("user_seconds", "system_seconds", "threads"))
_READ_CHARS = PROCESS.position("read_chars_bytes")
EVENT = Schema(
    "event",
    ("cluster", "jobid", "node", "kind", "device", "text", "pid"),
    (Column("seen", GAUGE, "1 at the time of the event"),),
)
# A killed process is gone when the log is read; its pid is reused later than this.
_REMEMBERED_NS = 60 * 10**9


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
    # To the end of the line, or of the pipe.
    digits = b"".join(iter(lambda: os.read(control, 1).strip(), b""))
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


class Batches:
    """The samples of a job as numbered files of batches, each written atomically."""

    def __init__(self, folder: str, head: Head) -> None:
        self.folder, self.head = folder, head
        self.batch = Batch()
        self.sequence = 0
        self.values = 0
        self.since = time.monotonic()
        self.seconds = _FIRST_SECONDS
        self._unwritten: List[Tuple[int, bytes]] = []
        self._lost = 0
        self._error = ""

    def add(self, samples: List[Sample]) -> None:
        self.batch.add(samples)
        self.values += sum(len(sample.rows.values) for sample in samples)
        if self.values >= _BATCH_VALUES or time.monotonic() - self.since >= self.seconds:
            self.flush()

    def flush(self) -> None:
        """Write the batch. After a failure it is retried next time; beyond a limit the oldest are dropped."""
        if self.values:
            self.sequence += 1
            message = self.batch.encode({**self.head, "sequence": self.sequence})
            self.values, self.since = 0, time.monotonic()
            self.seconds = min(2 * self.seconds, _BATCH_SECONDS)
            self._unwritten.append((self.sequence, message))
        while self._unwritten and self._write(*self._unwritten[0]):
            self._unwritten.pop(0)
        while sum(len(message) for _, message in self._unwritten) > _MOST_UNWRITTEN:
            self._unwritten.pop(0)
            self._lost += 1

    def _write(self, sequence: int, message: bytes) -> bool:
        try:
            write_whole(f"{self.folder}/{sequence:08d}.batch", message)
        except OSError as error:
            self._error = sentence(error)
            return False
        return True

    def problems(self) -> List[str]:
        """Report batches that were lost, including those that are still unwritten at the end."""
        lost = self._lost + len(self._unwritten)
        return [f"{lost} of {self.sequence} batches of samples were lost: {self._error}"] if lost else []


class InheritedUsage:
    """Usage that the kernel accumulates for the supervisor from children it has waited for: the job's, unlike
    its own. Relative to the start of the command: exec(2) keeps what the process had accumulated before."""

    def __init__(self, host: Host, pid: int, before: Optional[Inherited] = None) -> None:
        self.host, self.pid = host, pid
        self.entries: List[Tuple[ProcessKey, List[int]]] = []
        _, self._first = self._parse(before or self._read())

    def read(self, inherited: Optional[Inherited] = None) -> None:
        """Fill `entries`, which is empty once the supervisor is gone."""
        try:
            key, values = self._parse(inherited or self._read())
        except OSError:
            self.entries = []
            return
        self.entries = [(key, [_since(now, first) for now, first in zip(values, self._first)])]

    def _read(self) -> Inherited:
        stat = self.host.read(f"proc/{self.pid}/stat")
        try:
            return Inherited(stat, self.host.read(f"proc/{self.pid}/io"))
        except OSError:
            return Inherited(stat, b"")

    def _parse(self, inherited: Inherited) -> Tuple[ProcessKey, List[int]]:
        path = f"proc/{self.pid}"
        fields = parse_stat(path, inherited.stat).fields
        try:
            parent, group, session, terminal, user, system, start = map(
                int, (*fields[1:5], *fields[13:15], fields[19])
            )
        except ValueError:
            raise MalformedError(f"{path}/stat", f"not numbers: {inherited.stat[:80]!r}") from None
        key = ProcessKey(self.pid, start, parent, group, session, terminal, 0, "", "", "")
        values = [ABSENT] * len(PROCESS.columns)
        for place in _NOTHING_OWN:
            values[place] = 0
        values[_CHILD_USER], values[_CHILD_SYSTEM] = user, system
        if inherited.io:
            values[_READ_CHARS : _READ_CHARS + 7] = parse_io(path, inherited.io)
        return key, values


def _since(now: int, first: int) -> int:
    return ABSENT if ABSENT in (now, first) else now - first


class JobEvents:
    """Events of one job in the kernel's log: OOM kills of its processes, and errors of its GPUs."""

    def __init__(self, host: Host, job: JobName, now_ns: Callable[[], int]) -> None:
        self.host, self.job, self.now_ns = host, job, now_ns
        self._read_ns = 0
        self._same_pids = host.counts_pids_as_kernel()
        self._seen: Dict[int, int] = {}  # by pid, when it was last the job's
        self._log: Optional[KernelLog] = None
        try:
            self._fd = host.open_log(KMSG, at_end=True)
        except OSError:  # most users may not read it
            self._fd = -1

    def read(self, pids: Collection[int], buses: Iterable[str]) -> List[Sample]:
        """Return new events, each with its own time."""
        if self._fd < 0:
            return []
        now = self.now_ns()
        self._seen.update(dict.fromkeys(pids, now))
        self._seen = {pid: last for pid, last in self._seen.items() if now - last < _REMEMBERED_NS}
        if self._log is None and wait_readable([self._fd], 0):
            from joblens.collectors.kernel_log import KernelLog  # its patterns take long to load

            self._log = KernelLog(self.host, self.now_ns, self._fd, self._read_ns)
        self._read_ns = now
        if self._log is None:
            return []
        self._log.read_events()
        cards = {_bus(bus) for bus in buses} - {""}
        own = [event for event in self._log.take() if self._is_own(event, cards)]
        return [Sample(event.time_ns, self._row(event)) for event in own]

    def _is_own(self, event: Event, cards: Set[str]) -> bool:
        return (self._same_pids and event.pid in self._seen) or _bus(event.device) in cards

    def _row(self, event: Event) -> Rows:
        return Rows(EVENT, ((*self.job, event.kind, event.device, event.text, event.pid),), [1])


def _bus(text: str) -> str:
    """Normalise 0000:3b:00, 0000:3B:00.0 and 00000000:3B:00.0."""
    parts = text.lower().partition(".")[0].split(":")
    return ":".join([parts[0][-4:], *parts[1:]]) if len(parts) == 3 else ""
