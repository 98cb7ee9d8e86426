"""From the sampling loop to the spool: the samples of one period become one batch, which is one file.

Nothing here waits for the network; joblens.agent.sender does, in its own thread.
"""

from __future__ import annotations

import os
import time
import zlib
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

from joblens import __version__
from joblens.agent.sampler import Log, Sampler, ticks
from joblens.agent.sender import Sender, Target
from joblens.agent.spool import Spool
from joblens.core.config import Settings
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, GAUGE, NO_KEY, Column, Rows, Sample, Schema
from joblens.wire.batch import Batch
from joblens.wire.frame import VERSION

if TYPE_CHECKING:
    from joblens.wire.header import Head

PUSH = Schema(
    "push",
    (),
    (
        Column("success", GAUGE, "1 if the last attempt to send a batch to the hub succeeded"),
        Column("sent_batches", COUNTER, "batches that the hub has acknowledged"),
        Column("sent_bytes", COUNTER, "bytes of batches that the hub has acknowledged"),
        Column("failures", COUNTER, "attempts to send that failed"),
        Column("refused_batches", COUNTER, "batches that the hub refused, kept in the folder `refused`"),
        Column("dropped_batches", COUNTER, "batches lost because the spool or the disk was full"),
        Column("spool_batches", GAUGE, "batches in the spool"),
        Column("spool_bytes", GAUGE, "disk space of the batches in the spool"),
        Column("gaps", GAUGE, "gaps not yet reported to the hub"),
        Column("acknowledged_time_seconds", GAUGE, "time of the last acknowledgement", divisor=1_000_000_000),
    ),
)
PUSH_ERROR = Schema(
    "push_error",
    ("error",),
    (Column("", GAUGE, "1 while batches cannot be sent or stored, with the reason"),),
)

_MOST_VALUES = 200_000  # in memory
_MOST_ENTRIES = 2000  # sections of a batch, each with its own description, such as marks
_MOST_USERS = 4096  # jobs whose users are remembered
# Sets that can have rows of jobs that have ended.
_OF_JOBS = ("job", "step", "mark", "fom", "process_end", "thread_end", "job_end")
_LAST_SECONDS = 2.0  # for sending what is left when the agent stops
JobName = Tuple[Any, ...]


