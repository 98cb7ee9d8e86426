"""Which processes are Slurm's slurmstepd, if Slurm runs without cgroups: its descendants belong to its job.

Any process can be named `slurmstepd` and set the title `slurmstepd: [42.batch]`, even one of root: a setuid
program has the name of the link by which it was started. So the executable decides: its name, that only root
can write it, and that it is not setuid.
"""

from __future__ import annotations

import re
import stat
from typing import Dict, Iterable, NamedTuple, Optional, Tuple

from joblens.collectors.process.collector import ProcessKey, may_be_stepd
from joblens.core.host import Host, Program

# A title that is just being written can be read half new and half old: ids have 32 bits, or are SLUIDs.
_TITLE = re.compile(
    r"slurmstepd: \[(?P<job>[1-9]\d{0,9}(?:[+_]\d{1,10})?|s[0-9A-Z]{13})\.(?P<step>\w+)\](?:\s|$)"
)
_PROGRAM = re.compile(r"(?:.*/)?slurmstepd[\w.-]*(?: \(deleted\))?")  # Debian's is slurmstepd-wlm
_GETS_RIGHTS = stat.S_ISUID | stat.S_ISGID
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

TRUSTED, UNKNOWN, FORGED = "trusted", "unknown", "forged"
_Identity = Tuple[int, int, str]  # after an exec, pid and start are the same, but the command differs


SLURMD = "slurmd"  # starts slurmstepd
# Its socket for Slurm's commands, SPOOL/NODE_JOB.STEP, followed by .COMPONENT for a heterogeneous job.
_SOCKET = re.compile(r".*/(?P<node>[^/]+)_[0-9A-Za-z]+\.\d+(?:\.\d+)?")
_NODE_VARIABLE = "SLURMD_NODENAME"
_MOST_SCANS = 10  # without a socket, which it opens shortly after its start


class Step(NamedTuple):
    job: str
    id: str


def parse_title(command: str) -> Optional[Step]:
    match = _TITLE.match(command)
    return Step(match["job"], match["step"]) if match else None


def _identity(key: ProcessKey) -> _Identity:
    return key.pid, key.start, key.command


class Stepds:
    """Each process is verified once; the result holds until it ends or executes another program."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.problem = ""  # the first, for the log: users can cause any number
        self._known: Dict[_Identity, str] = {}
        self._nodes: Dict[_Identity, str] = {}
        self._scans: Dict[_Identity, int] = {}  # in which its node was not found

    def trust(self, key: ProcessKey) -> str:
        """Return UNKNOWN if the agent may not read which file root's processes execute."""
        if not may_be_stepd(key):
            return FORGED
        identity = _identity(key)
        known = self._known.get(identity)
        if known is None:
            try:
                known = self._check(key.pid)
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                return UNKNOWN
            self._known[identity] = known
        return known

    def keep(self, keys: Iterable[ProcessKey]) -> None:
        """Forget all others, which have ended."""
        living = set(map(_identity, keys))
        for identity in self._known.keys() - living:
            for known in (self._known, self._nodes, self._scans):
                known.pop(identity, None)

    def node(self, key: ProcessKey, tasks: Iterable[ProcessKey] = ()) -> Optional[str]:
        """Return Slurm's name of the node that it belongs to, if several slurmd run on this machine.

        "" if it cannot be determined, None if it may be at the next scan. From its socket if accessible, else
        from the environment of one of its `tasks`, but only of the agent's own user.
        """
        identity = _identity(key)
        found = self._nodes.get(identity)
        if found is None:
            found = self._node_of_socket(key.pid) or self._node_of_tasks(tasks)
            if found:
                self._nodes[identity] = found
        if found:
            return found
        scans = self._scans[identity] = self._scans.get(identity, 0) + 1
        return None if scans <= _MOST_SCANS else ""

    def _node_of_socket(self, pid: int) -> str:
        try:
            matches = [_SOCKET.fullmatch(path) for path in self.host.sockets(pid)]
        except OSError:
            return ""
        return next((match["node"] for match in matches if match), "")

    def _node_of_tasks(self, tasks: Iterable[ProcessKey]) -> str:
        own = (task.pid for task in tasks if task.uid == self.host.uid)
        return next(filter(None, (self.host.variable(pid, _NODE_VARIABLE) for pid in own)), "")

    def _check(self, pid: int) -> str:
        try:
            program = self.host.program(pid)
        except PermissionError:
            if self.host.lacks("CAP_SYS_PTRACE") and self.host.uid == 0:
                self._report("cannot be verified without CAP_SYS_PTRACE")
            return UNKNOWN
        if program is None:  # a recording that has no programs
            return TRUSTED
        why = why_forged(program)
        if not why and not _is_root(self.host.read_once(f"proc/{pid}/status")):
            why = "its real or saved user is not root"
        if why:
            self._report(f"process {pid} has this name but is not Slurm's: {why}")
        return FORGED if why else TRUSTED

    def _report(self, problem: str) -> None:
        self.problem = self.problem or problem


def why_forged(program: Program) -> str:
    """Return "" for a program that can only be Slurm's."""
    shown = ascii(program.path)[:200]
    if not _PROGRAM.fullmatch(program.path):
        return f"it executes {shown}"
    if program.uid != 0:
        return f"{shown} belongs to user {program.uid}, not to root"
    if program.mode & _OTHERS_WRITE:
        return f"{shown} is writable by users other than root"
    return f"{shown} is setuid or setgid" if program.mode & _GETS_RIGHTS else ""


def _is_root(status: bytes) -> bool:
    """By the real and saved uid (proc(5)): the effective uid of slurmstepd is the job's at times."""
    uids = status.partition(b"\nUid:")[2].partition(b"\n")[0].split()
    return len(uids) < 4 or (uids[0], uids[2]) == (b"0", b"0")
