"""Which processes are followed: all, those that come from one of them, or those of one's own user.

Most of a node's processes are nobody's here, and are looked at as seldom as may be.
"""

from __future__ import annotations

import os
from typing import Dict, List, Mapping, NamedTuple, Optional, Set

from joblens.core.host import Host
from joblens.core.procfs import parse_stat

_SELDOM = 64  # scans, after which strangers are looked at again
_MOST_NUMBERS = 32  # that are looked at one by one: about what listing a quiet node costs
STEPD = "slurmstepd"  # the parent of the processes of a Slurm step
_STEPD_NAME = f"Name:\t{STEPD}".encode()


class Everyone:
    def __init__(self, host: Host) -> None:
        self.host = host

    def choose(self, known: Mapping[str, object]) -> List[str]:
        """At each scan, as names in /proc; `known` are those that the last scan has followed."""
        return [pid for pid in self.host.list("proc") if pid.isdigit()]

    def has_ended(self) -> None:
        """One of those that are followed."""


class Descendants(Everyone):
    """Those that come from `below`, without that itself and without the reader, and from `first`, its first
    child, which may have lost its parent before the first scan.

    Only pids that are new are looked at: a stranger stays one, and who was followed once stays so when its
    parents end.
    """

    def __init__(self, host: Host, below: int, first: int = 0) -> None:
        super().__init__(host)
        self.below = below
        self._first = {str(first)} if first else set()
        self._strangers: Set[str] = set()
        self._scans = 0

    def choose(self, known: Mapping[str, object]) -> List[str]:
        self._scans += 1
        pids = super().choose(known)
        self._strangers = self._strangers.intersection(pids) if self._scans % _SELDOM else set()
        parents = {pid: self._parent(pid) for pid in pids if pid not in known and pid not in self._strangers}
        roots = {str(self.below), *known, *self._first}
        self._first = set()  # its number may be another's later
        family = _with_all_below(roots, parents) - {str(self.below), str(os.getpid())}
        self._strangers.update(pid for pid in parents if pid not in family)
        return [pid for pid in pids if pid in family]

    def _parent(self, pid: str) -> str:
        try:
            path = f"proc/{pid}"
            return parse_stat(path, self.host.read_once(path + "/stat")).fields[1].decode("ascii", "replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return ""


def _with_all_below(some: Set[str], parents: Mapping[str, str]) -> Set[str]:
    """These, and who comes from them, of those whose parents are told."""
    family, more = set(some), some
    while more:
        more = {pid for pid, parent in parents.items() if parent in more and pid not in family}
        family |= more
    return family


class _Look(NamedTuple):
    """What one has to know of a process to decide whether to follow it."""

    name: bytes  # the whole line
    uid: int
    parent: str


class OwnUser(Everyone):
    """Those whose real user is ours, and any slurmstepd that they come from: by that their step is known.

    A stranger is looked at again at the next scan, for a scheduler starts processes as root, and then
    seldom. On a node with many cores are thousands of kernel threads: so while the kernel has given few
    numbers since the last scan, or none, only these are looked at, and /proc is not listed. A number
    behind which there is nobody is asked for again as well: its process may just have been in the making.
    Who comes from `without` is a stranger, and so is that itself.
    """

    def __init__(self, host: Host, without: int = 0) -> None:
        super().__init__(host)
        self._root = {str(without)} if without else set()
        self._without = set(self._root)  # and those that come from it
        self._strangers: Set[str] = set()
        self._foreign: Set[str] = set()  # since the last scan, so that it may still change its user
        self._last_pid = b""
        # Else /proc is of another namespace, and the numbers that are given here are not those in it.
        self._same_numbers = host.live and str(os.getpid()) in host.list("proc/self/task")
        self._not_pids: Set[str] = set()  # what else is in /proc
        self._scans = 0

    def choose(self, known: Mapping[str, object]) -> List[str]:
        self._scans += 1
        given = self._given_numbers()
        if given is None or self._scans % _SELDOM == 0:
            listed = set(self.host.list("proc"))
            # In the order of last time: else it would be told anew of all who they are.
            here = [pid for pid in known if pid in listed]
            self._without &= listed
            new = self._unknown(listed) - known.keys()
        else:
            here = list(known)
            new = (given | self._foreign) - known.keys()
        looks = [(pid, self._look(pid)) for pid in new if self._may_be_ours(pid)]
        followed = {pid: look.parent for pid, look in looks if look.uid == self.host.uid}
        if self._root:
            self._leave_out(followed)
        foreign = new - followed.keys()
        for pid in list(followed):
            self._add_steps(followed[pid], known, followed)
        self._strangers = (self._strangers | foreign & self._foreign) - followed.keys()
        self._foreign = foreign - self._strangers
        return [*here, *followed]

    def _leave_out(self, followed: Dict[str, str]) -> None:
        """By who they are now: a number that one of ours had can be somebody else's by now."""
        self._without = _with_all_below(self._without - followed.keys() | self._root, followed)
        for pid in self._without & followed.keys():
            del followed[pid]

    def has_ended(self) -> None:
        self._last_pid = b""  # so that who may have its number by now is looked for

    def _given_numbers(self) -> Optional[Set[str]]:
        """Those that processes and threads have got since the last scan; None if that is not known, or many.

        The kernel gives one after the other, and begins anew at the end.
        """
        before, self._last_pid = self._last_pid, self._read_last_pid()
        if not before.isdigit() or not self._last_pid.isdigit():
            return None
        first, last = int(before) + 1, int(self._last_pid)
        return set(map(str, range(first, last + 1))) if 0 <= last + 1 - first <= _MOST_NUMBERS else None

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

    def _unknown(self, listed: Set[str]) -> Set[str]:
        if not self._not_pids:
            self._not_pids = {name for name in listed if not name.isdigit()}
        self._strangers &= listed
        new = listed - self._not_pids
        return new - self._strangers if self._scans % _SELDOM else new

    def _may_be_ours(self, pid: str) -> bool:
        """The first look is a cheap one, for most are gone at the next: /proc/PID is its user's, or root's if
        its program has rights of its own. Of a recording nobody knows whose it was."""
        if not self.host.live or pid in self._foreign:
            return True
        try:
            return self.host.stat(f"proc/{pid}").st_uid == self.host.uid
        except OSError:
            return False

    def _add_steps(self, pid: str, known: Mapping[str, object], followed: Dict[str, str]) -> None:
        while pid and pid not in known and pid not in followed:
            look = self._look(pid)
            if look.name != _STEPD_NAME:
                return
            followed[pid] = look.parent
            pid = look.parent

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
