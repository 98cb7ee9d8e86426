"""`process` and `thread`: usage of each process and thread, from /proc/PID (proc(5)).

A process is identified by its pid and its start, as pids are reused. An open /proc/PID/stat stays bound to
one process and fails with ESRCH once it has ended, so keeping it open is both cheaper and safer. Kernel
threads are left out.
"""

from __future__ import annotations

import os
import resource
from itertools import chain

from joblens.collectors.process import native_scan
from joblens.collectors.process.filter import STEPD, AllProcesses, Descendants, OwnUser
from joblens.collectors.process.pss import read_shares
from joblens.collectors.process.run_delay import RunDelay
from joblens.core.errors import MalformedError
from joblens.core.host import Host, read_all
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Key, Reader, Rows, Schema
from joblens.core.named_tuple import NamedTuple
from joblens.core.procfs import Stat, is_running, parse_cgroup, parse_io, parse_stat, parse_status
from joblens.core.secrets import mask_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, FrozenSet, List, Optional, Set, Tuple

_LONGEST_COMMAND = 1024
# Up to four files per process stay open, each with a page of kernel memory, up to this many and to half of
# the agent's limit of open files: the rest is for other collectors and for connections. With more processes,
# the kinds of files that are read least are closed first; then the youngest processes are read without.
_MOST_KEPT_OPEN = 3000
_KEPT = ("stat", "io", "status")
# The kernel changes this one whenever the first thread is given a core. A process of one thread that sleeps
# is read at every fifth scan only, for what others can change: its parent, group and resident memory.
_SCHEDULED = "schedstat"
_ASLEEP_AGAIN = 4
_SPARE = 0.9  # at most this fraction of the files may be open before another kind is kept
_KERNEL_AGAIN = 64  # scans, after which the pid of a kernel thread is read again: it may have been reused
_RECORD = 8192
# A process is moved to its cgroup before or shortly after it starts, and rarely later. Shortly after its
# start it may also set its title; later the command line is read only when the name has changed.
_READ_AGAIN = 16
# /proc/PID/status is the longest of the three. It is read when page faults, memory size or threads in stat
# have changed, and at every fifth scan: only it has the parts of the memory and the context switches.
_STATUS_AGAIN = 4
_NOT_YET_KNOWN = 1 << 63


class ProcessKey(NamedTuple):
    pid: int
    start: int  # clock ticks since boot, as in /proc/PID/stat
    parent: int
    group: int
    session: int
    terminal: int
    uid: int  # the real one: /proc/PID belongs to root if the program is not dumpable
    name: str
    command: str
    cgroup: str


def _ticks(name: str, what: str) -> Column:
    return Column(name + "_seconds", COUNTER, what, divisor=100)


def _kib(name: str, what: str) -> Column:
    return Column(name + "_bytes", GAUGE, what, factor=1024)


