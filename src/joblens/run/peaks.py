"""The peak of memory that processes share: counted, and not followed from an earlier count.

Between two counts the share of a process follows its RSS, which is wrong while two of them fill the same
pages. So before a look can be the highest so far everything is counted. That a peak is new only when it
is higher by a part keeps these counts few: a job that grows a thousandfold has some hundreds of them.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

from joblens.attribution.sharing import Memory, SharedMemory, private
from joblens.collectors.processes import ProcessKey

_HIGHER = 1.02


class Peaks:
    def __init__(self, sharing: SharedMemory) -> None:
        self.sharing = sharing
        self._memory = 0
        self._size = 0  # of all processes added up, what they share counted repeatedly

    def check(
        self, members: List[Tuple[ProcessKey, List[int]]], followed: Optional[Memory]
    ) -> Optional[Memory]:
        if followed is None:
            return None
        size = sum(private(values) or 0 for _, values in members)
        if followed.bytes <= self._memory * _HIGHER and size <= self._size * _HIGHER:
            return followed
        counted: Optional[Memory] = followed
        if followed.source == "pss":
            self.sharing.forget(())
            counted = self.sharing.measure(members)
        self._memory = max(self._memory, counted.bytes if counted else 0)
        self._size = max(self._size, size)
        return counted
