"""The process that looks on: samples the command and all that comes from it, until it is told to end.

It shares the command's process group, so that it sees which signals went to the whole group, and is
deaf to all of them.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from joblens.agent.batch import Batch
from joblens.attribution.sharing import SharedMemory
from joblens.attribution.sums import JOB, OWNED_PROCESS, Account
from joblens.collectors.cpu import cpu
from joblens.collectors.disk import disk
from joblens.collectors.load import load
from joblens.collectors.memory import memory
from joblens.collectors.network import network
from joblens.collectors.pressure import pressure
from joblens.collectors.processes import ProcessKey, processes
from joblens.errors import sentence
from joblens.files import write_whole
from joblens.host import Host
from joblens.model import Job, Key, Rows, Sample

# Short jobs are looked at more often in their first second.
_FIRST_LOOKS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.6)
# A batch is written after so many seconds or values: what a crash can lose, and what is held in memory.
_BATCH_SECONDS = 30.0
_BATCH_VALUES = 200_000
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_DEAF_TO = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGPIPE, signal.SIGALRM)


class Pipes(NamedTuple):
    stop: int  # brings a byte when the command has begun, and is at its end when that has ended
    heard: int  # each signal that arrived, as a byte


class Watch:
    def __init__(self, host: Host, facts: Dict[str, Any], parent: int) -> None:
        self.host = host
        self.job = Job(facts["cluster"], facts["id"], "run", int(facts["start"]))
        self.node = str(facts["node"])
        self.account = Account(self.job)
        self.problems: List[str] = []
        self._sharing = SharedMemory(host)
        self._processes = processes(host, below=parent)
        self._node_sets: List[Callable[[], Tuple[Rows, ...]]] = []
        for collector in (cpu, memory, load, disk, network, pressure):
            try:
                self._node_sets.append(collector(host))
            except OSError:  # not on this machine
                continue
        self._job_keys: Tuple[Key, ...] = ((self.job.cluster, self.job.id, self.node),)
        self._process_keys: Tuple[Key, ...] = ()
        self._total_key: Tuple[Key, ...] = (("total",),)

    def sample(self) -> List[Sample]:
        found: List[Rows] = [*self._sample_job()]
        for read in list(self._node_sets):
            try:
                found += [self._whole_node(rows) for rows in read()]
            except Exception as error:  # one source's trouble is not the others'
                self._node_sets.remove(read)
                self.problems.append(sentence(error))
        now = self.host.now_ns()
        return [Sample(now, rows) for rows in found]

    def _sample_job(self) -> Tuple[Rows, Rows]:
        (rows,) = self._processes()
        members = [(key, rows.row(n)) for n, key in enumerate(rows.keys) if isinstance(key, ProcessKey)]
        self.account.take(members, self._sharing)
        self._sharing.forget((key.pid, key.start) for key, _ in members)
        keys = tuple((self.job.cluster, self.job.id, "", self.node, *key) for key in rows.keys)
        if keys != self._process_keys:
            self._process_keys = keys
        return (
            Rows(JOB, self._job_keys, self.account.values(processes_fresh=True)),
            Rows(OWNED_PROCESS, self._process_keys, rows.values),
        )

    def _whole_node(self, rows: Rows) -> Rows:
        """Of the cores only their sum: what each core does is the node's agent's to tell."""
        if rows.schema.set != "cpu":
            return rows
        return Rows(rows.schema, self._total_key, rows.row(0))


class _Writer:
    """Batches as files, numbered, each whole or not there."""

    def __init__(self, folder: str, head: Dict[str, Any]) -> None:
        self.folder, self.head = folder, head
        self.batch = Batch()
        self.sequence = 0
        self.values = 0
        self.since = time.monotonic()
        self.problems: List[str] = []

    def add(self, samples: List[Sample]) -> None:
        self.batch.add(samples)
        self.values += sum(len(sample.rows.values) for sample in samples)
        if self.values >= _BATCH_VALUES or time.monotonic() - self.since >= _BATCH_SECONDS:
            self.flush()

    def flush(self) -> None:
        if not self.values:
            return
        self.sequence += 1
        message = self.batch.encode({**self.head, "sequence": self.sequence})
        self.values, self.since = 0, time.monotonic()
        try:
            write_whole(f"{self.folder}/{self.sequence:08d}.batch", message)
        except OSError as error:
            self.problems.append(f"samples were lost: {sentence(error)}")


def watch(pipes: Pipes, parent: int, facts: Dict[str, Any], folder: str) -> List[str]:
    """Until told to stop. Gives what went wrong, as sentences."""
    wakeup = _listen_to_signals()
    head = {name: facts[name] for name in ("cluster", "node", "boot", "id")}
    watcher, writer = Watch(Host(), facts, parent), _Writer(folder, head)
    os.read(pipes.stop, 1)  # before it has begun, the command is a copy of joblens
    begin = time.monotonic()
    looks = 0
    while True:
        writer.add(watcher.sample())
        looks += 1
        due = begin + _next_look(looks, time.monotonic() - begin, float(facts["interval"]))
        if _wait(pipes, wakeup, due):
            break
    writer.add(watcher.sample())  # those that outlive the command
    writer.flush()
    return watcher.problems + writer.problems


def _next_look(looks: int, elapsed: float, interval: float) -> float:
    """Seconds after the begin: the first few close together, then multiples of the interval."""
    if looks < len(_FIRST_LOOKS) and _FIRST_LOOKS[looks] < interval:
        return _FIRST_LOOKS[looks]
    return (int(elapsed / interval) + 1) * interval


def _listen_to_signals() -> int:
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in GROUP_SIGNALS:
        signal.signal(number, lambda *_: None)
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, GROUP_SIGNALS)
    return reader


def _wait(pipes: Pipes, wakeup: int, due: float) -> bool:
    """Until it is time for the next look; True if it is time to end."""
    while True:
        rest = due - time.monotonic()
        ready, _, _ = select.select([pipes.stop, wakeup], [], [], max(rest, 0))
        if wakeup in ready:
            os.write(pipes.heard, os.read(wakeup, 512))
        if pipes.stop in ready:
            return True
        if not ready:
            return False