PROCESS = Schema(
    "process",
    ProcessKey._fields,
    (
        _ticks("user", "user CPU time, without children"),
        _ticks("system", "system CPU time, without children"),
        _ticks("children_user", "user CPU time of waited-for children and their waited-for descendants"),
        _ticks("children_system", "system CPU time of waited-for children and their waited-for descendants"),
        Column("minor_faults", COUNTER, "page faults without disk access"),
        Column("major_faults", COUNTER, "page faults with disk access"),
        Column("threads", GAUGE, "threads"),
        Column("state", GAUGE, "state, as the ASCII code of its letter in /proc/PID/stat"),
        _kib("rss", "resident memory: anonymous, file and shared"),
        _kib("rss_anon", "resident anonymous memory"),
        _kib("rss_file", "resident pages of files"),
        _kib("rss_shmem", "resident shared memory"),
        _kib("swap", "memory swapped out"),
        Column(
            "voluntary_switches",
            COUNTER,
            "voluntary context switches, at most five scans old",
        ),
        Column(
            "involuntary_switches",
            COUNTER,
            "involuntary context switches, at most five scans old",
        ),
        Column("read_chars_bytes", COUNTER, "bytes read by system calls, waited-for children included"),
        Column("written_chars_bytes", COUNTER, "bytes written by system calls, waited-for children included"),
        Column("read_calls", COUNTER, "read system calls, waited-for children included"),
        Column("write_calls", COUNTER, "write system calls, waited-for children included"),
        Column("read_bytes", COUNTER, "bytes read from storage, waited-for children included"),
        Column("written_bytes", COUNTER, "bytes written to storage, waited-for children included"),
        Column(
            "cancelled_write_bytes",
            COUNTER,
            "bytes whose write to storage was cancelled by truncation, waited-for children included",
        ),
        Column(
            "run_delay_seconds",
            COUNTER,
            "time that its threads were runnable and waited for a core, without children",
            divisor=1_000_000_000,
        ),
    ),
)
THREAD = Schema(
    "thread",
    ("pid", "start", "tid", "name"),
    (
        _ticks("user", "user CPU time"),
        _ticks("system", "system CPU time"),
        Column("state", GAUGE, "state, as the ASCII code of its letter in /proc/PID/task/TID/stat"),
        Column("processor", GAUGE, "core that it last ran on"),
        Column("run_seconds", COUNTER, "time on a core", divisor=1_000_000_000),
        Column("wait_seconds", COUNTER, "time runnable and waiting for a core", divisor=1_000_000_000),
    ),
)
_NO_IO = [ABSENT] * 7
_STAT_FIELDS = 22
_THREADS, _STATE = PROCESS.position("threads"), PROCESS.position("state")
_RUNNING = ord("R")
_OF_MEMORY = (7, 9, 17, 20, 21)  # fields of stat: minor and major faults, threads, virtual size, RSS


def may_be_stepd(key: ProcessKey) -> bool:
    """Whether it claims to be a slurmstepd: any process can set any name, so it must be verified."""
    return key.uid == 0 and key.name == STEPD


def _awaits_title(key: ProcessKey) -> bool:
    """Whether it has not yet set its title `slurmstepd: [JOB.STEP]`, which it does just after its start."""
    return may_be_stepd(key) and not key.command.startswith(STEPD + ": ")


_Row = tuple[ProcessKey, list[int]]


class _Process:
    """A process that is followed: its open files, and what is not read at each scan."""

    __slots__ = (
        "again_in", "asleep_in", "delay", "files", "identity", "kernel", "key", "memory", "path", "record",
        "row", "scheduled", "settled", "stat_name", "status", "status_in", "status_is_old", "texts", "waited",
    )  # fmt: skip

    def __init__(self, path: str) -> None:
        self.path = path
        self.files: Dict[str, int] = {}
        self.delay = RunDelay()
        self.record: Optional[bytearray] = None  # while the C library reads it
        self.forget()

    def forget(self) -> None:
        """Reset: another process may have its pid."""
        self.kernel = False
        self.again_in = 0
        self.settled = False
        self.stat_name = b""
        self.key: Optional[ProcessKey] = None
        self.identity: Tuple[Any, ...] = ()  # the raw fields that the key is made from
        self.texts: Tuple[Optional[bytes], ...] = ()  # the last stat and io
        self.waited = 0  # for a core, nanoseconds
        self.memory: List[bytes] = []  # fields of stat; while they are unchanged, status is not read
        self.status: Tuple[int, List[int]] = (-1, [])
        self.status_in = 0
        self.status_is_old = True  # it has run since
        self.row: Optional[_Row] = None  # made from these
        self.scheduled = b""  # the last schedstat, read before these
        self.asleep_in = 0

    def read(self, host: Host, name: str, keep: bool) -> bytes:
        fd = self.files.get(name)
        if fd is None:
            fd = host.open(f"{self.path}/{name}")
            if not keep:
                try:
                    return _read_record(fd)
                finally:
                    os.close(fd)
            self.files[name] = fd
        return _read_record(fd)

    def close_all_but(self, kept: Tuple[str, ...]) -> None:
        self.take_back()
        for name in [name for name in self.files if name not in kept]:
            os.close(self.files.pop(name))

    def hand_over(self, may_sleep: bool) -> None:
        """Let the C library read it from now on, if it can."""
        if self.settled and self.row and not self.kernel and not may_be_stepd(self.row[0]):
            self.record = native_scan.make_record(self, may_sleep and self.row[1][_THREADS] == 1)

    def take_back(self) -> None:
        record, self.record = self.record, None
        if record is not None:
            native_scan.take_back(self, record)

    def close(self) -> None:
        self.close_all_but(())
        self.delay.close()

    __del__ = close  # a table that failed is dropped without closing


