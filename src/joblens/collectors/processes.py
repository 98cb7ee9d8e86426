"""`process` and `thread`: what each process has used so far, from /proc/PID (proc(5)).

A process is its pid and its start together: pids come round again. An open /proc/PID/stat belongs to
one process for ever and says ESRCH once that is gone, so keeping it open is cheaper and safer both.
Kernel threads are left out.
"""

from __future__ import annotations

import os
import resource
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from joblens.collectors.pss import read_shares
from joblens.errors import MalformedError
from joblens.host import Host, read_all
from joblens.model import ABSENT, COUNTER, GAUGE, Column, Key, Rows, Schema

_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_LONGEST_COMMAND = 1024
# Three files per process stay open, each with a page of the kernel's memory behind it, up to this many,
# and to half of what the agent may have open: the rest is for other collectors and for connections.
_MOST_KEPT_OPEN = 3000
_RECORD = 8192
# A process is moved to its cgroup before or shortly after it starts, and seldom later. Shortly after its
# start it may also give itself a title; later it is asked for that only when its name has changed.
_READ_AGAIN = 16
_MOST_NUMBERS = 32  # that are looked at one by one: about what listing a quiet node costs


class ProcessKey(NamedTuple):
    pid: int
    start: int  # in clock ticks after the boot, as in /proc/PID/stat
    parent: int
    group: int
    session: int
    terminal: int
    uid: int  # the real one: /proc/PID belongs to root for a program that made itself undumpable
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
        _ticks("user", "time in the program, children not included"),
        _ticks("system", "time in the kernel, children not included"),
        _ticks("children_user", "user time of children that ended and were waited for, with theirs"),
        _ticks("children_system", "system time of children that ended and were waited for, with theirs"),
        Column("minor_faults", COUNTER, "page faults that needed no disk"),
        Column("major_faults", COUNTER, "page faults that had to read from disk"),
        Column("threads", GAUGE, "threads"),
        Column("state", GAUGE, "state, as the ASCII code of its letter in /proc/PID/stat"),
        _kib("rss", "memory in RAM: anonymous, file and shared parts together"),
        _kib("rss_anon", "memory in RAM that no file stands behind"),
        _kib("rss_file", "pages of files in RAM"),
        _kib("rss_shmem", "shared memory in RAM"),
        _kib("swap", "memory swapped out"),
        Column("voluntary_switches", COUNTER, "times that it gave up the core to wait"),
        Column("involuntary_switches", COUNTER, "times that the core was taken from it"),
        Column("read_chars_bytes", COUNTER, "bytes read by system calls; waited-for children included"),
        Column("written_chars_bytes", COUNTER, "bytes written by system calls; children as above"),
        Column("read_calls", COUNTER, "system calls that read; children as above"),
        Column("write_calls", COUNTER, "system calls that write; children as above"),
        Column("read_bytes", COUNTER, "bytes fetched from storage; children as above"),
        Column("written_bytes", COUNTER, "bytes sent to storage; children as above"),
        Column("cancelled_write_bytes", COUNTER, "bytes not written after all; children as above"),
    ),
)
THREAD = Schema(
    "thread",
    ("pid", "start", "tid", "name"),
    (
        _ticks("user", "time in the program"),
        _ticks("system", "time in the kernel"),
        Column("state", GAUGE, "state, as the ASCII code of its letter"),
        Column("processor", GAUGE, "the core that it ran on last"),
        Column("run_seconds", COUNTER, "time on a core", divisor=1_000_000_000),
        Column("wait_seconds", COUNTER, "time ready to run, waiting for a core", divisor=1_000_000_000),
    ),
)
STEPD = "slurmstepd"  # Slurm's, from which the processes of a job's step come
_STEPD_NAME = f"Name:\t{STEPD}".encode()
_NO_IO = [ABSENT] * 7
_STAT_FIELDS = 22
_STATUS = (
    b"\nVmRSS:",
    b"\nRssAnon:",
    b"\nRssFile:",
    b"\nRssShmem:",
    b"\nVmSwap:",
    b"\nvoluntary_ctxt_switches:",
    b"\nnonvoluntary_ctxt_switches:",
)


