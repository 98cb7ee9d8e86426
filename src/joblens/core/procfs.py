"""Parsers of the files below /proc/PID, whose format is in proc(5)."""

from __future__ import annotations

import os

from joblens.core.errors import MalformedError
from joblens.core.model import ABSENT
from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple, Union

_PF_EXITING, _PF_KTHREAD = 0x00000004, 0x00200000  # include/linux/sched.h
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
    """/proc/PID/stat: `fields` begins with the state, field 3 of proc(5)."""

    name: bytes
    fields: List[bytes]

    @property
    def has_ended(self) -> bool:
        """Whether it is a zombie or dead: it keeps its pid and executes nothing."""
        return self.fields[0] in (b"Z", b"X")

    @property
    def parent(self) -> int:
        return int(self.fields[1])

    @property
    def session(self) -> int:
        return int(self.fields[3])

    @property
    def kernel_thread(self) -> bool:
        return bool(int(self.fields[6]) & _PF_KTHREAD)

    @property
    def is_exiting(self) -> bool:
        """Whether it has begun to end: it is a zombie, or soon will be."""
        return bool(int(self.fields[6]) & _PF_EXITING)

    @property
    def start(self) -> int:
        """Clock ticks since boot. With the pid it identifies a process: pids are reused."""
        return int(self.fields[19])


def parse_stat(path: str, data: bytes, most: int = -1) -> Stat:
    """Split into the name, which may contain brackets and newlines and ends at the last bracket, and fields.

    `most` limits how many fields are split off. The first 22 suffice for all but addresses.
    """
    first, last = data.find(b"("), data.rfind(b")")
    fields = data[last + 1 :].split(None, most)
    if first < 0 or last < first or len(fields) < 22:
        raise MalformedError(path, f"not the format of /proc/PID/stat: {data[:80]!r}")
    return Stat(data[first + 1 : last], fields)


def is_running(data: bytes) -> bool:
    """Whether the state in /proc/PID/stat is R, without splitting the fields."""
    return data[data.rfind(b")") + 2 :][:1] == b"R"


def read_stat(pid: Union[int, str]) -> Stat:
    """Read /proc/PID/stat of this machine; `pid` may be "self"."""
    path = f"/proc/{pid}/stat"
    with open(path, "rb", buffering=0) as file:
        return parse_stat(path, file.read())


def find_stat(pid: Union[int, str]) -> Optional[Stat]:
    """As `read_stat`, None if there is no such process or its file cannot be read."""
    try:
        return read_stat(pid)
    except (OSError, MalformedError):
        return None


def find_start(pid: int) -> Optional[int]:
    """Return the start of a process in clock ticks since boot, None if there is no such process."""
    stat = find_stat(pid)
    return stat.start if stat else None


def read_pid_namespace() -> str:
    """Return the namespace in which pids are counted, for in a container they are others; "" if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def parse_status(data: bytes) -> Tuple[int, List[int]]:
    """Return the real uid, and memory and context switches, ABSENT where the kernel lacks the field.

    Each field is searched for from the previous one: the file is long and its order fixed.
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
    """Return the seven counters of /proc/PID/io in the order of the file."""
    values = data.split()[1::2]
    if len(values) != 7:
        raise MalformedError(path, f"not the format of /proc/PID/io: {data[:80]!r}")
    try:
        return list(map(int, values))
    except ValueError as error:
        raise MalformedError(path, str(error)) from None


def parse_cgroup(data: bytes) -> str:
    """Return the most specific path: schedulers make cgroups in v1, in v2, or in both (cgroups(7)).

    Without a scheduler's cgroup the process is in one of systemd's, `/system.slice/slurmd.service` or a
    user's session. Below `user@UID.service` users create cgroups at any depth, and with v1 they can move a
    process there while it stays in the scheduler's. So any path outside systemd's slices takes precedence.
    """
    paths = [line.partition(b":")[2].partition(b":")[2] for line in data.splitlines()]
    best = max(paths, key=_specificity, default=b"")
    return best.decode("utf-8", "replace")


def _specificity(path: bytes) -> Tuple[bool, int, int]:
    of_systemd = path.startswith((b"/system.slice", b"/user.slice", b"/init.scope")) or path == b"/"
    return not of_systemd, path.count(b"/"), len(path)
