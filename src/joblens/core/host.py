"""The one interface to the machine: files, folders, clock and names below a root.

`Host("/")` is this machine. Any other root is a recording made by `joblens record`; what is not a file
(clock, file system sizes, page size) comes from the recording's `facts.json`.
"""

from __future__ import annotations

import errno
import os
import resource
import stat
import time

from joblens.core.errors import MalformedError
from joblens.core.json_file import parse_json
from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

_CHUNK = 1 << 16
# /proc/interrupts of a machine with a thousand cores is a few MiB. More than this is not a kernel file.
_MOST = 1 << 26
_FACTS = "facts.json"
KMSG = "dev/kmsg"  # the kernel's log
_KMSG_DEVICE = os.makedev(1, 11)  # Documentation/admin-guide/devices.txt
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO, the same on every kernel
_MOST_RECORDS = 10_000  # of a log in one reading
# include/uapi/linux/capability.h
_CAPABILITIES = {"CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_PTRACE": 19}
_LARGEST_ENVIRONMENT = 1 << 20
_LOOKUP_SECONDS = 0.2
_LOOKUP_RETRY_SECONDS = 300.0


class Space(NamedTuple):
    """Size of a file system, as in statvfs(3)."""

    block_size: int
    blocks: int
    free: int
    available: int
    inodes: int
    inodes_free: int


class Program(NamedTuple):
    """The file that a process executes, from /proc/PID/exe."""

    path: str  # as the process sees it; followed by ` (deleted)` if it was removed
    uid: int
    mode: int


class _Facts(NamedTuple):
    """What a recording has of its machine beside its files."""

    time_ns: int = 0
    page_size: int = 0
    space: Mapping[str, List[int]] = {}
    programs: Optional[Mapping[str, List[Any]]] = None