class Stat(NamedTuple):
    """The fields of /proc/PID/stat behind the name, by their position there."""

    name: bytes
    fields: List[bytes]

    @property
    def kernel_thread(self) -> bool:
        return bool(int(self.fields[6]) & _PF_KTHREAD)


def _awaits_title(key: ProcessKey) -> bool:
    """It calls itself `slurmstepd: [JOB.STEP]` a moment after its start, and a look may come in between."""
    return key.name == STEPD and not key.command.startswith(STEPD + ": ")


def parse_stat(path: str, data: bytes, most: int = -1) -> Stat:
    """The name can hold anything, brackets and newlines too, so it ends at the last bracket.

    Of the fields so many are told apart, in a process those until its start and some more.
    """
    first, last = data.find(b"("), data.rfind(b")")
    fields = data[last + 1 :].split(None, most)
    if first < 0 or last < first or len(fields) < 22:
        raise MalformedError(path, f"not the fields of a process: {data[:80]!r}")
    return Stat(data[first + 1 : last], fields)


def parse_status(data: bytes) -> Tuple[int, List[int]]:
    """Real uid, then memory and context switches; what the kernel does not tell is ABSENT.

    Searched for from where the one before was found: the file is long and its order fixed.
    """
    at = data.find(b"\nUid:")
    uid = int(data[at + 5 : data.find(b"\t", at + 6)]) if at >= 0 else -1
    found = []
    for name in _STATUS:
        place = data.find(name, at if at > 0 else 0)
        if place < 0:
            found.append(ABSENT)
            continue
        at = data.find(b"\n", place + 1)
        found.append(int(data[place + len(name) : at if at > 0 else len(data)].rstrip(b" kB")))
    return uid, found


def parse_io(path: str, data: bytes) -> List[int]:
    values = data.split()[1::2]
    if len(values) != 7:
        raise MalformedError(path, f"not the seven figures of I/O: {data[:80]!r}")
    return list(map(int, values))


def parse_cgroup(data: bytes) -> str:
    """The path that says most: schedulers make groups in v1 controllers, in v2, or in both (cgroups(7)).

    Where a scheduler has no group the process stays in one of systemd's, `/system.slice/slurmd.service` or
    a user's session. Below `user@UID.service` users make groups as deep as they like, and with v1 move there
    without leaving the scheduler's: so one that is not systemd's stands before all of these.
    """
    paths = [line.partition(b":")[2].partition(b":")[2] for line in data.splitlines()]
    best = max(paths, key=_says, default=b"")
    return best.decode("utf-8", "replace")


def _says(path: bytes) -> Tuple[bool, int, int]:
    of_systemd = path.startswith((b"/system.slice", b"/user.slice", b"/init.scope")) or path == b"/"
    return not of_systemd, path.count(b"/"), len(path)


_Row = Tuple[ProcessKey, List[int]]


class _Process:
    """A process that is followed: its open files, and what of it is not read each time."""

    __slots__ = ("again_in", "files", "kernel", "key", "path", "row", "settled", "stat_name", "told", "who")

    def __init__(self, path: str) -> None:
        self.path = path
        self.files: Dict[str, int] = {}
        self.kernel = False
        self.again_in = 0
        self.settled = False
        self.stat_name = b""
        self.key: Optional[ProcessKey] = None
        self.who: Tuple[Any, ...] = ()  # that of it by which the key changes, as the kernel tells it
        self.told: Tuple[Optional[bytes], ...] = ()  # all of it, as the kernel told it last
        self.row: Optional[_Row] = None  # what that was

    def read(self, host: Host, name: str, keep: bool) -> bytes:
        fd = self.files.get(name)
        if fd is None:
            fd = host.open(f"{self.path}/{name}")
            if not keep:
                try:
                    return read_all(fd)
                finally:
                    os.close(fd)
            self.files[name] = fd
        data = os.pread(fd, _RECORD, 0)  # these files are single records: one read has all of it,
        return data if len(data) < _RECORD else read_all(fd)  # unless its user is in a thousand groups

    def close(self) -> None:
        for fd in self.files.values():
            os.close(fd)
        self.files.clear()

    __del__ = close  # a table that failed is dropped as it is


