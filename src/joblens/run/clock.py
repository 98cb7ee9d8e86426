"""The time of a job: it goes on evenly though the clock of the machine be set meanwhile."""

from __future__ import annotations

import time
from typing import NamedTuple, Optional

_NOTICED_SECONDS = 2.0


class Clock(NamedTuple):
    """Nanoseconds since 1970 and since the boot, both at the same moment. Sleep of the machine counts."""

    wall: int
    boot: int

    def now_ns(self) -> int:
        return self.wall + time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self.boot

    def now(self) -> float:
        return self.now_ns() / 1e9

    def jump(self) -> Optional[float]:
        """Seconds by which the machine's clock has been set forward, if it has been by some."""
        seconds = time.time() - self.now()
        return seconds if abs(seconds) >= _NOTICED_SECONDS else None


def start_clock() -> Clock:
    return Clock(time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
