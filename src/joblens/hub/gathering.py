"""Handle requests together that arrive within a moment: each alone would wake the hub with cold caches."""

from __future__ import annotations

import asyncio
import selectors
import time

_IDLE = 0.2  # seconds without events, after which the first one waits for others
_PER_CONNECTION, _LONGEST = 0.001, 0.06  # seconds that it waits


class GatheringSelector(selectors.DefaultSelector):
    """Agents send at whole seconds, so that batches of many nodes follow the first one.

    A sender that waits for each response, as with a spool, is not delayed: the hub is not idle then.
    """

    _last = 0.0  # when there were events
    has_gathered = False  # whether those of the last call have waited for others
    since = 0.0  # when the first of them came that waited last

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout)
        self.has_gathered = False
        if events:
            now = time.monotonic()
            if now - self._last >= _IDLE:
                self.has_gathered, self.since = True, now
                time.sleep(min(_PER_CONNECTION * len(self.get_map()), _LONGEST))
                events = super().select(0)
            self._last = time.monotonic()
        return events


class GatheringLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.gathering = GatheringSelector()
        super().__init__(self.gathering)

    def until_next(self, period: float) -> float:
        """Return the seconds, at most `period`, until agents send again, if they do so with this period.

        What is done then wakes the hub no further time.
        """
        middle = self.gathering.since + _LONGEST / 2
        return period - (time.monotonic() - middle) % period
