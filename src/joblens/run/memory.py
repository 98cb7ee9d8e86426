"""Memory of one job: shared pages count once, and the peak is measured.

The kernel computes PSS page by page, which is expensive, so between two measurements the share of a process
follows its RSS. That is wrong while two processes fill the same pages, so a possible new peak is measured
before it counts. A peak must be higher by a certain factor, which keeps measurements few: a job that grows a
thousandfold has some hundreds of them.

Only processes that can share pages are measured: those with shared memory, and those that may have been
forked from another without an exec since, by program and kinship. In a build hardly any needs it.
"""

from __future__ import annotations

import os
import time

from joblens.attribution.sharing import Memory, SharedMemory, private
from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.collectors.process.pss import read_pss
from joblens.core.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, List, Optional, Set, Tuple

_HIGHER = 1.02
_DUTY = 100  # measurements without a new peak take at most a hundredth of the time
_KIB = 1024
_RSS_SHMEM = PROCESS.position("rss_shmem_bytes")

Identity = tuple[int, int]
Member = tuple[ProcessKey, list[int]]


class JobMemory(SharedMemory):
    def __init__(self, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(host, clock)
        self._parts: Dict[Identity, float] = {}  # PSS as a part of RSS
        self._again = 0.0
        self._peak = 0.0  # KiB
        self._largest = 0  # sum of RSS, in which shared pages count repeatedly

    def measure(self, processes: List[Member]) -> Optional[Memory]:
        sizes = {
            (key.pid, key.start): size
            for key, values in processes
            for size in [private(values)]
            if size is not None
        }
        if not sizes:
            return None
        whole = sum(sizes.values())
        found, source = float(whole), "rss"
        if len(sizes) > 1:
            found = sum(size * self._parts.get(identity, 1.0) for identity, size in sizes.items())
            new = found > self._peak * _HIGHER or whole > self._largest * _HIGHER
            if new or self.clock() >= self._again:
                found = self._count(sizes, self._alone(processes))
            source = "pss" if self._parts.keys() & sizes.keys() else "rss-sum"
        self._peak, self._largest = max(self._peak, found), max(self._largest, whole)
        return Memory(round(found) * _KIB, source)

    def forget(self, living: Iterable[Identity]) -> None:
        kept = set(living)
        self._parts = {identity: part for identity, part in self._parts.items() if identity in kept}

    def _alone(self, processes: List[Member]) -> Set[Identity]:
        """Return processes without shared pages: anonymous pages are shared by fork only, until exec."""
        programs: Dict[Tuple[int, int], List[Member]] = {}
        for member in processes:
            try:
                program = os.stat(f"{self.host.root}proc/{member[0].pid}/exe")
            except FileNotFoundError:  # it has ended
                continue
            except OSError:  # no permission: any other process may be related to it
                return set()
            programs.setdefault((program.st_dev, program.st_ino), []).append(member)
        pids = {key.pid for key, _ in processes}
        return {
            (key.pid, key.start)
            for kin in programs.values()
            for related in [_related([key for key, _ in kin], pids)]
            for key, values in kin
            if values[_RSS_SHMEM] == 0 and key.pid not in related
        }

    def _count(self, sizes: Dict[Identity, int], alone: Set[Identity]) -> float:
        """Measure in both directions and take the smaller sum: a page that a process gets in between is
        counted twice in one direction and not at all in the other."""
        begin = self.clock()
        self._parts.update((identity, 1.0) for identity in alone)
        own = float(sum(sizes[identity] for identity in alone if identity in sizes))
        others = [identity for identity in sizes if identity not in alone]
        totals = []
        for order in (others, others[::-1]):
            shares = {identity: self._share(identity, sizes[identity]) for identity in order}
            totals.append(sum(shares.values()))
        self._again = self.clock() + _DUTY * (self.clock() - begin)
        return own + min(totals)

    def _share(self, identity: Identity, size: int) -> float:
        """Return KiB; the last known value of a process that has ended or cannot be read."""
        pss = read_pss(self.host, identity[0])
        if pss is not None and size > 0:
            self._parts[identity] = min((pss.anon + pss.shmem) / size, 1.0)
        return size * self._parts.get(identity, 1.0)


def _related(kin: List[ProcessKey], pids: Set[int]) -> Set[int]:
    """Return which processes of one program may have been forked from each other: parents, children and
    siblings, or all if one was adopted, because its parent is then unknown."""
    own = {key.pid for key in kin}
    if len(kin) > 1 and any(key.parent not in pids for key in kin):
        return own
    parents = [key.parent for key in kin]
    several = {parent for parent in parents if parents.count(parent) > 1}
    children = {key.pid for key in kin if key.parent in own or key.parent in several}
    return children | (own & set(parents))
