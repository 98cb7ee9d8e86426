"""The files of /proc/PID as the kernel writes them (proc(5)), taken apart."""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from joblens.core.errors import MalformedError
from joblens.core.model import ABSENT

STEPD = "slurmstepd"  # Slurm's, from which the processes of a job's step come
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
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
    try:
        return list(map(int, values))
    except ValueError as error:
        raise MalformedError(path, str(error)) from None


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