def _read_record(fd: int) -> bytes:
    data = os.pread(fd, _RECORD, 0)  # one read returns these files completely,
    return data if len(data) < _RECORD else read_all(fd)  # unless the user has a thousand groups


class _Table:
    def __init__(self, host: Host, processes: AllProcesses) -> None:
        self.host, self.processes = host, processes
        self.known: Dict[str, _Process] = {}
        self.keys: Tuple[Key, ...] = ()
        self.chosen: List[str] = []
        self.pids: List[str] = []  # in the order of reading
        self.kernel: Set[str] = set()
        self.is_sorted = False
        self.warning = ""
        self.may_see_io: Optional[bool] = None
        self.scans = 0
        self.is_native = native_scan.is_available()
        self.thread_files = 0  # open in the last scan
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most_kept = min(_MOST_KEPT_OPEN, allowed // 2) if allowed > 0 else _MOST_KEPT_OPEN
        # A recording has the same text of it at all times.
        has_scheduled = host.live and host.exists(f"proc/self/{_SCHEDULED}")
        self.kinds: Tuple[str, ...] = (_SCHEDULED, *_KEPT) if has_scheduled else _KEPT
        self.kept: Tuple[str, ...] = self.kinds  # files that each process keeps open

    def read(self) -> Rows:
        self.scans += 1
        self.thread_files = 0
        self._sort(self.processes.choose(self.known))
        self._choose_kept(len(self.keys) or len(self.pids))
        rows = self._read_all([*self.pids, *(pid for pid in self.kernel if self._is_due(pid))])
        # The same tuple as before if only values changed, so that it is encoded only once.
        found = tuple([key for key, _ in rows])
        if found != self.keys:
            self.keys = found
        return Rows(PROCESS, self.keys, list(chain.from_iterable([values for _, values in rows])))

    def _sort(self, chosen: List[str]) -> None:
        """Parents before their children, whose usage they accumulate: a child that was read and then ends
        before its parent is read would count twice. Ordered by start, as pids wrap around."""
        if chosen == self.chosen and self.is_sorted:
            return
        self.chosen, self.is_sorted = chosen, True
        for pid in self.known.keys() - set(chosen):
            self.known.pop(pid).close()
        self.kernel = {pid for pid in chosen if pid in self.known and self.known[pid].kernel}
        self.pids = sorted((pid for pid in chosen if pid not in self.kernel), key=self._began)

    def _is_due(self, kernel_thread: str) -> bool:
        return (self.scans + int(kernel_thread)) % _KERNEL_AGAIN == 0

    def _read_all(self, pids: List[str]) -> List[_Row]:
        """Read all in their order, as many as possible by the C library."""
        rows: List[Optional[_Row]] = []
        known = [self.known.get(pid) for pid in pids]
        old = -(-self.most_kept // len(self.kept))  # that many keep their files open
        records = [process.record if process else None for process in known[:old]]
        while len(rows) < len(pids):
            number = len(rows)
            if number < len(records) and records[number] is not None:
                end, changed, due = native_scan.scan(records, number)
                self._update(known, changed)
                found = [process.row if process else None for process in known[number:end]]
                for place in due:
                    found[place - number] = self._read_again(pids[place])
                rows += found
                number = end
            if number < len(pids):
                rows.append(self._read_process(pids[number], self.kept if number < old else ()))
        return [row for row in rows if row is not None]

    def _update(self, known: List[Optional[_Process]], changed: List[int]) -> None:
        for number in changed:
            process = known[number]
            if process and process.row and process.record:
                process.row = (process.row[0], native_scan.read_row(process.record))
                self.thread_files += process.delay.open_files

    def _read_again(self, pid: str) -> Optional[_Row]:
        """Read the cgroup of a process that the C library has just read, as `_key` does."""
        process = self.known[pid]
        return self._unless_ended(pid, lambda: self._check_cgroup(process))

    def _check_cgroup(self, process: _Process) -> Optional[_Row]:
        cgroup = self._cgroup(process)
        if process.row and process.record:
            key, values = process.row
            if cgroup != key.cgroup:
                process.key = key._replace(cgroup=cgroup)
                process.row = (process.key, values)
            native_scan.postpone(process.record, _READ_AGAIN)
        return process.row

    def _choose_kept(self, count: int) -> None:
        """Based on the number of processes without kernel threads, which have no files open."""
        kept = self._kinds(self.most_kept, count)
        if len(kept) < len(self.kept):
            for process in self.known.values():
                process.close_all_but(kept)
            self.kept = kept
        else:
            self.kept = max(self.kept, self._kinds(int(self.most_kept * _SPARE), count), key=len)

    def _kinds(self, files: int, processes: int) -> Tuple[str, ...]:
        """Return the kinds of files that each process can keep open."""
        return self.kinds[: max(files // max(processes, 1), 1)]

    def _began(self, pid: str) -> int:
        process = self.known.get(pid)
        return process.key.start if process and process.key else _NOT_YET_KNOWN

    def identities(self) -> List[Tuple[int, int]]:
        return [(process.key.pid, process.key.start) for process in self.known.values() if process.key]

    def _read_process(self, pid: str, kept: Tuple[str, ...]) -> Optional[_Row]:
        """None for a kernel thread, a process that ends while it is read, and one that is inaccessible.

        If /proc is mounted with hidepid=1, other users' processes are listed but cannot be read.
        """
        process = self.known.get(pid)
        if process is None:
            process = self.known[pid] = _Process("proc/" + pid)
        found = process
        return self._unless_ended(pid, lambda: self._read_in_python(found, kept))

    def _unless_ended(self, pid: str, read: Callable[[], Optional[_Row]]) -> Optional[_Row]:
        try:
            return read()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            self.known.pop(pid).close()
            self.is_sorted = False
            self.processes.has_ended()
            return None
        except ValueError as error:
            raise MalformedError(f"proc/{pid}", str(error)) from None

    def _read_in_python(self, process: _Process, kept: Tuple[str, ...]) -> Optional[_Row]:
        process.take_back()
        may_sleep = _SCHEDULED in kept
        if not may_sleep:
            process.scheduled = b""
        row = process.row if may_sleep and self._slept(process) else None
        row = row or self._read_known(process, () if process.kernel else kept)
        if kept and self.is_native:
            process.hand_over(may_sleep)
        return row

    def _slept(self, process: _Process) -> bool:
        """Whether it has not run since its row was made. Unknown for threads other than the first."""
        row = process.row
        if row is None or not process.settled or row[1][_THREADS] != 1 or may_be_stepd(row[0]):
            process.scheduled = b""
            return False
        before, process.scheduled = process.scheduled, process.read(self.host, _SCHEDULED, True)
        process.asleep_in -= 1
        has_run = process.scheduled != before or row[1][_STATE] == _RUNNING
        process.status_is_old = process.status_is_old or has_run
        if not has_run and process.asleep_in >= 0 and not (process.status_is_old and process.status_in <= 0):
            process.status_in -= process.status_is_old
            return True
        process.asleep_in = _ASLEEP_AGAIN
        return False

    def _read_known(self, process: _Process, kept: Tuple[str, ...]) -> Optional[_Row]:
        """Return the row of last time if the kernel's text has not changed: most processes sleep."""
        if not kept and process.files:  # it is now among the youngest
            process.close()
        data = process.read(self.host, "stat", "stat" in kept)
        stat = parse_stat(process.path, data, _STAT_FIELDS) if data not in process.texts[:1] else None
        if stat:
            if process.key and process.key.start != int(stat.fields[19]):
                process.close()  # stat was not open, else it would have failed with ESRCH
                process.forget()
            process.kernel = stat.kernel_thread
            if process.kernel:
                self.is_sorted = False
                process.close()
                return None
        # When a process has released its memory, its io is no longer readable: this order keeps both
        # consistent.
        io = self._read_io(process, "io" in kept)
        is_new = self._read_status(process, stat, io, "status" in kept)
        texts = (data, io)
        is_new = self._read_delay(process, stat, data, "status" in kept) or is_new
        is_same = texts == process.texts and not is_new and process.again_in > 0
        if is_same and process.row and not may_be_stepd(process.row[0]):
            process.again_in -= 1
            return process.row
        stat = stat or parse_stat(process.path, data, _STAT_FIELDS)
        process.texts = ()  # if it cannot be parsed, the last row is not that of the last texts either
        process.row = self._parse(process, stat, io)
        process.texts = texts
        return process.row

    def _read_status(self, process: _Process, stat: Optional[Stat], io: Optional[bytes], keep: bool) -> bool:
        """Return whether status has changed; `stat` is None if that has not."""
        process.status_in -= 1
        memory = [stat.fields[place] for place in _OF_MEMORY] if stat else process.memory
        if memory == process.memory and process.status_in >= 0 and None not in (io, *process.texts):
            return False
        process.memory = memory
        process.status_is_old = False
        process.status_in = _STATUS_AGAIN if process.settled else 0
        status = parse_status(process.read(self.host, "status", keep))
        before, process.status = process.status, status
        return status != before

    def _parse(self, process: _Process, stat: Stat, io: Optional[bytes]) -> _Row:
        uid, amounts = process.status
        key = self._key(process, stat, uid)
        fields = stat.fields
        user, system, children_user, children_system = map(int, fields[11:15])
        values = [user, system, children_user, children_system, int(fields[7]), int(fields[9])]
        values += (int(fields[17]), fields[0][0], *amounts)
        values += _NO_IO if io is None else parse_io(process.path, io)
        values.append(process.waited)
        return key, values

    def _read_delay(self, process: _Process, stat: Optional[Stat], data: bytes, keep: bool) -> bool:
        """Return whether it has changed. A process that slept all the time has not waited for a core."""
        threads = int(stat.fields[17]) if stat else 0
        if not stat:
            if not is_running(data):
                return False
            threads = process.row[1][_THREADS] if process.row else 1
        before = process.waited
        keep = keep and self.thread_files < self.most_kept // 4
        only = process.scheduled if threads == 1 else b""
        process.waited = process.delay.read(self.host, process.path, threads, keep, only)
        self.thread_files += process.delay.open_files
        return process.waited != before

    def _read_io(self, process: _Process, keep: bool) -> Optional[bytes]:
        """None if it is inaccessible."""
        try:
            return process.read(self.host, "io", keep)
        except PermissionError:
            self._warn_of_io()
            return None
        except FileNotFoundError:
            if not self.host.exists(process.path + "/stat"):
                raise
            return None  # a kernel without CONFIG_TASK_IO_ACCOUNTING

    def _warn_of_io(self) -> None:
        """Warn root, who should see all. Some processes are inaccessible even with all capabilities."""
        if self.may_see_io is None:
            self.may_see_io = self.host.uid != 0 or not self.host.lacks("CAP_SYS_PTRACE")
        if not self.may_see_io:
            self.warning = "I/O of other users' processes needs CAP_SYS_PTRACE"

    def _key(self, process: _Process, stat: Stat, uid: int) -> ProcessKey:
        """Return the previous key while nothing in it changed; a new name means a new command line."""
        old, fields = process.key, stat.fields
        process.again_in -= 1
        identity = (stat.name, uid, fields[19], *fields[1:5])
        if identity == process.identity and process.again_in >= 0 and old and not may_be_stepd(old):
            return old
        parent, group, session, terminal = map(int, fields[1:5])
        if old is None or stat.name != process.stat_name:
            name, process.stat_name = stat.name.decode("utf-8", "replace"), stat.name
            command, cgroup = self._command(process), self._cgroup(process)
            # During an exec the command line is empty.
            process.again_in, process.settled = 1 if command else 0, False
        elif process.again_in < 0 or _awaits_title(old):
            name, cgroup = old.name, self._cgroup(process)
            is_known = process.settled and not _awaits_title(old)
            command = old.command if is_known else self._command(process)
            process.again_in, process.settled = _READ_AGAIN, bool(command)
        else:
            name, command, cgroup = old.name, old.command, old.cgroup
        pid, start = int(process.path[5:]), int(fields[19])
        process.identity = identity  # not before all of it could be parsed
        key = ProcessKey(pid, start, parent, group, session, terminal, uid, name, command, cgroup)
        if key != old:
            process.key = old = key
            self.is_sorted = False
        return old

    def _command(self, process: _Process) -> str:
        """Read the beginning: a command line can have megabytes."""
        try:
            fd = self.host.open(process.path + "/cmdline")
        except PermissionError:
            return ""
        try:
            data = os.pread(fd, _LONGEST_COMMAND, 0)
        except PermissionError:
            return ""
        finally:
            os.close(fd)
        return mask_command(data, _LONGEST_COMMAND)

    def _cgroup(self, process: _Process) -> str:
        old = process.key.cgroup if process.key else ""
        try:
            found = parse_cgroup(process.read(self.host, "cgroup", keep=False))
            # The kernel moves a process that ends to the root of all hierarchies of cgroup v1.
            if found == "/" != old and old:
                stat = parse_stat(process.path, process.read(self.host, "stat", keep=False), _STAT_FIELDS)
                return old if stat.is_exiting else found
            return found
        except PermissionError:
            return old
        except FileNotFoundError:
            if not self.host.exists(process.path + "/stat"):
                raise  # it has ended
            return ""  # a kernel without cgroups

    def read_threads(self) -> Rows:
        keys: List[Key] = []
        values: List[int] = []
        for process in self.known.values():
            if process.key is None:
                continue
            for tid in self._list_threads(process):
                try:
                    row = self._read_thread(f"{process.path}/task/{tid}")
                except (FileNotFoundError, ProcessLookupError):
                    continue
                except ValueError as error:
                    raise MalformedError(f"{process.path}/task/{tid}", str(error)) from None
                keys.append((process.key.pid, process.key.start, int(tid), row[0]))
                values += row[1]
        return Rows(THREAD, tuple(keys), values)

    def _list_threads(self, process: _Process) -> List[str]:
        try:
            return self.host.list(process.path + "/task")
        except (FileNotFoundError, ProcessLookupError):
            return []

    def _read_thread(self, path: str) -> Tuple[str, List[int]]:
        stat = parse_stat(path, self.host.read_once(path + "/stat"))
        times = [int(field) for field in self.host.read_once(path + "/schedstat").split()[:2]]
        if len(times) != 2:
            times = [ABSENT, ABSENT]
        fields = stat.fields
        processor = int(fields[36]) if len(fields) > 36 else ABSENT
        row = [int(fields[11]), int(fields[12]), fields[0][0], processor, *times]
        return stat.name.decode("utf-8", "replace"), row


def processes(
    host: Host,
    threads: bool = False,
    pss: bool = False,
    others: bool = True,
    without: int = 0,
    below: int = 0,
    first: int = 0,
    ignored: FrozenSet[str] = frozenset(),
) -> Reader:
    """Collect all processes; or those of the agent's own user except descendants of `without`; or descendants
    of `below` and of its child `first`, without the pids `ignored`. On request also their threads and
    proportional set sizes."""
    chosen = AllProcesses(host) if others else OwnUser(host, without)
    if below:
        chosen = Descendants(host, below, first, ignored)
    return _Processes(_Table(host, chosen), threads, pss)


class _Processes(Reader):
    def __init__(self, table: _Table, threads: bool, pss: bool) -> None:
        self._table, self._threads, self._pss = table, threads, pss

    def __call__(self) -> Tuple[Rows, ...]:
        found = [self._table.read()]
        if self._threads:
            found.append(self._table.read_threads())
        if self._pss:
            found.append(read_shares(self._table.host, self._table.identities()))
        self.warning = self._table.warning
        return tuple(found)
