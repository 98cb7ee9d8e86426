"""The clock of a job: it keeps its pace when the machine's clock is set."""

from __future__ import annotations

import time

from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

_SMALLEST_JUMP = 2.0  # seconds


class Clock(NamedTuple):
    """Nanoseconds since 1970 and since boot at the same moment; time in suspend counts."""

    wall: int
    boot: int

    def now_ns(self) -> int:
        return self.wall + time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self.boot

    def now(self) -> float:
        return self.now_ns() / 1e9

    def jump(self) -> Optional[float]:
        """Return the seconds by which the machine's clock has been set, None if it has not."""
        seconds = time.time() - self.now()
        return seconds if abs(seconds) >= _SMALLEST_JUMP else None


def start_clock() -> Clock:
    return Clock(time.time_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME))
