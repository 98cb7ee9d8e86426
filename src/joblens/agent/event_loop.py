"""The agent's event loop. A handler that fails ends neither the loop nor another handler."""

from __future__ import annotations

import selectors
from contextlib import suppress
from typing import Any, Callable, NamedTuple, Set, Tuple

from joblens.core.errors import sentence

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class _Handler(NamedTuple):
    handle: Callable[[int], None]
    failed: Callable[[], None]


class Events:
    """Waits for descriptors and calls their handlers.

    A handler that raises is counted, and logged once per cause; then its `failed` is called, which closes
    the connection or otherwise keeps the same event from failing again at once.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        self.failures = 0
        self._log = log
        self._selector = selectors.EpollSelector()
        self._reported: Set[Tuple[str, str, int]] = set()

    def add(self, file: Any, events: int, handle: Callable[[int], None], failed: Callable[[], None]) -> None:
        self._selector.register(file, events, _Handler(handle, failed))

    def change(self, file: Any, events: int) -> None:
        key = self._selector.get_key(file)
        if key.events != events:
            self._selector.modify(file, events, key.data)

    def remove(self, file: Any) -> None:
        """Does nothing if it is not registered."""
        with suppress(KeyError, ValueError):
            self._selector.unregister(file)

    def fileno(self) -> int:
        """Return a descriptor that is readable when another one is ready."""
        return self._selector.fileno()

    def wait(self, seconds: float) -> int:
        """Call the handlers of ready descriptors, and return how many there were."""
        found = self._selector.select(seconds)
        for key, events in found:
            current = self._selector.get_map().get(key.fd)
            # An earlier handler of this round may have closed it and its number may be reused.
            if current is not None and current.fileobj is key.fileobj:
                handler: _Handler = key.data
                if not self.run(handler.handle, events):
                    self.run(handler.failed)
        return len(found)

    def run(self, function: Callable[..., None], *given: int) -> bool:
        """Call a function that must not end the loop. Return False if it raised."""
        try:
            function(*given)
        except Exception as error:  # isolate one connection from the next
            self._report(error)
            return False
        return True

    def _report(self, error: Exception) -> None:
        self.failures += 1
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        file, line = (place.tb_frame.f_code.co_filename, place.tb_lineno) if place else ("", 0)
        cause = type(error).__name__, file, line
        if cause not in self._reported:  # bounded by the lines of code: no text of a peer is part of it
            self._reported.add(cause)
            where = f"{file.rpartition('/')[2]}:{line}"
            self._log(f"event handler failed: {cause[0]} at {where}: {sentence(error):.200}")

    def close(self) -> None:
        self._selector.close()
