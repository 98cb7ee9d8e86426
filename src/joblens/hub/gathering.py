"""Handle requests together that arrive within a moment: each alone would wake the hub with cold caches."""

from __future__ import annotations

import selectors
import time

_IDLE = 0.2  # seconds without events, after which the first one waits for others
_PER_CONNECTION, _LONGEST = 0.001, 0.06  # seconds that it waits


class GatheringSelector(selectors.DefaultSelector):
    """Agents send at whole seconds, so that batches of many nodes follow the first one.

    A sender that waits for each response, as with a spool, is not delayed: the hub is not idle then.
    """

    _last = 0.0  # when there were events

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(timeout)
        if events:
            if time.monotonic() - self._last >= _IDLE:
                time.sleep(min(_PER_CONNECTION * len(self.get_map()), _LONGEST))
                events = super().select(0)
            self._last = time.monotonic()
        return events
