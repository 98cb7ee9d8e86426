"""Rows of `process_end` and `thread_end` from the kernel's records, up to a limit per second."""

from __future__ import annotations

from typing import Dict, List, Optional

from joblens.collectors.ends.sets import EVENTS, JOB_END, KERNEL, PROCESS_END, THREAD_END, how_ended
from joblens.collectors.ends.taskstats import TaskEnd, cpu_times
from joblens.core.model import ABSENT, Key, Owner, Rows, Sample, Schema

_TICK_NS = 10_000_000  # of the start in /proc/PID/stat
_NO_EVENTS = [ABSENT] * EVENTS
_MOST_JOBS = 4096  # with dropped processes
_ROWS = 2000  # per sample
_SHARE = 3  # rows of a job for each one that is left
_SUMS = 13  # amounts of a thread that are added up for its process


class EndingProcess:
    """A process that runs or has just ended. Times are those of the monotonic clock."""

    __slots__ = (
        "alive", "began_ns", "command", "ended_ns", "executable", "group", "images", "is_leader_gone",
        "is_written", "name", "origin", "owner", "parent", "peak_kib", "pid", "session", "start", "status",
        "sums", "threads", "uid", "unwritten",
    )  # fmt: skip

    def __init__(self, pid: int, parent: int, began_ns: int) -> None:
        self.pid, self.parent, self.began_ns = pid, parent, began_ns
        self.owner: Optional[Owner] = None
        self.origin: Optional[EndingProcess] = None  # its parent, while the owner of both is unknown
        self.start = 0  # in clock ticks since boot, by /proc
        self.group = self.session = 0
        self.uid = -1
        self.name = self.command = self.executable = ""
        self.images = self.threads = self.alive = 0  # threads without the first one
        self.sums: Optional[List[int]] = None  # of threads that have ended
        self.peak_kib = 0
        self.unwritten: List[TaskEnd] = []  # threads that ended while the owner was unknown
        self.status: Optional[int] = None
        self.ended_ns = 0
        self.is_leader_gone = self.is_written = False


def amounts(task: TaskEnd) -> List[int]:
    user, system = cpu_times(task)
    return [
        user, system, task.minor_faults, task.major_faults,
        task.voluntary_switches, task.involuntary_switches, task.read_chars, task.written_chars,
        task.read_bytes, task.written_bytes, task.cancelled_bytes,
        task.run_delay_ns, task.slices,
    ]  # fmt: skip


def add_thread(process: EndingProcess, task: TaskEnd) -> None:
    more = amounts(task)
    process.sums = more if process.sums is None else [a + b for a, b in zip(process.sums, more)]
    process.peak_kib = max(process.peak_kib, task.peak_kib)