class Pusher:
    """Raises ConfigError or OSError if the spool's folder or the credentials cannot be used."""

    def __init__(self, host: Host, settings: Settings, sampler: Sampler, log: Log) -> None:
        self._host, self._log = host, log
        self.listen = ""  # address of the agent's own pages
        self._set(settings, sampler)
        target = self._target()
        self.spool = self._open_spool()
        self._sender = Sender(self.spool, target, log)
        self._disk_error = ""
        self._users: Dict[JobName, List[Any]] = {}  # jobs as last described, also those that have ended
        self._begin()
        self._sender.start()

    def _set(self, settings: Settings, sampler: Sampler) -> None:
        self._settings, self._push, self._sampler = settings, settings.push, sampler
        self._every = ticks(settings.push.period, settings)
        owners = sampler.attribution.owners
        self._cluster, self._node = owners.cluster, owners.node
        # Spread over the period: otherwise the hub would receive all nodes' batches at once.
        self._phase = zlib.crc32(f"{self._cluster}\0{self._node}".encode()) % self._every
        self._sets = frozenset(settings.push.sets)
        self._turn = -1

    def _target(self) -> Target:
        return Target(self._push, self._cluster, self._node)

    def _open_spool(self) -> Spool:
        host, booted = self._host, self._host.boot_time()
        boot = host.boot_id() or f"boot-{booted}"
        spool = Spool(self._folder(), self._push.spool_bytes, boot, host.now_ns(), booted * 1_000_000_000)
        if spool.damage:
            self._log(f"push: {spool.folder}: earlier gaps are unknown: {spool.damage}")
        return spool

    def _folder(self) -> str:
        return self._push.spool or default_spool(self._node)

    def change(self, settings: Settings, sampler: Sampler) -> None:
        """Apply other settings. Raises ConfigError or OSError, and then nothing has changed."""
        self.flush()
        before = self._settings, self._sampler
        try:
            self._set(settings, sampler)
            target = self._target()
            if self._folder() != self.spool.folder:
                self._move(target)
        except Exception:
            self._set(*before)
            raise
        self.spool.most_bytes = self._push.spool_bytes
        self._sender.change(target)

    def _move(self, target: Target) -> None:
        spool = self._open_spool()
        self._sender.close(0.0)
        if self.spool.batches:
            self._log(f"push: {self.spool.batches} batches stay in the previous spool {self.spool.folder}")
        self.spool.leave()
        self.spool, self._sender = spool, Sender(spool, target, self._log)
        self._sender.start()

    def _begin(self) -> None:
        self._batch = Batch()
        self._values = self._updates = 0
        self._from_ns = self._to_ns = 0
        self._job_keys: object = None
        self._jobs: Dict[JobName, List[Any]] = {}

    def take(self, tick: int, samples: List[Sample]) -> None:
        """Add the samples of one tick; at the end of a period write the batch to the spool."""
        if self._sets:
            samples = [sample for sample in samples if sample.rows.schema.set in self._sets]
        if samples:
            self._batch.add(samples)
            self._values += sum(len(rows.values) for _, rows in samples)
            self._updates += len(samples)
            self._from_ns = self._from_ns or samples[0].time_ns
            self._to_ns = samples[0].time_ns
        self._update_jobs()
        self._add_ended(samples)
        turn = (tick - self._phase) // self._every
        if turn != self._turn or self._values >= _MOST_VALUES or len(self._batch) >= _MOST_ENTRIES:
            first, self._turn = self._turn < 0, turn
            if not first or self._every == 1:
                self.flush()

    def ticks_left(self, tick: int) -> int:
        """Return for how many ticks from this one on the batch is not written yet."""
        turn, passed = divmod(tick - self._phase, self._every)
        return self._every - passed if turn == self._turn else 0

    def _update_jobs(self) -> None:
        """Add new jobs, also those that end before the batch does."""
        sample = self._sampler.latest.get("job")
        if sample is not None and sample.rows.keys is not self._job_keys:
            self._job_keys = sample.rows.keys
            self._add_jobs()

    def _add_jobs(self) -> None:
        for cluster, job, node, user, uid, *_ in self._sampler.infos().keys:
            self._users[cluster, job, node] = self._jobs[cluster, job, node] = [cluster, job, node, user, uid]
        while len(self._users) > _MOST_USERS:
            del self._users[next(iter(self._users))]

    def _add_ended(self, samples: List[Sample]) -> None:
        """Add jobs that are no longer known: a held row is stored after its job's end."""
        for _, rows in samples:
            if rows.schema.set in _OF_JOBS:
                node = rows.schema.labels.index("node")
                for name in {(key[0], key[1], key[node]) for key in rows.keys} - self._jobs.keys():
                    if name in self._users:
                        self._jobs[name] = self._users[name]

    def _describe_sets(self) -> List[List[Any]]:
        interval = self._settings.interval
        return [
            [rows.schema.set, len(rows.keys), len(rows.values), it.every * interval, it.duration_ns / 1e9]
            for it, rows in self._sampler.sets()
            if rows.keys and (not self._sets or rows.schema.set in self._sets)
        ]

    def flush(self) -> None:
        if not self._updates:
            return
        self._add_jobs()
        item, boot, gaps = self.spool.next_batch()
        header: Head = {
            "version": VERSION,
            "cluster": self._cluster,
            "node": self._node,
            "boot": boot,
            "sequence": item.sequence,
            "sent": time.time(),  # time of making; the time of sending is an HTTP header
            "from_ns": self._from_ns,
            "to_ns": self._to_ns,
            "agent": __version__,
            "listen": self.listen,
            "interval": self._settings.interval,
            "period": self._every * self._settings.interval,
            "updates": self._updates,
            "sets": self._describe_sets(),
            "jobs": list(self._jobs.values()),
            "gaps": gaps,
        }
        batch = self._batch
        self._values = self._updates = self._from_ns = 0
        self._jobs = {}
        self._job_keys = None
        self.spool.put(item, batch.encode(header), self._to_ns)
        self._report()

    def _report(self) -> None:
        error = self.spool.disk_error
        if error and error != self._disk_error:
            self._log(f"push: batches cannot be stored: {error}")
        self._disk_error = error

    def own(self) -> List[Rows]:
        """Return the sets `push` and `push_error`."""
        spool, progress = self.spool, self._sender.progress
        errors = [error for error in (progress.error, spool.disk_error) if error]
        values = [
            int(not progress.error),
            progress.sent,
            progress.bytes,
            progress.failures,
            spool.refused,
            spool.dropped,
            spool.batches,
            spool.bytes,
            len(spool.gaps),
            progress.acknowledged_ns or ABSENT,
        ]
        keys = tuple((error,) for error in errors)
        return [Rows(PUSH, NO_KEY, values), Rows(PUSH_ERROR, keys, [1] * len(keys))]

    def close(self, seconds: float = _LAST_SECONDS) -> None:
        """Write what there is to the spool, and send for at most this long."""
        self.flush()
        self._sender.close(seconds)
        self.spool.leave()


def default_spool(node: str) -> str:
    """Return the service's folder, the system's, or the user's: one per node, as home folders are shared."""
    service = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if service.startswith("/"):
        return f"{service}/spool"
    if os.geteuid() == 0:
        return "/var/spool/joblens"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if not cache.startswith("/"):
        cache = os.path.expanduser("~/.cache")
    return f"{cache}/joblens/spool/{node.replace('/', '_').lstrip('.') or 'node'}"