class _Look(NamedTuple):
    """What one has to know of a process to decide whether to follow it."""

    name: bytes  # the whole line
    uid: int
    parent: str


class _Table:
    def __init__(self, host: Host, below: int, others: bool) -> None:
        self.host = host
        self.below, self.others = below, others
        self.strangers: Set[str] = set()
        self._foreign: Set[str] = set()  # since the last scan, so that it may still change its user
        self._last_pid = b""
        # Else /proc is of another namespace, and the numbers that are given here are not those in it.
        self._same_numbers = host.live and str(os.getpid()) in host.list("proc/self/task")
        self._not_pids: Set[str] = set()  # what else is in /proc
        self.known: Dict[str, _Process] = {}
        self.keys: Tuple[Key, ...] = ()
        self.scans = 0
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most_kept = min(_MOST_KEPT_OPEN, allowed // 2) if allowed > 0 else _MOST_KEPT_OPEN

    def read(self) -> Rows:
        self.scans += 1
        if self.below:
            pids = self._descendants(self._list())
        elif not self.others:
            pids = self._of_user()
        else:
            pids = self._list()
        for pid in self.known.keys() - set(pids):
            self.known.pop(pid).close()
        keys: List[Key] = []
        values: List[int] = []
        for pid in pids:
            row = self._read_process(pid)
            if row is not None:
                keys.append(row[0])
                values += row[1]
        # The same tuple as before if nothing but values changed, so that it is encoded only once.
        found = tuple(keys)
        if found != self.keys:
            self.keys = found
        return Rows(PROCESS, self.keys, values)

    def _list(self) -> List[str]:
        return [pid for pid in self.host.list("proc") if pid.isdigit()]

    def identities(self) -> List[Tuple[int, int]]:
        return [(process.key.pid, process.key.start) for process in self.known.values() if process.key]

    def _descendants(self, pids: List[str]) -> List[str]:
        """Those that come from `below`, without that itself and without the reader.

        Only pids that are new are looked at: a stranger stays one, and who was followed once stays so
        when its parents end.
        """
        self.strangers = self.strangers.intersection(pids) if self.scans % 64 else set()
        parents = {
            pid: self._parent(pid) for pid in pids if pid not in self.known and pid not in self.strangers
        }
        family = {str(self.below), *self.known}
        found = {""}
        while found:
            found = {pid for pid, parent in parents.items() if parent in family and pid not in family}
            family |= found
        family -= {str(self.below), str(os.getpid())}
        self.strangers.update(pid for pid in parents if pid not in family)
        return [pid for pid in pids if pid in family]

    def _of_user(self) -> List[str]:
        """Those whose real user is ours, and any slurmstepd that they come from: by that their step is known.

        A stranger is looked at again at the next scan, for a scheduler starts processes as root, and then
        seldom. On a node with many cores are thousands of kernel threads: so while the kernel has given few
        numbers since the last scan, or none, only these are looked at, and /proc is not listed. A number
        behind which there is nobody is asked for again as well: its process may just have been in the making.
        """
        given = self._given_numbers()
        if given is None or self.scans % 64 == 0:
            listed = set(self.host.list("proc"))
            # In the order of last time: else it would be told anew of all who they are.
            here = [pid for pid in self.known if pid in listed]
            new = self._unknown(listed)
        else:
            here = list(self.known)
            new = (given | self._foreign) - self.known.keys()
        looks = [(pid, self._look(pid)) for pid in new if self._may_be_ours(pid)]
        followed = {pid: look.parent for pid, look in looks if look.uid == self.host.uid}
        foreign = new - followed.keys()
        for pid in list(followed):
            self._add_steps(followed[pid], followed)
        self.strangers = (self.strangers | foreign & self._foreign) - followed.keys()
        self._foreign = foreign - self.strangers
        return [*here, *followed]

    def _given_numbers(self) -> Optional[Set[str]]:
        """Those that processes and threads have got since the last scan; None if that is not known, or many.

        The kernel gives one after the other, and begins anew at the end.
        """
        before, self._last_pid = self._last_pid, self._read_last_pid()
        if not before.isdigit() or not self._last_pid.isdigit():
            return None
        first, last = int(before) + 1, int(self._last_pid)
        return set(map(str, range(first, last + 1))) if 0 <= last + 1 - first <= _MOST_NUMBERS else None

    def _unknown(self, listed: Set[str]) -> Set[str]:
        self.strangers &= listed
        new = listed - self._not_pids - self.known.keys()
        new -= self.strangers if self.scans % 64 else set()
        if not self._not_pids:
            self._not_pids = {name for name in new if not name.isdigit()}
            new -= self._not_pids
        return new

    def _add_steps(self, pid: str, followed: Dict[str, str]) -> None:
        while pid and pid not in self.known and pid not in followed:
            look = self._look(pid)
            if look.name != _STEPD_NAME:
                return
            followed[pid] = look.parent
            pid = look.parent

    def _read_last_pid(self) -> bytes:
        """The number that was given last, to a process or a thread: the last word of /proc/loadavg (proc(5)).

        Empty where nobody knows.
        """
        if not self._same_numbers:  # or it is a recording, and stands still
            return b""
        try:
            return self.host.read("proc/loadavg").rpartition(b" ")[2].strip()
        except OSError:
            return b""

    def _may_be_ours(self, pid: str) -> bool:
        """The first look is a cheap one, for most are gone at the next: /proc/PID is its user's, or root's if
        its program has rights of its own. Of a recording nobody knows whose it was."""
        if not self.host.live or pid in self._foreign:
            return True
        try:
            return self.host.stat(f"proc/{pid}").st_uid == self.host.uid
        except OSError:
            return False

    def _look(self, pid: str) -> _Look:
        try:
            status = self.host.read_once(f"proc/{pid}/status")
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError, PermissionError):
            return _Look(b"", -1, "")
        name = status.partition(b"\n")[0]
        group, parent, uid = (
            status.partition(what)[2].partition(b"\n")[0].split()
            for what in (b"\nTgid:", b"\nPPid:", b"\nUid:")
        )
        if group and group[0].decode("ascii", "replace") != pid:
            return _Look(b"", -1, "")  # a thread: those have numbers too, though they are not listed
        known = int(uid[0]) if uid and uid[0].isdigit() else -1
        return _Look(name, known, parent[0].decode("ascii", "replace") if parent else "")

    def _parent(self, pid: str) -> str:
        try:
            path = f"proc/{pid}"
            return parse_stat(path, self.host.read_once(path + "/stat")).fields[1].decode("ascii", "replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return ""

    def _read_process(self, pid: str) -> Optional[_Row]:
        """None for a kernel thread, a process that ends while it is read, and one that is not ours to see.

        Where /proc is mounted with hidepid=1, those of others are listed and cannot be read.
        """
        process = self.known.get(pid)
        if process is None:
            process = self.known[pid] = _Process("proc/" + pid)
        elif process.kernel and self.scans % 64:
            return None
        try:
            return self._read_known(process)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            process.close()
            del self.known[pid]
            self._last_pid = b""  # so that who may have its number by now is looked for
            return None

    def _read_known(self, process: _Process) -> Optional[_Row]:
        """Most processes wait: of one of which the kernel tells the same as before, it is the same row."""
        keep = len(self.known) * 3 <= self.most_kept
        data = process.read(self.host, "stat", keep)
        stat = parse_stat(process.path, data, _STAT_FIELDS) if data not in process.told[:1] else None
        if stat:
            process.kernel = stat.kernel_thread
            if process.kernel:
                process.close()
                return None
        # Once a process has given up its memory, users are not told its I/O; in this order the two agree.
        told = (data, self._read_io(process, keep), process.read(self.host, "status", keep))
        if told == process.told and process.row and process.again_in > 0 and process.row[0].name != STEPD:
            process.again_in -= 1
            return process.row
        stat = stat or parse_stat(process.path, data, _STAT_FIELDS)
        process.row = self._parse(process, stat, *told[1:])
        process.told = told if keep else ()
        return process.row

    def _parse(self, process: _Process, stat: Stat, io: Optional[bytes], status: bytes) -> _Row:
        uid, amounts = parse_status(status)
        key = self._key(process, stat, uid)
        fields = stat.fields
        user, system, children_user, children_system = map(int, fields[11:15])
        values = [user, system, children_user, children_system, int(fields[7]), int(fields[9])]
        values += (int(fields[17]), fields[0][0], *amounts)
        values += _NO_IO if io is None else parse_io(process.path, io)
        return key, values

    def _read_io(self, process: _Process, keep: bool) -> Optional[bytes]:
        """None if it is not told."""
        try:
            return process.read(self.host, "io", keep)
        except PermissionError:
            return None
        except FileNotFoundError:
            if not self.host.exists(process.path + "/stat"):
                raise
            return None  # a kernel without CONFIG_TASK_IO_ACCOUNTING

    def _key(self, process: _Process, stat: Stat, uid: int) -> ProcessKey:
        """The key of last time while nothing in it changed; a new name means a new command."""
        old, fields = process.key, stat.fields
        process.again_in -= 1
        who = (stat.name, uid, fields[19], *fields[1:5])
        if who == process.who and process.again_in >= 0 and old and old.name != STEPD:
            return old
        process.who = who
        parent, group, session, terminal = map(int, fields[1:5])
        if old is None or stat.name != process.stat_name:
            name, process.stat_name = stat.name.decode("utf-8", "replace"), stat.name
            command, cgroup = self._command(process), self._cgroup(process)
            # In the middle of an exec there are no words yet.
            process.again_in, process.settled = 1 if command else 0, False
        elif process.again_in < 0 or _awaits_title(old):
            name, cgroup = old.name, self._cgroup(process)
            is_known = process.settled and not _awaits_title(old)
            command = old.command if is_known else self._command(process)
            process.again_in, process.settled = _READ_AGAIN, bool(command)
        else:
            name, command, cgroup = old.name, old.command, old.cgroup
        pid, start = int(process.path[5:]), int(fields[19])
        key = ProcessKey(pid, start, parent, group, session, terminal, uid, name, command, cgroup)
        if key != old:
            process.key = old = key
        return old

    def _command(self, process: _Process) -> str:
        try:
            data = process.read(self.host, "cmdline", keep=False)
        except PermissionError:
            return ""
        words = data[:_LONGEST_COMMAND].rstrip(b"\0").replace(b"\0", b" ")
        return words.decode("utf-8", "replace")

    def _cgroup(self, process: _Process) -> str:
        try:
            return parse_cgroup(process.read(self.host, "cgroup", keep=False))
        except (FileNotFoundError, PermissionError):
            return ""

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
    host: Host, threads: bool = False, pss: bool = False, others: bool = True, below: int = 0
) -> Callable[[], Tuple[Rows, ...]]:
    """All processes, or without those of other users, or those that come from the process `below`; on request
    each of their threads."""
    table = _Table(host, below, others)

    def read() -> Tuple[Rows, ...]:
        found = [table.read()]
        if threads:
            found.append(table.read_threads())
        if pss:
            found.append(read_shares(host, table.identities()))
        return tuple(found)

    return read
