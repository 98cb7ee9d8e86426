"""Pages that are rendered once for all who ask at the same time."""

from __future__ import annotations

import time
from typing import Callable, Dict, NamedTuple, Tuple

_KEPT = 1.0  # seconds, while nothing that a page shows has been sampled again
_REST = 10  # times what rendering took, until something is rendered again: a tenth of a core for all pages


class _Page(NamedTuple):
    body: bytes
    version: Tuple[int, ...]
    since: float


class Pages:
    """However often they are asked for, rendering takes no more than a tenth of a core."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pages: Dict[str, _Page] = {}
        self._rests_until = 0.0

    def get(self, name: str, version: Tuple[int, ...], render: Callable[[], bytes]) -> bytes:
        """The page, rendered now or a moment ago. `version` is another one when there is something new."""
        page, now = self._pages.get(name), self._clock()
        if page is not None and now < max(page.since + _KEPT * (page.version == version), self._rests_until):
            return page.body
        begin = time.thread_time()
        body = render()
        self._rests_until = now + _REST * (time.thread_time() - begin)
        self._pages[name] = _Page(body, version, now)
        return body

    def forget_old(self) -> None:
        """So that a page that is asked for once in a while takes no memory in between."""
        limit = self._clock() - _KEPT
        self._pages = {name: page for name, page in self._pages.items() if page.since > limit}