class EndRows:
    """Collects rows until they are sent."""

    def __init__(self, most_per_second: int) -> None:
        self.recorded = self.dropped = 0
        self._most = self._left = most_per_second
        self._second = 0
        self._rows_of: Dict[Key, int] = {}  # in this second, by job
        self._wall_ns = self._boot_ns = 0  # to be added to the monotonic clock
        self._keys: List[Key] = []
        self._values: List[int] = []
        self._thread_keys: List[Key] = []
        self._thread_values: List[int] = []
        self._dropped_of: Dict[Key, int] = {}
        self._are_new_dropped = False

    def set_clock(self, monotonic_ns: int, wall_ns: int, since_boot_ns: int) -> None:
        self._wall_ns, self._boot_ns = wall_ns - monotonic_ns, since_boot_ns - monotonic_ns
        second = monotonic_ns // 1_000_000_000
        if second != self._second:
            self._second, self._left = second, self._most
            self._rows_of = {}

    def __len__(self) -> int:
        return len(self._keys) + len(self._thread_keys)

    def _may_add(self, owner: Owner) -> bool:
        """A job gets three quarters of what the jobs before it have left in this second: one that starts
        processes in a loop does not take the rows of others."""
        job = (owner.job.cluster, owner.job.id)
        rows = self._rows_of.get(job, 0)
        if rows >= _SHARE * self._left:
            self.dropped += 1
            return False
        self._rows_of[job] = rows + 1
        self._left -= 1
        self.recorded += 1
        return True

    def add_process(self, process: EndingProcess, task: Optional[TaskEnd]) -> None:
        """`task` is its last thread, None if only its exit is known."""
        process.is_written = True
        if process.owner is None:
            return
        if not self._may_add(process.owner):
            self._note_dropped(process.owner)
            return
        self._keys.append(self._process_key(process, process.owner, task))
        began, ended = self._times(process, task)
        code, signal = (ABSENT, ABSENT) if process.status is None else how_ended(process.status, ABSENT)
        images, threads = process.images or ABSENT, process.threads
        if task is None:
            self._values += [began, ended, 0, code, signal, images, threads, *[ABSENT] * (_SUMS + 3 + EVENTS)]
            return
        add_thread(process, task)
        self._values += [began, ended, 1, code, signal, images, threads, process.peak_kib]
        self._values += _spread(process.sums or [])

    def _note_dropped(self, owner: Owner) -> None:
        job = (owner.job.cluster, owner.job.id, owner.node)
        if job not in self._dropped_of and len(self._dropped_of) >= _MOST_JOBS:
            del self._dropped_of[next(iter(self._dropped_of))]
        self._dropped_of[job] = self._dropped_of.get(job, 0) + 1
        self._are_new_dropped = True

    def _process_key(self, process: EndingProcess, owner: Owner, task: Optional[TaskEnd]) -> Key:
        job = owner.job
        uid = process.uid if task is None else task.uid
        name = process.name or (_text(task.name) if task else "unknown")
        return (
            job.cluster, job.id, owner.step, owner.node, process.pid, self._start(process), process.parent,
            process.group, process.session, uid, name, process.command, process.executable, "", "", "",
            KERNEL,
        )  # fmt: skip

    def add_thread(self, process: EndingProcess, task: TaskEnd) -> None:
        if process.owner is None or not self._may_add(process.owner):
            return
        job, node = process.owner.job, process.owner.node
        self._thread_keys.append(
            (
                job.cluster,
                job.id,
                node,
                process.pid,
                self._start(process),
                task.thread,
                _text(task.name),
                KERNEL,
            )
        )
        ended = process.ended_ns + self._wall_ns
        values = amounts(task)
        cpu = (values[0] + values[1]) * 1000
        self._thread_values += [ended - task.elapsed * 1000, ended, ABSENT, cpu, *_spread(values)]

    def _start(self, process: EndingProcess) -> int:
        if process.start or not process.began_ns:
            return process.start
        return (process.began_ns + self._boot_ns) // _TICK_NS

    def _times(self, process: EndingProcess, task: Optional[TaskEnd]) -> List[int]:
        began, ended = process.began_ns, process.ended_ns
        if task is not None and not began and task.thread == process.pid:
            began = ended - task.elapsed * 1000
        return [began + self._wall_ns if began else ABSENT, ended + self._wall_ns]

    def take(self, time_ns: int) -> List[Sample]:
        """Return all rows and forget them."""
        found = _samples(time_ns, PROCESS_END, self._keys, self._values)
        found += _samples(time_ns, THREAD_END, self._thread_keys, self._thread_values)
        self._keys, self._values, self._thread_keys, self._thread_values = [], [], [], []
        if self._are_new_dropped:
            self._are_new_dropped = False
            dropped = self._dropped_of
            found.append(Sample(time_ns, Rows(JOB_END, tuple(dropped), list(dropped.values()))))
        return found


def _spread(sums: List[int]) -> List[int]:
    """Add the numbers of calls and the counters, which the kernel's records do not have."""
    return [*sums[:8], ABSENT, ABSENT, *sums[8:], *_NO_EVENTS]


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode("utf-8", "replace")


def _samples(time_ns: int, schema: Schema, keys: List[Key], values: List[int]) -> List[Sample]:
    width = len(schema.columns)
    return [
        Sample(time_ns, Rows(schema, tuple(keys[at : at + _ROWS]), values[at * width : (at + _ROWS) * width]))
        for at in range(0, len(keys), _ROWS)
    ]
