"""A log that repeats no message more often than once a minute."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

_QUIET = 60.0  # seconds between two messages about the same topic
_MOST_TOPICS = 1000


class LogLimiter:
    """Logs each topic at most once a minute, with the number of repetitions in between."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._logged: dict[str, float] = {}
        self._repeats: Counter[str] = Counter()

    def say(self, topic: str, text: str) -> None:
        now = time.monotonic()
        last = self._logged.get(topic)
        if last is not None and now - last < _QUIET:
            self._repeats[topic] += 1
            return
        if last is None and len(self._logged) >= _MOST_TOPICS:
            topic = "others"  # too many topics share one line
            if now - self._logged.get(topic, -_QUIET) < _QUIET:
                self._repeats[topic] += 1
                return
            self._forget(now)
        more = self._repeats.pop(topic, 0)
        self._logged[topic] = now
        plain = "".join(letter if letter.isprintable() else "?" for letter in text)
        self._log(
            plain + (f" (and {more} more times in the last {now - (last or now):.0f} s)" if more else "")
        )

    def _forget(self, now: float) -> None:
        self._logged = {topic: at for topic, at in self._logged.items() if now - at < _QUIET}
        self._repeats = Counter({topic: it for topic, it in self._repeats.items() if topic in self._logged})