class Host:
    def __init__(self, root: str = "/") -> None:
        self._open: Dict[str, int] = {}
        self.root = root if root.endswith("/") else root + "/"
        self.live = self.root == "/"
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = max(allowed // 4, 64) if allowed > 0 else 4096
        self._users: Dict[int, str] = {}
        self._lookups: Dict[Union[int, str], _Lookup] = {}
        self._facts = _Facts() if self.live else self._read_facts()
        self.page_size = self._facts.page_size or os.sysconf("SC_PAGE_SIZE")
        self.uid = os.geteuid()

    def read(self, path: str) -> bytes:
        """Read a whole file, which stays open and is read again from its start the next time."""
        fd = self._open.get(path)
        if fd is None:
            if len(self._open) >= self._most_open:
                self.close()  # those still needed are opened again
            fd = self._open[path] = os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_all(fd)
        except OSError as error:
            self.forget(path)
            error.filename = self.root + path
            raise

    def descriptor(self, path: str) -> Optional[int]:
        """Return that of a file which `read` has left open."""
        return self._open.get(path)

    def read_once(self, path: str) -> bytes:
        """Read a whole file and close it, for files that are read rarely or are very many."""
        fd = os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_all(fd)
        except OSError as error:
            error.filename = self.root + path
            raise
        finally:
            os.close(fd)

    def open(self, path: str) -> int:
        """Return a file descriptor that the caller closes."""
        return os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC)

    def open_log(self, path: str, at_end: bool = False) -> int:
        """Open the kernel's log for `read_new`; the caller closes it.

        In a container its name can be a terminal or a pipe, from which nothing must be consumed.
        """
        fd = os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) and found.st_rdev != _KMSG_DEVICE:
                raise FileNotFoundError(errno.ENOENT, "not the kernel's log", self.root + path)
            if at_end:
                os.lseek(fd, 0, os.SEEK_END)
        except OSError:
            os.close(fd)
            raise
        return fd

    def forget(self, path: str) -> None:
        fd = self._open.pop(path, None)
        if fd is not None:
            os.close(fd)

    def forget_below(self, folder: str) -> None:
        """Close files below a folder that was removed, such as a cgroup."""
        for path in [p for p in self._open if p.startswith(folder + "/")]:
            self.forget(path)

    def close(self) -> None:
        for path in list(self._open):
            self.forget(path)

    __del__ = close

    def list(self, path: str) -> List[str]:
        return os.listdir(self.root + path)

    def list_if_there(self, path: str) -> List[str]:
        """Empty if it cannot be read: most machines have few of the devices whose folders are read."""
        try:
            return self.list(path)
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(self.root + path)

    def stat(self, path: str) -> os.stat_result:
        """Return the status of the entry itself: links are not followed."""
        return os.lstat(self.root + path)

    def lacks(self, *capabilities: str) -> List[str]:
        """Return which of these capabilities(7) the agent does not have; unknown for a recording."""
        if not self.live:
            return []
        _, _, rest = self.read_once("proc/self/status").partition(b"\nCapEff:")
        effective = int(rest.split(None, 1)[0], 16) if rest else 0
        return [name for name in capabilities if not effective >> _CAPABILITIES[name] & 1]

    def program(self, pid: int) -> Optional[Program]:
        """None only in a recording without the programs of its processes.

        Raises PermissionError if /proc/PID/exe is not accessible (ptrace(2), access mode checking).
        """
        if self.live:
            path = f"/proc/{pid}/exe"
            found = os.stat(path)
            return Program(os.readlink(path), found.st_uid, found.st_mode)
        programs = self._facts.programs
        if programs is None:
            return None
        if str(pid) not in programs:
            raise PermissionError(errno.EACCES, "not recorded", f"proc/{pid}/exe")
        return Program(*programs[str(pid)])

    def sockets(self, pid: int) -> List[str]:
        """Return the paths of the Unix sockets that a process has open; none in a recording."""
        if not self.live:
            return []
        folder = f"/proc/{pid}/fd"
        links = [_link(f"{folder}/{name}") for name in os.listdir(folder)]
        inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
        with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="replace") as file:  # proc(5)
            lines = [line.rstrip("\n").split(None, 7) for line in file]
        return [fields[7] for fields in lines if len(fields) == 8 and fields[6] in inodes]

    def variable(self, pid: int, name: str) -> str:
        """Return a variable of a process's initial environment, "" if inaccessible. It is never recorded."""
        if not self.live:
            return ""
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                data = file.read(_LARGEST_ENVIRONMENT)
        except OSError:
            return ""
        _, found, rest = (b"\0" + data).partition(b"\0" + os.fsencode(name) + b"=")
        return rest.partition(b"\0")[0].decode("utf-8", "replace") if found else ""

    def now_ns(self) -> int:
        return time.time_ns() if self.live else self._facts.time_ns

    def since_boot_ns(self) -> int:
        """Time since boot as in the kernel's log: without suspend."""
        if self.live:
            return time.monotonic_ns()
        return max(self.now_ns() - self.boot_time() * 1_000_000_000, 0)

    def counts_pids_as_kernel(self) -> bool:
        """Whether pids are those of the kernel's log, not of another namespace."""
        if not self.live:
            return True
        try:
            return os.stat("/proc/self/ns/pid").st_ino == _FIRST_PID_NAMESPACE
        except OSError:
            return False

    def sees_all_processes(self) -> bool:
        """Whether no process and none of its open files is hidden from us."""
        return not self.live or (self.uid == 0 and self.counts_pids_as_kernel())

    def space(self, path: str) -> Optional[Space]:
        if not self.live:
            recorded = self._facts.space.get(path)
            return Space(*recorded) if recorded else None
        found = os.statvfs(path)
        return Space(
            found.f_frsize, found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree
        )

    def name(self) -> str:
        try:
            return self.read("proc/sys/kernel/hostname").decode("utf-8", "replace").strip()
        except OSError:
            return "localhost"

    def boot_id(self) -> str:
        try:
            return self.read("proc/sys/kernel/random/boot_id").decode("ascii", "replace").strip()
        except OSError:
            return ""

    def boot_time(self) -> int:
        """Return seconds since 1970, 0 if unknown."""
        try:
            _, _, rest = self.read("proc/stat").partition(b"\nbtime ")
        except OSError:
            return 0
        digits = rest.partition(b"\n")[0]
        return int(digits) if digits.isdigit() and len(digits) <= 20 else 0

    def user(self, uid: int) -> str:
        """Return the user's name, or the uid if it has none or the directory server has not answered yet."""
        name = self._users.get(uid)
        if name is not None:
            return name
        # A local user needs neither a thread nor the libraries of the name service switch.
        found = next((user for user, number in self._local_users() if number == str(uid)), "")
        if not found and self.live:
            found = self._lookup(uid, lambda pwd: pwd.getpwuid(uid).pw_name)
        if found or not self.live:
            self._users[uid] = found or str(uid)
        return found or str(uid)

    def uid_of(self, name: str) -> int:
        """Return -1 if there is no such user, or the directory server has not answered yet."""
        for user, uid in self._local_users():
            if user == name and uid.isdigit():
                return int(uid)
        found = self._lookup(name, lambda pwd: str(pwd.getpwnam(name).pw_uid)) if self.live else ""
        return int(found) if found else -1

    def _lookup(self, user: Union[int, str], ask: Callable[[Any], str]) -> str:
        lookup = self._lookups.get(user)
        if lookup is None or lookup.is_expired():
            lookup = self._lookups[user] = _Lookup(ask)
        return lookup.answer

    def _local_users(self) -> List[Tuple[str, str]]:
        """Return names and uids from /etc/passwd."""
        try:
            lines = self.read_once("etc/passwd").decode("utf-8", "replace").splitlines()
        except OSError:
            return []
        return [(fields[0], fields[2]) for line in lines for fields in [line.split(":")] if len(fields) > 2]

    def _read_facts(self) -> _Facts:
        try:
            facts = parse_json(self.read_once(_FACTS))
        except FileNotFoundError:
            return _Facts()
        except (ValueError, RecursionError):
            facts = None
        if not _are_facts(facts):
            raise MalformedError(self.root + _FACTS, "not written by joblens record")
        return _Facts(**{name: facts[name] for name in _Facts._fields if name in facts})


