"""Waiting for what another process does: as short as can be, and not for ever."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 120.0  # seconds after which a thing that did not happen will not happen, on a busy machine too
Found = TypeVar("Found")


def wait_for(what: str, look: Callable[[], Found]) -> Found:
    """What `look` returns, as soon as that is something. The pause grows with the cost of `look`, such as a
    command that takes a core for half a second, so that waiting does not slow down what is waited for."""
    end = time.monotonic() + PATIENCE
    while True:
        begin = time.monotonic()
        if found := look():
            return found
        now = time.monotonic()
        assert now < end, f"{what} did not come: {found!r}"
        time.sleep(min(max(0.02, 2 * (now - begin)), 2.0))


def is_readable(fd: int, seconds: float) -> bool:
    """Within so many seconds. Unlike select(2), for any descriptor."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(seconds, 0.0) * 1000))
