"""How much the hub takes, from one sender and from all, and how often it says the same."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

_QUIET = 60.0  # seconds between two sentences about the same
_MOST_TOPICS = 1000


class Bucket:
    """So many bytes per second, and some more at once after a pause."""

    __slots__ = ("at", "level")

    def __init__(self, burst: float, now: float) -> None:
        self.level, self.at = burst, now

    def take(self, size: int, rate: float, burst: float, now: float) -> float:
        """0 if it may, else the seconds after which it may. More than the burst is paid for later."""
        self.level = min(self.level + (now - self.at) * rate, burst)
        self.at = now
        if self.level <= 0:
            return -self.level / rate or 1 / rate
        self.level -= size
        return 0.0


class Room:
    """Bytes in memory: bodies that are arriving, and batches that wait for the disk."""

    def __init__(self, size: int) -> None:
        self.size, self.held, self.strangers = size, 0, 0

    def take(self, size: int, stranger: bool) -> bool:
        """Those who have not proved yet who they are share a half: they cannot keep the others out."""
        if self.held + size > self.size or (
            stranger and self.strangers + size > max(self.size // 2, 1 << 12)
        ):
            return False
        self.held += size
        if stranger:
            self.strangers += size
        return True

    def give_back(self, size: int, stranger: bool) -> None:
        self.held -= size
        if stranger:
            self.strangers -= size


class Notes:
    """Says each thing once a minute at most, with how often it was so meanwhile."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._said: dict[str, float] = {}
        self._meanwhile: Counter[str] = Counter()

    def say(self, topic: str, text: str) -> None:
        now = time.monotonic()
        last = self._said.get(topic)
        if last is not None and now - last < _QUIET:
            self._meanwhile[topic] += 1
            return
        if last is None and len(self._said) >= _MOST_TOPICS:
            topic = "others"  # a crowd gets one line for all
            if now - self._said.get(topic, -_QUIET) < _QUIET:
                self._meanwhile[topic] += 1
                return
            self._forget(now)
        more = self._meanwhile.pop(topic, 0)
        self._said[topic] = now
        plain = "".join(letter if letter.isprintable() else "?" for letter in text)
        self._log(
            plain + (f" (and {more} times more in the last {now - (last or now):.0f} s)" if more else "")
        )

    def _forget(self, now: float) -> None:
        self._said = {topic: at for topic, at in self._said.items() if now - at < _QUIET}