def _are_facts(facts: Any) -> bool:
    if not isinstance(facts, dict) or not isinstance(facts.get("space", {}), dict):
        return False
    numbers = [facts.get("time_ns", 0), facts.get("page_size", 0)]
    for sizes in facts.get("space", {}).values():
        if not isinstance(sizes, list) or len(sizes) != len(Space._fields):
            return False
        numbers += sizes
    return all(type(number) is int and 0 <= number < 1 << 64 for number in numbers)


class _Lookup:
    """A name service lookup in a thread, as it may block for any time."""

    def __init__(self, ask: Callable[[Any], str]) -> None:
        import threading

        self.answer = ""
        self._begun = time.monotonic()
        thread = threading.Thread(target=self._run, args=(ask,), daemon=True)
        try:
            thread.start()
            thread.join(_LOOKUP_SECONDS)
        except RuntimeError:  # no further thread can be started
            return

    def _run(self, ask: Callable[[Any], str]) -> None:
        import pwd

        try:
            self.answer = ask(pwd)
        except (KeyError, OSError, OverflowError, ValueError):  # no such user, or no server
            return

    def is_expired(self) -> bool:
        """Whether it has had no answer for so long that another attempt may succeed."""
        return not self.answer and time.monotonic() - self._begun > _LOOKUP_RETRY_SECONDS


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""


def read_all(fd: int) -> bytes:
    # A seq_file returns about a page per read however large the buffer is, so only an empty read is the end.
    data = os.pread(fd, _CHUNK, 0)
    if not data:
        return data
    more = os.pread(fd, _CHUNK, len(data))
    if not more:
        return data
    parts, size = [data], len(data)
    while more and size < _MOST:
        parts.append(more)
        size += len(more)
        more = os.pread(fd, _CHUNK, size)
    return b"".join(parts)


def read_new(fd: int) -> bytes:
    """Return the records of the kernel's log since the last call, without those overwritten meanwhile."""
    parts: List[bytes] = []
    for _ in range(_MOST_RECORDS):
        try:
            data = os.read(fd, 8192)  # a whole record always fits
        except BlockingIOError:
            break
        except BrokenPipeError:  # overrun: the next read continues with the oldest record left
            continue
        if not data:
            break
        parts.append(data)
    return b"".join(parts)
