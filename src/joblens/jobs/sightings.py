"""Jobs of nodes without a batch system, assembled from sampled processes.

An id is a session's or a process group's number and is reused: in the same boot once pids have wrapped
around, after another boot at once. Runs differ in the start of their processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

_TICKS = 100  # of a process's start, per second
_ROUNDED = 2.0  # seconds by which the start of a process may seem to be later than its first sample
_SUCCESSION = 30.0  # seconds in which a job may replace all its processes between two scans
_MOST_OWN = 5000  # processes of `joblens` that are remembered one by one, of one job
_DAEMONS = frozenset(("agent", "hub", "serve", "up", "usermode", "run"))

Key = tuple[str, str, str]  # cluster, id, node


class Process(NamedTuple):
    """A process of an inferred job, over some scans."""

    key: Key
    pid: int
    start: int  # in clock ticks after the boot
    parent: int
    uid: int
    name: str
    command: str
    first: float  # sampled
    last: float
    cpu: float = 0.0
    cpu_with_children: float = 0.0


class Usage(NamedTuple):
    """CPU time that the agent has counted for a job, as of some samples of it."""

    key: Key
    first: float
    last: float
    cpu: float


class Boots:
    """Boot times of nodes, by their samples."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], dict[float, list[float]]] = {}

    def add(self, cluster: str, node: str, boot: float, first: float, last: float) -> None:
        seen = self._seen.setdefault((cluster, node), {}).setdefault(boot, [first, last])
        seen[:] = min(seen[0], first), max(seen[1], last)

    def knows(self, cluster: str, node: str) -> bool:
        return (cluster, node) in self._seen

    def at(self, cluster: str, node: str, moment: float) -> float | None:
        """The boot whose samples are nearest to this moment; the earlier one of two."""
        seen = self._seen.get((cluster, node), {})
        distances = [(max(first - moment, moment - last, 0.0), boot) for boot, (first, last) in seen.items()]
        return min(distances)[1] if distances else None


class Sighting:
    """One run of an id."""

    def __init__(self, key: Key, boot: float, process: Process) -> None:
        self.key, self.boot = key, boot
        self.start = self.counted_from = began(process, boot)
        self.last = process.last
        self.cpu: float | None = None
        self.is_counted = False  # among those that get no record
        self.leader = process
        self._own: dict[tuple[int, int], tuple[float, float]] = {}  # by pid and start
        self._own_pids: set[int] = set()

    def add(self, process: Process) -> None:
        self.last = max(self.last, process.last)
        if self._leads(process):
            self.leader, self.start = process, min(began(process, self.boot), self.start)
        if is_own(process.command) or process.parent in self._own_pids:
            self._add_own(process)

    def _leads(self, process: Process) -> bool:
        """The one whose number is the job's, or else the oldest; as it was called last."""
        number = int(self.key[1][1:])
        if (process.pid == number) != (self.leader.pid == number):
            return process.pid == number
        if (process.pid, process.start) == (self.leader.pid, self.leader.start):
            return process.last >= self.leader.last
        return process.start < self.leader.start

    def _add_own(self, process: Process) -> None:
        identity = process.pid, process.start
        self._own_pids.add(process.pid)
        if identity in self._own or len(self._own) < _MOST_OWN:
            whole = process.cpu_with_children if is_own(process.command) else 0.0
            before = self._own.get(identity, (0.0, 0.0))
            self._own[identity] = max(before[0], process.cpu), max(before[1], whole)

    @property
    def cpu_of_others(self) -> float | None:
        """CPU seconds without those of joblens, and of what `joblens run` runs: that has its own record."""
        if self.cpu is None:
            return None
        alive, waited_for = (sum(it[which] for it in self._own.values()) for which in (0, 1))
        return max(self.cpu - max(alive, waited_for), 0.0)


def began(process: Process, boot: float) -> float:
    """Up to a second early: the kernel reports its boot time in whole seconds."""
    return round(boot + process.start / _TICKS, 2)


def is_own(command: str) -> bool:
    """Whether it is a daemon of joblens, a process of one, or `joblens run`."""
    words = command.split(" ")[:8]
    if words[0] == "jl-watch":
        return True
    if os.path.basename(words[0]).startswith("python"):
        words = _script(words[1:])
    program, following = os.path.basename(words[0]), "".join(words[1:2])
    return program.startswith("joblens.") or (program == "joblens" and following in _DAEMONS)


def _script(words: list[str]) -> list[str]:
    """Return the file or module that Python runs, and its arguments."""
    while len(words) > 1 and words[0].startswith("-"):
        if words[0] == "-m":
            return words[1:]
        words = words[1:]
    return words or [""]


class Sightings:
    """The newest run of each id, and those before it that are not forgotten yet."""

    def __init__(self) -> None:
        self.boots = Boots()
        self.runs: dict[Key, list[Sighting]] = {}  # the oldest first

    def add(self, processes: Iterable[Process]) -> list[Sighting]:
        """Return the new ones. The boot time of the node of each process must be known."""
        new: list[Sighting] = []
        for process in sorted(processes, key=lambda it: (it.first, it.start, it.pid)):
            cluster, _, node = process.key
            boot = self.boots.at(cluster, node, process.last)
            if boot is None:
                continue
            runs = self.runs.setdefault(process.key, [])
            found = next((run for run in reversed(runs) if _is_of(process, boot, run)), None)
            if found is None:
                found = Sighting(process.key, boot, process)
                runs.append(found)
                new.append(found)
            found.add(process)
        return new

    def count(self, usage: Usage) -> None:
        """For the run that it is of: the last that had begun by then."""
        for run in reversed(self.runs.get(usage.key, [])):
            if run.counted_from <= usage.last + _ROUNDED:
                run.cpu = max(run.cpu or 0.0, usage.cpu)
                return

    def forget(self, run: Sighting) -> None:
        self.runs[run.key].remove(run)
        if not self.runs[run.key]:
            del self.runs[run.key]

    def all(self) -> list[Sighting]:
        return [run for runs in self.runs.values() for run in runs]

    def is_newest(self, run: Sighting) -> bool:
        return self.runs[run.key][-1] is run


def _is_of(process: Process, boot: float, run: Sighting) -> bool:
    """A new leader began after all that were there before, as after another boot all did; others may come
    later."""
    leads = process.pid == int(process.key[1][1:])
    return began(process, boot) <= run.last + (_ROUNDED if leads else _SUCCESSION)
