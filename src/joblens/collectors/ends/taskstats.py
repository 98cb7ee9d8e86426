"""Taskstats: the kernel's accounting of each thread at its end (Documentation/accounting/taskstats.rst).

The kernel sends it as the thread exits, before its memory is freed: CPU time of that is not included.
"""

from __future__ import annotations

import errno
import struct
import sys
import time
from typing import Callable, List, NamedTuple, Tuple

from joblens.collectors.ends.netlink import HEADER, Netlink, pack_attribute, parse_attributes
from joblens.core.errors import MalformedError
from joblens.core.host import Host

_WHAT = "taskstats"
_GENERIC = 16  # NETLINK_GENERIC, and the type of the controller's messages
_GENERIC_HEADER = struct.Struct("=BBH")
_BODY = HEADER.size + _GENERIC_HEADER.size
_REQUEST, _ACK = 1, 4
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2
_COMMAND_GET, _ATTRIBUTE_PID, _REGISTER = 1, 1, 3
_STATS, _OF_THREAD, _OF_GROUP = 3, 4, 5
_POSSIBLE = "sys/devices/system/cpu/possible"

# include/uapi/linux/taskstats.h, up to `nivcsw`; fields that are not used are skipped.
_STRUCT = struct.Struct("=H2xIBx6xQQ40xQ32s8xI4xII4x4xQQQQQ16xQ8xQQ16xQQQQQ")
_GROUP, _SHORT = struct.Struct("=I"), struct.Struct("=H")
_GROUP_OFFSET = 368  # ac_tgid
_OLDEST, _WITH_GROUP = 3, 12  # versions
_COARSE = 6  # CLOCK_MONOTONIC_COARSE, which the clock tick advances
_TICK = int(time.clock_getres(_COARSE) * 1e6) if sys.platform == "linux" else 10_000  # µs
_LAST_OF_GROUP = 0x20  # AGROUP of include/uapi/linux/acct.h


class TaskEnd(NamedTuple):
    """Times are in µs, those with `_ns` in ns. Children are not included."""

    version: int
    status: int  # as of waitpid(2), if it is the first thread
    flags: int
    slices: int
    run_delay_ns: int
    cpu_ns: int
    name: bytes
    uid: int
    thread: int
    parent: int
    elapsed: int
    user: int  # by clock ticks, as `system`
    system: int
    minor_faults: int
    major_faults: int
    peak_kib: int
    read_chars: int  # in whole KiB, as `written_chars`; the numbers of calls are rounded to 1024
    written_chars: int
    read_bytes: int
    written_bytes: int
    cancelled_bytes: int
    voluntary_switches: int
    involuntary_switches: int


class Ended(NamedTuple):
    task: TaskEnd
    process: int  # 0 if this kernel does not report it
    is_last: bool  # of its process; always False if neither this kernel nor the message says so


def parse_ended(data: bytes) -> List[Ended]:
    """Raises MalformedError for anything but messages of taskstats."""
    found: List[Ended] = []
    at = 0
    while at + HEADER.size <= len(data):
        size = HEADER.unpack_from(data, at)[0]
        if size < _BODY or at + size > len(data):
            raise MalformedError(_WHAT, f"a message of {size} bytes in {len(data) - at}")
        found += _parse_message(data, at + _BODY, at + size)
        at += size + (-size % 4)
    return found


def _parse_message(data: bytes, at: int, end: int) -> List[Ended]:
    """A message has a thread and, if others of its process have ended before, the sum of all of them."""
    places: List[int] = []
    has_group = False
    for kind, first, last in parse_attributes(data, at, end):
        if kind == _OF_THREAD:
            places += [begin for inner, begin, _ in parse_attributes(data, first, last) if inner == _STATS]
        has_group = has_group or kind == _OF_GROUP
    return [_parse_stats(data, begin, end, has_group) for begin in places]


def _parse_stats(data: bytes, begin: int, end: int, has_group: bool) -> Ended:
    if begin + _STRUCT.size > end:
        raise MalformedError(_WHAT, f"accounting of {end - begin} bytes")
    task = TaskEnd(*_STRUCT.unpack_from(data, begin))
    if task.version < _OLDEST:
        raise MalformedError(_WHAT, f"version {task.version} is older than {_OLDEST}")
    process = 0
    if task.version >= _WITH_GROUP and begin + _GROUP_OFFSET + _GROUP.size <= end:
        (process,) = _GROUP.unpack_from(data, begin + _GROUP_OFFSET)
    return Ended(task, process, has_group or bool(task.flags & _LAST_OF_GROUP))


def cpu_times(task: TaskEnd) -> Tuple[int, int]:
    """Return CPU time in user mode and in the kernel in µs, split as the kernel does for getrusage(2).

    The kernel does not bring its counter up to date here: what a thread has run since its last clock tick or
    context switch is missing. It is known for a thread that has never waited: all time in which it was ready
    and had a core. More than a clock tick of that was not its own, but another virtual machine's.
    """
    total = task.cpu_ns // 1000
    if not task.voluntary_switches:
        total = max(total, min(task.elapsed - task.run_delay_ns // 1000, total + _TICK))
    if not task.system:
        return total, 0
    system = total * task.system // (task.user + task.system)
    return total - system, system


class Taskstats:
    """Receives the ends of all threads of the machine. Raises as `Netlink` does."""

    def __init__(self, host: Host) -> None:
        self._netlink = Netlink(_GENERIC, 0, _WHAT)
        self.received = self.malformed = 0
        try:
            family = self._find_family()
            cpus = host.read_once(_POSSIBLE).strip() + b"\0"
            self._request(family, _COMMAND_GET, pack_attribute(_REGISTER, cpus), _REQUEST | _ACK)
            self._netlink.reply()
        except Exception:
            self._netlink.close()
            raise

    def close(self) -> None:
        self._netlink.close()

    @property
    def overruns(self) -> int:
        return self._netlink.overruns

    def receive(self, take: Callable[[bytes], None], most: int) -> None:
        self.received += self._netlink.receive(take, most)

    def _request(self, kind: int, command: int, body: bytes, flags: int) -> None:
        self._netlink.send(kind, flags, _GENERIC_HEADER.pack(command, 1, 0) + body)

    def _find_family(self) -> int:
        self._request(_GENERIC, _GET_FAMILY, pack_attribute(_FAMILY_NAME, b"TASKSTATS\0"), _REQUEST)
        data = self._netlink.reply()
        for kind, first, _ in parse_attributes(data, _BODY, len(data)):
            if kind == _FAMILY_ID:
                return int(_SHORT.unpack_from(data, first)[0])
        raise FileNotFoundError(errno.ENOENT, f"{_WHAT} is not in this kernel")
