"""Memory of a group of processes, with what they share counted once.

One process alone: its anonymous and shared parts. Several: the sum of their proportional shares (PSS),
which the kernel counts page by page. That is dear, some 10 to 40 ms per GiB, so all counting together takes
a hundredth of the time; until a process is counted again its share follows its RSS. One whose share was the
same as before has four times as much time until then, up to a minute, while its RSS stays about the same too,
and while no other one comes, goes or has another share: it may share with these.
Those that were never counted are, in at most a twentieth of the time: on a node full of memory that takes
minutes.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from joblens.collectors.process.collector import PROCESS, ProcessKey
from joblens.collectors.process.pss import Pss, read_pss
from joblens.core.host import Host
from joblens.core.model import ABSENT

_RSS_ANON, _RSS_SHMEM = PROCESS.position("rss_anon_bytes"), PROCESS.position("rss_shmem_bytes")
_RSS = PROCESS.position("rss_bytes")
_PATIENCE, _FIRST_PATIENCE = 100, 20
_STRETCH = 0.2  # seconds that counting may take at a time
_LONGEST = 60.0  # seconds between two counts of a process that does not change
_SAME_PART, _SAME_SIZE = 1 / 20, 1 / 8
_KIB = 1024


class Memory(NamedTuple):
    bytes: int  # anonymous + shared
    source: str  # rss: exact, of one process; pss: shares added; rss-sum: shared parts count repeatedly


class _Share(NamedTuple):
    part: float  # of anonymous and shared RSS that is its own share
    size: int  # that RSS, in KiB
    soon: float  # when to count next, at the earliest
    pause: float  # how much later if it stays as it is

    def is_due(self, now: float, size: int) -> bool:
        return now >= self.soon + (self.pause if _is_like(size, self.size, _SAME_SIZE) else 0.0)


class SharedMemory:
    def __init__(self, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        self.host = host
        self.clock = clock
        self._shares: Dict[Tuple[int, int], _Share] = {}
        self._paid = -float("inf")  # the time by which the counting so far has had its patience

    def measure(self, processes: List[Tuple[ProcessKey, List[int]]]) -> Optional[Memory]:
        """None where no process tells its memory, such as zombies or on a very old kernel."""
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
        """What is known of it from now on, and when that was."""
        begin = self.clock()
        pss = read_pss(self.host, key.pid)
        end = self.clock()
        cost = end - begin
        self._paid = max(self._paid, begin - _STRETCH * _FIRST_PATIENCE) + cost * _FIRST_PATIENCE
        if pss is None:
            return before, end
        # The more there are, the later each has its turn again.
        least = cost * _PATIENCE * (len(self._shares) + 1)
        part, pause = part_of(pss, size), 0.0
        if before is not None and _is_like(part, before.part, _SAME_PART):
            pause = max(min(4 * (before.pause + least), _LONGEST) - least, 0.0)
        else:
            self._hurry()
        share = self._shares[key.pid, key.start] = _Share(part, size, begin + least, pause)
        return share, end


def private(values: List[int]) -> Optional[int]:
    """Anonymous and shared memory in KiB. Before Linux 4.5 only the whole RSS is known."""
    anon, shmem = values[_RSS_ANON], values[_RSS_SHMEM]
    if ABSENT not in (anon, shmem):
        return anon + shmem
    return None if values[_RSS] == ABSENT else values[_RSS]


def _is_like(one: float, other: float, difference: float) -> bool:
    return abs(one - other) <= difference * other


def part_of(pss: Pss, size: int) -> float:
    return min((pss.anon + pss.shmem) / size, 1.0) if size > 0 else 1.0
