"""Ended processes and threads of jobs, by the kernel's events: also static, setuid and killed ones.

A process that has been scanned has the owner that the scan found. One that has not is of the job of its
cgroup, which is read soon after exec, or of that of its parent. The owner of a parent may become known only
at the next scan; ended processes wait for it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from typing import Deque, Dict, List, Optional, Protocol, Sequence, Set, Tuple

from joblens.attribution.end_rows import EndingProcess, EndRows, add_thread
from joblens.attribution.owners import Owners
from joblens.collectors.ends.connector import EXEC, EXIT, FORK, SESSION, Event
from joblens.collectors.ends.sets import END_EVENT
from joblens.collectors.ends.taskstats import Ended, TaskEnd, parse_ended
from joblens.collectors.process.collector import ProcessKey
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import NO_KEY, Owner, Rows, Sample
from joblens.core.procfs import parse_cgroup
from joblens.core.secrets import mask_command

_MOST_ENDS, _MOST_EVENTS = 20_000, 100_000  # at a time
_MOST_PROCESSES = 50_000  # some 300 bytes each
_MOST_UNDECIDED = 2000
_MOST_UNWRITTEN = 256  # threads of a process whose owner is unknown
_MOST_UNWRITTEN_OF_ALL = 20_000
_MOST_ANCESTORS = 50
_LONGEST_COMMAND = 1024


class Source(Protocol):
    """The two sockets."""

    lost: int
    overruns: int
    received_ends: int
    received_events: int

    def receive_ends(self, most: int) -> List[bytes]: ...

    def receive_events(self, most: int) -> List[Event]: ...

    def close(self) -> None: ...


class Ends:
    def __init__(self, host: Host, owners: Owners, source: Source, most_per_second: int) -> None:
        self.host, self.owners, self.source = host, owners, source
        self.rows = EndRows(most_per_second)
        self.unattributed = self.malformed = 0
        self._processes: Dict[int, EndingProcess] = {}
        self._ending: Dict[int, EndingProcess] = {}  # whose exit has been reported since the last reading
        self._ended: Dict[int, EndingProcess] = {}  # and before that
        self._undecided: Deque[Tuple[EndingProcess, TaskEnd]] = deque()
        self._unwritten = 0  # threads, of all processes whose owner is unknown
        self._started: Dict[int, EndingProcess] = {}  # with a new program
        self._forked: Set[int] = set()  # parents without an owner
        # Kernels before 5.19 do not report the process of a thread that has ended.
        self._process_of: Dict[int, int] = {}
        self._process_of_before: Dict[int, int] = {}
        self._again: List[bytes] = []

    def read(self) -> None:
        """Take what the kernel has reported. A record precedes the event of its exit: so events are received
        after the records and handled before them."""
        now = time.monotonic_ns()
        self.rows.set_clock(now, self.host.now_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        again, self._again = self._again, []
        records = self.source.receive_ends(_MOST_ENDS)
        for event in self.source.receive_events(_MOST_EVENTS):
            self._take_event(event)
        self._find_owners_of_parents()
        for data in again:
            self._take_record(data, now, True)
        for data in records:
            self._take_record(data, now, False)
        self._give_up_records()
        self._describe_started()
        self._process_of_before, self._process_of = self._process_of, {}

    def samples(self, time_ns: int) -> List[Sample]:
        return self.rows.take(time_ns)

    def counters(self) -> Rows:
        source, rows = self.source, self.rows
        values = [source.received_ends, source.received_events, source.lost, source.overruns]
        values += [rows.recorded, rows.dropped, self.unattributed, self.malformed]
        return Rows(END_EVENT, NO_KEY, values)

    def warning(self) -> str:
        """Return what is missing, "" if nothing is."""
        missing = []
        if self.source.lost:
            missing.append(f"{self.source.lost} events of processes were lost")
        if self.source.overruns:
            missing.append(f"messages were lost {self.source.overruns} times")
        if self.rows.dropped:
            missing.append(f"{self.rows.dropped} ended processes and threads were above the limit per second")
        return ", ".join(missing)

    def close(self) -> None:
        self.source.close()

    # Events

    def _take_event(self, event: Event) -> None:
        what = event.what
        if what == FORK:
            self._take_fork(event)
        elif what == EXIT:
            self._take_exit(event)
        elif what == EXEC:
            process = self._processes.get(event.b) or self._add(EndingProcess(event.b, 0, 0))
            process.images += 1
            process.name = process.command = process.executable = ""
            self._started[event.b] = process
        elif what == SESSION:
            process = self._processes.get(event.b) or self._add(EndingProcess(event.b, 0, 0))
            process.session = process.group = event.b
            if process.owner is not None and process.owner.job.source == "inferred":
                process.owner = None  # a new session is another job

    def _add(self, process: EndingProcess) -> EndingProcess:
        if len(self._processes) < _MOST_PROCESSES:
            self._processes[process.pid] = process
        return process

    def _take_fork(self, event: Event) -> None:
        _, parent_pid, thread, pid = event.a, event.b, event.c, event.d
        if thread != pid:
            process = self._processes.get(pid)
            if process is not None:
                process.threads += 1
                process.alive += 1
            return
        process = EndingProcess(pid, parent_pid, event.time_ns)
        parent = self._processes.get(parent_pid)
        if parent is not None:
            process.group, process.session = parent.group, parent.session
            process.owner = _inherit(parent)
            process.command, process.executable = parent.command, parent.executable
        if process.owner is None:
            process.origin = parent
            self._forked.add(parent_pid)
        self._add(process)

    def _take_exit(self, event: Event) -> None:
        thread, pid = event.a, event.b
        self._process_of[thread] = pid
        process = self._processes.get(pid)
        if process is None:
            return
        process.ended_ns = event.time_ns
        if thread == pid:
            process.status, process.is_leader_gone = event.c, True
        else:
            process.alive -= 1
        if process.is_leader_gone and process.alive <= 0:
            del self._processes[pid]
            self._started.pop(pid, None)
            self._ending[pid] = process

    # Records

    def _take_record(self, data: bytes, now_ns: int, is_again: bool) -> None:
        try:
            found = parse_ended(data)
        except MalformedError:
            self.malformed += 1
            return
        for ended in found:
            pid = ended.process or self._find_process(ended.task.thread)
            if pid or is_again:
                self._take_ended(ended, pid or ended.task.thread, now_ns)
            else:
                self._again.append(data)  # its exit has not been reported yet

    def _take_ended(self, ended: Ended, pid: int, now_ns: int) -> None:
        task = ended.task
        process = self._find(pid) or self._find_by_parent(pid, task)
        if process is None:
            self.unattributed += task.thread == pid
            return
        if not process.ended_ns:
            process.ended_ns = process.began_ns + task.elapsed * 1000 if task.thread == pid else now_ns
        is_last = ended.is_last or (not ended.process and task.thread == pid and process.alive <= 0)
        if task.thread == pid or (is_last and task.status):
            process.status = task.status
        if process.threads or task.thread != pid:
            self._take_thread(process, task)
        if is_last:
            self._take_last(process, task)
        else:
            add_thread(process, task)

    def _find_process(self, thread: int) -> int:
        return self._process_of.get(thread) or self._process_of_before.get(thread, 0)

    def _find(self, pid: int) -> Optional[EndingProcess]:
        """Return the oldest one without a record: its pid may have been reused since."""
        for processes in (self._ended, self._ending, self._processes):
            process = processes.get(pid)
            if process is not None and not process.is_written:
                return process
        return None

    def _find_by_parent(self, pid: int, task: TaskEnd) -> Optional[EndingProcess]:
        """Of a process whose fork was lost, or that is older than this agent."""
        parent = self._processes.get(task.parent)
        if parent is None or task.thread != pid or _inherit(parent) is None:
            return None
        process = EndingProcess(pid, task.parent, 0)
        process.owner, process.ended_ns = _inherit(parent), time.monotonic_ns()
        return process

    def _take_thread(self, process: EndingProcess, task: TaskEnd) -> None:
        if process.owner is not None:
            self.rows.add_thread(process, task)
        elif len(process.unwritten) < _MOST_UNWRITTEN and self._unwritten < _MOST_UNWRITTEN_OF_ALL:
            process.unwritten.append(task)
            self._unwritten += 1

    def _take_last(self, process: EndingProcess, task: TaskEnd) -> None:
        process.owner = process.owner or _inherit_from_origin(process)
        if process.owner is not None or not process.origin:
            self._write(process, task)
        else:
            process.is_written = True
            self._undecided.append((process, task))
            if len(self._undecided) > _MOST_UNDECIDED:
                self._write(*self._undecided.popleft())

    def _write(self, process: EndingProcess, task: Optional[TaskEnd]) -> None:
        process.origin = None
        self._write_threads(process)
        if process.owner is None:
            process.is_written = True
            self.unattributed += 1
            return
        self.rows.add_process(process, task)

    def _write_threads(self, process: EndingProcess) -> None:
        """Those that ended before its owner was known. If it has none they are of no job."""
        threads, process.unwritten = process.unwritten, []
        self._unwritten -= len(threads)
        for thread in threads:
            self.rows.add_thread(process, thread)

    def _give_up_records(self) -> None:
        """Write those without figures whose record should have been received by now."""
        for process in self._ended.values():
            if not process.is_written:
                process.owner = process.owner or _inherit_from_origin(process)
                self._write(process, None)
        self._ended, self._ending = self._ending, {}

    # Owners

    def _find_owners_of_parents(self) -> None:
        """A daemon of a batch system is in its own cgroup first, and then in that of the job."""
        for pid in self._forked:
            parent = self._processes.get(pid)
            if parent is not None and parent.owner is None:
                parent.owner = self._owner_by_cgroup(pid)
        self._forked = set()

    def _owner_by_cgroup(self, pid: int) -> Optional[Owner]:
        try:
            return self.owners.of_path(parse_cgroup(self.host.read_once(f"proc/{pid}/cgroup")))
        except OSError:
            return None

    def _describe_started(self) -> None:
        """Read what is known only while the process runs."""
        for pid, process in self._started.items():
            process.owner = process.owner or self._owner_by_cgroup(pid) or _inherit_from_origin(process)
            if process.owner is not None:
                self._describe(process)
        self._started = {}

    def _describe(self, process: EndingProcess) -> None:
        try:
            command = self.host.read_once(f"proc/{process.pid}/cmdline")
            process.executable = os.readlink(f"{self.host.root}proc/{process.pid}/exe")
        except OSError:
            return
        process.command = mask_command(command, _LONGEST_COMMAND).strip()

    def take_scan(self, began_ns: int, keys: Sequence[ProcessKey], owners: Sequence[Optional[Owner]]) -> None:
        """Take the owners that a scan has found. What it has not found although it should is over: the event
        of its exit was lost."""
        self.read()
        found = set()
        for key, owner in zip(keys, owners):
            found.add(key.pid)
            process = self._processes.get(key.pid)
            if process is None:
                if owner is None:
                    continue
                process = self._add(EndingProcess(key.pid, key.parent, 0))
                process.command = key.command
            process.owner, process.start, process.uid = owner, key.start, key.uid
            process.group, process.session, process.name = key.group, key.session, key.name
            self._write_threads(process)
        self._decide()
        for pid in [
            pid for pid, it in self._processes.items() if pid not in found and it.began_ns < began_ns
        ]:
            process = self._processes.pop(pid)
            if not process.is_written:
                process.ended_ns = process.ended_ns or began_ns
                self._write(process, None)

    def _decide(self) -> None:
        undecided, self._undecided = self._undecided, deque()
        for process, task in undecided:
            process.owner = _inherit_from_origin(process)
            self._write(process, task)
        for process in self._processes.values():
            process.origin = None


def _inherit(parent: EndingProcess) -> Optional[Owner]:
    """Return the owner of a child: a shell on a terminal makes each command a job of its own."""
    owner = parent.owner
    if owner is not None and owner.job.source == "inferred" and parent.pid == parent.session:
        return None if owner.job.id.startswith("g") else owner
    return owner


def _inherit_from_origin(process: EndingProcess) -> Optional[Owner]:
    current = process.origin
    for _ in range(_MOST_ANCESTORS):
        if current is None:
            return None
        if current.owner is not None:
            return _inherit(current)
        current = current.origin
    return None
