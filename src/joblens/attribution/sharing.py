"""Memory of a group of processes, with shared memory counted once.

One process: its anonymous and shared memory. Several: the sum of their proportional set sizes (PSS), for
which the kernel walks all pages. That takes 10 to 40 ms per GiB, so it is limited to a hundredth of a core,
by CPU time, so that a busy node does not make it rarer; in between the share of a process follows its RSS. A
process with the same share as before is measured again after four times the interval, up to a minute, while
its RSS stays about the same and no other process starts, ends or changes its share, with which it may share
memory. Processes that were never measured are, with at most a twentieth of a core: on a node with much
memory in use that takes minutes.
"""

from __future__ import annotations

import time

from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.collectors.process.pss import Pss, read_pss
from joblens.core.host import Host
from joblens.core.model import ABSENT
from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, Iterable, List, Optional, Tuple

_RSS_ANON, _RSS_SHMEM = PROCESS.position("rss_anon_bytes"), PROCESS.position("rss_shmem_bytes")
_RSS = PROCESS.position("rss_bytes")
_REST_RATIO, _FIRST_REST_RATIO = 100, 20  # rest for this many times the duration of a measurement
_STRETCH = 0.2  # seconds of measuring at a time
_LONGEST = 60.0  # seconds between two measurements of a process that does not change
_SAME_PART, _SAME_SIZE = 1 / 20, 1 / 8
_KIB = 1024


class Memory(NamedTuple):
    bytes: int  # anonymous + shared
    source: str  # rss: exact, one process; pss: sum of shares; rss-sum: shared memory counts repeatedly


class _Share(NamedTuple):
    part: float  # its share of its anonymous and shared RSS
    size: int  # that RSS, in KiB
    soon: float  # earliest time of the next measurement
    pause: float  # how much later if nothing changes

    def is_due(self, now: float, size: int) -> bool:
        return now >= self.soon + (self.pause if _is_like(size, self.size, _SAME_SIZE) else 0.0)


class SharedMemory:
    def __init__(
        self,
        host: Host,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.host = host
        self.clock, self.cpu_clock = clock, cpu_clock
        self._shares: Dict[Tuple[int, int], _Share] = {}
        self._paid = -float("inf")  # the time from which another measurement is within the budget

    def measure(self, processes: List[Tuple[ProcessKey, List[int]]]) -> Optional[Memory]:
        """None if no process has memory, as zombies or on a very old kernel."""
        sizes = [(key, size) for key, values in processes for size in [private(values)] if size is not None]
        if not sizes:
            return None
        if len(sizes) == 1:
            return Memory(sizes[0][1] * _KIB, "rss")
        total, source = 0.0, "pss"
        now = self.clock()
        for key, size in sizes:
            share = self._shares.get((key.pid, key.start))
            if now >= self._paid and (share is None or share.is_due(now, size)):
                share, now = self._count_one(key, size, share)
            if share is None:
                source = "rss-sum"
            total += size * share.part if share else size
        return Memory(round(total) * _KIB, source)

    def forget(self, living: Iterable[Tuple[int, int]]) -> None:
        kept = set(living)
        if not self._shares.keys() <= kept:
            self._shares = {key: share for key, share in self._shares.items() if key in kept}
            self._hurry()

    def _hurry(self) -> None:
        self._shares = {key: share._replace(pause=0.0) for key, share in self._shares.items()}

    def _count_one(
        self, key: ProcessKey, size: int, before: Optional[_Share]
    ) -> Tuple[Optional[_Share], float]:
        """Return the current share, and the time after measuring."""
        begin, cpu = self.clock(), self.cpu_clock()
        pss = read_pss(self.host, key.pid)
        cost = self.cpu_clock() - cpu
        end = self.clock()
        self._paid = max(self._paid, begin - _STRETCH * _FIRST_REST_RATIO) + cost * _FIRST_REST_RATIO
        if pss is None:
            return before, end
        # The more processes there are, the longer the interval of each.
        least = cost * _REST_RATIO * (len(self._shares) + 1)
        part, pause = part_of(pss, size), 0.0
        if before is not None and _is_like(part, before.part, _SAME_PART):
            pause = max(min(4 * (before.pause + least), _LONGEST) - least, 0.0)
        else:
            self._hurry()
        share = self._shares[key.pid, key.start] = _Share(part, size, begin + least, pause)
        return share, end


def private(values: List[int]) -> Optional[int]:
    """Return anonymous and shared memory in KiB. Before Linux 4.5 only the whole RSS is known."""
    anon, shmem = values[_RSS_ANON], values[_RSS_SHMEM]
    if ABSENT not in (anon, shmem):
        return anon + shmem
    return None if values[_RSS] == ABSENT else values[_RSS]


def _is_like(one: float, other: float, difference: float) -> bool:
    return abs(one - other) <= difference * other


def part_of(pss: Pss, size: int) -> float:
    return min((pss.anon + pss.shmem) / size, 1.0) if size > 0 else 1.0
