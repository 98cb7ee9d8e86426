"""Resource usage that the kernel accounts to the supervisor for the children that it has waited for."""

from __future__ import annotations

import os
import resource

from joblens.collectors.cgroup_limits import Limiting, Limits
from joblens.core.host import Host
from joblens.core.named_tuple import NamedTuple
from joblens.core.procfs import parse_io

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, Optional


class Totals(NamedTuple):
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    largest_rss_bytes: Optional[int] = None  # of the largest process, including pages of files
    minor_faults: int = 0
    major_faults: int = 0
    voluntary_switches: int = 0
    involuntary_switches: int = 0
    reaped: int = 0  # direct children: the command and adopted orphans
    io: Optional[Dict[str, int]] = None

    def plus(self, usage: resource.struct_rusage) -> Totals:
        # ru_maxrss includes the size of this process at fork: only a larger value is the child's.
        rss = usage.ru_maxrss * 1024
        own = read_own_peak()
        return Totals(
            self.user_seconds + usage.ru_utime,
            self.system_seconds + usage.ru_stime,
            max(self.largest_rss_bytes or 0, rss if rss > own else 0) or None,
            self.minor_faults + usage.ru_minflt,
            self.major_faults + usage.ru_majflt,
            self.voluntary_switches + usage.ru_nvcsw,
            self.involuntary_switches + usage.ru_nivcsw,
            self.reaped + 1,
        )


class Inherited(NamedTuple):
    """/proc/PID/stat and io of the supervisor, with the usage of all children that it has waited for."""

    stat: bytes
    io: bytes  # empty if the kernel has no I/O accounting


class Before(NamedTuple):
    """Counters before the command starts: only the increase is the job's."""

    inherited: Inherited
    limiting: Limiting  # the enclosing cgroups
    limits: Dict[str, int]  # their events
    pids: FrozenSet[str]  # that are not the command's


def read_before(limiting: Limiting) -> Before:
    host = Host()
    return Before(read_inherited(), limiting, Limits(host, limiting).first, _find_others(host))


def _find_others(host: Host) -> FrozenSet[str]:
    """Return all pids, or none if this process has children from before it became joblens (exec)."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset(host.list("proc"))
    return frozenset()


def read_inherited() -> Inherited:
    return Inherited(_read_own("stat"), _read_own("io"))


def _read_own(name: str) -> bytes:
    try:
        with open(f"/proc/self/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def read_own_peak() -> int:
    """Return the peak RSS of this program. The value of getrusage(2) includes the parent's before exec."""
    try:
        with open("/proc/self/status", "rb") as file:
            peak = file.read().partition(b"\nVmHWM:")[2].partition(b" kB\n")[0].strip()
    except OSError:
        peak = b""
    return int(peak if peak.isdigit() else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def read_io() -> Optional[Dict[str, int]]:
    """Return the I/O of this process and of all children waited for, None without I/O accounting."""
    return parse_own_io(_read_own("io"))


def parse_own_io(data: bytes) -> Optional[Dict[str, int]]:
    if not data:
        return None
    read_chars, written_chars, _, _, read, written, _ = parse_io("proc/self/io", data)
    return {"read_chars": read_chars, "written_chars": written_chars, "read": read, "written": written}


def difference(
    after: Optional[Dict[str, int]], before: Optional[Dict[str, int]], others: Dict[str, int]
) -> Optional[Dict[str, int]]:
    if after is None or before is None:
        return None
    return {name: max(after[name] - before[name] - others.get(name, 0), 0) for name in after}
