"""Which processes are sampled: all, descendants of one, or those of the agent's own user.

Most processes of a node are ignored, and are read as rarely as possible.
"""

from __future__ import annotations

import os

from joblens.core.host import Host
from joblens.core.named_tuple import NamedTuple
from joblens.core.procfs import parse_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, List, Mapping, Optional, Set

REPORTING = b"jl-report"  # a child of `joblens run` that is not the job's has this name when it is forked
_SELDOM = 64  # scans after which ignored processes are read again
_LIST_AGAIN = 16  # scans after which /proc is listed, even if few pids were assigned
_MOST_UNSEEN = 8  # processes that are in creation at the same time
_MOST_NEW = 32  # new pids that are read one by one: costs about as much as listing /proc on a quiet node
STEPD = "slurmstepd"  # the parent of the processes of a Slurm step
_STEPD_NAME = f"Name:\t{STEPD}".encode()


class AllProcesses:
    """All of them, kernel threads included.

    While the kernel has assigned few pids since the last scan, only these are read, and /proc is not listed,
    which takes a third of a scan of sleeping processes. A pid without a process is read again at the next
    scan, as the process may have been in creation. A pid that a program chose (set_tid of clone3(2)) is found
    at the next listing.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._scans = 0
        self._pids: List[str] = []
        self._unseen: Set[str] = set()  # pids assigned lately that had no process
        self._last_pid = b""
        # Otherwise /proc is of another pid namespace, whose pids differ from those assigned here.
        self._same_pids = host.live and str(os.getpid()) in host.list("proc/self/task")

    def choose(self, known: Mapping[str, object]) -> List[str]:
        """Return the pids to sample in this scan; `known` are those of the last one."""
        self._scans += 1
        assigned = self._new_pids()
        if assigned is None or self._scans % _LIST_AGAIN == 0:
            self._pids = [pid for pid in self.host.list("proc") if pid.isdigit()]
            self._unseen = self._latest_pids().difference(self._pids)
        elif assigned or self._unseen:
            new = (assigned | self._unseen).difference(self._pids)
            found = [pid for pid in sorted(new, key=int) if self._identify(pid).name]
            self._pids = [*self._pids, *found]
            self._unseen = assigned.difference(found)
        return self._pids

    def has_ended(self) -> None:
        """Called when a sampled process has ended."""
        self._last_pid = b""  # list /proc: its pid may be reused already

    def _new_pids(self) -> Optional[Set[str]]:
        """Return the pids assigned to processes and threads since the last scan; None if unknown or many.

        The kernel assigns them in ascending order and wraps around.
        """
        before, self._last_pid = self._last_pid, self._read_last_pid()
        if not before.isdigit() or not self._last_pid.isdigit():
            return None
        first, last = int(before) + 1, int(self._last_pid)
        return set(map(str, range(first, last + 1))) if 0 <= last + 1 - first <= _MOST_NEW else None

    def _read_last_pid(self) -> bytes:
        """Return the pid assigned last, to a process or a thread: the last word of /proc/loadavg (proc(5)).

        Empty if unknown.
        """
        if not self._same_pids:  # or it is a recording, which does not change
            return b""
        try:
            return self.host.read("proc/loadavg").rpartition(b" ")[2].strip()
        except OSError:
            return b""

    def _latest_pids(self) -> Set[str]:
        last = int(self._last_pid) if self._last_pid.isdigit() else 0
        return set(map(str, range(max(last + 1 - _MOST_UNSEEN, 1), last + 1)))

    def _identify(self, pid: str) -> _Identity:
        try:
            status = self.host.read_once(f"proc/{pid}/status")
        except (FileNotFoundError, NotADirectoryError, ProcessLookupError, PermissionError):
            return _Identity(b"", -1, "")
        name = status.partition(b"\n")[0]
        group, parent, uid = (
            status.partition(what)[2].partition(b"\n")[0].split()
            for what in (b"\nTgid:", b"\nPPid:", b"\nUid:")
        )
        if group and group[0].decode("ascii", "replace") != pid:
            return _Identity(b"", -1, "")  # a thread: /proc has them too, unlisted
        known = int(uid[0]) if uid and uid[0].isdigit() else -1
        return _Identity(name, known, parent[0].decode("ascii", "replace") if parent else "")


class Descendants(AllProcesses):
    """Descendants of `below`, without itself and without this process, and those of `first`, its first child,
    which may have been reparented before the first scan.

    Only new pids are read: an ignored process stays ignored, and one that was chosen stays so when its
    parents end.
    """

    def __init__(self, host: Host, below: int, first: int = 0, ignored: FrozenSet[str] = frozenset()) -> None:
        """`ignored` are so from the first scan on."""
        super().__init__(host)
        self.below = below
        self._first = {str(first)} if first else set()
        self._ignored: Set[str] = set(ignored)

    def choose(self, known: Mapping[str, object]) -> List[str]:
        self._scans += 1
        listed = set(self.host.list("proc"))
        self._ignored = self._ignored & listed if self._scans % _SELDOM else set()
        new = listed - self._ignored - known.keys()
        parents = {pid: self._parent(pid) for pid in new if pid.isdigit()}
        roots = {str(self.below), *known, *self._first}
        self._first = set()  # its pid may be reused later
        family = _with_descendants(roots, parents) - {str(self.below), str(os.getpid())}
        self._ignored |= new - family
        return [*(pid for pid in known if pid in listed), *sorted(new & family, key=int)]

    def _parent(self, pid: str) -> str:
        try:
            path = f"proc/{pid}"
            stat = parse_stat(path, self.host.read_once(path + "/stat"))
            return "" if stat.name == REPORTING else stat.fields[1].decode("ascii", "replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return ""


def _with_descendants(some: Set[str], parents: Mapping[str, str]) -> Set[str]:
    """Return these pids and their descendants, as far as `parents` has them."""
    family, more = set(some), some
    while more:
        more = {pid for pid, parent in parents.items() if parent in more and pid not in family}
        family |= more
    return family


class _Identity(NamedTuple):
    """The part of /proc/PID/status that decides whether a process is sampled."""

    name: bytes  # the whole line
    uid: int
    parent: str


class OwnUser(AllProcesses):
    """Processes whose real user is the agent's, and slurmstepd ancestors of them, which identify their step.

    A new process of another user is read again at the next scan, as a scheduler starts processes as root,
    and rarely after that; so is a pid without a process. `without` and its descendants are ignored.
    """

    def __init__(self, host: Host, without: int = 0) -> None:
        super().__init__(host)
        self._root = {str(without)} if without else set()
        self._without = set(self._root)  # and its descendants
        self._ignored: Set[str] = set()
        self._foreign: Set[str] = set()  # new in the last scan: their user may still change
        self._not_pids: Set[str] = set()  # other entries of /proc

    def choose(self, known: Mapping[str, object]) -> List[str]:
        self._scans += 1
        assigned = self._new_pids()
        if assigned is None or self._scans % _SELDOM == 0:
            listed = set(self.host.list("proc"))
            # In the previous order: otherwise all keys would be encoded again.
            here = [pid for pid in known if pid in listed]
            self._without &= listed
            new = self._unknown(listed) - known.keys()
        else:
            here = list(known)
            new = (assigned | self._foreign) - known.keys()
        found = [(pid, self._identify(pid)) for pid in new if self._may_be_ours(pid)]
        chosen = {pid: it.parent for pid, it in found if it.uid == self.host.uid}
        if self._root:
            self._leave_out(chosen)
        foreign = new - chosen.keys()
        for pid in list(chosen):
            self._add_steps(chosen[pid], known, chosen)
        self._ignored = (self._ignored | foreign & self._foreign) - chosen.keys()
        self._foreign = foreign - self._ignored
        return [*here, *chosen]

    def _leave_out(self, chosen: Dict[str, str]) -> None:
        """Based on current parents: the pid of an earlier descendant may have been reused."""
        self._without = _with_descendants(self._without - chosen.keys() | self._root, chosen)
        for pid in self._without & chosen.keys():
            del chosen[pid]

    def _unknown(self, listed: Set[str]) -> Set[str]:
        if not self._not_pids:
            self._not_pids = {name for name in listed if not name.isdigit()}
        self._ignored &= listed
        new = listed - self._not_pids
        return new - self._ignored if self._scans % _SELDOM else new

    def _may_be_ours(self, pid: str) -> bool:
        """A cheap first check, as most are gone at the next scan: /proc/PID belongs to the user, or to root
        if the program is not dumpable. Files of a recording have no owner."""
        if not self.host.live or pid in self._foreign:
            return True
        try:
            return self.host.stat(f"proc/{pid}").st_uid == self.host.uid
        except OSError:
            return False

    def _add_steps(self, pid: str, known: Mapping[str, object], chosen: Dict[str, str]) -> None:
        while pid and pid not in known and pid not in chosen:
            found = self._identify(pid)
            if found.name != _STEPD_NAME:
                return
            chosen[pid] = found.parent
            pid = found.parent
