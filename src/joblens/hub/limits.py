"""How much the hub takes, from one sender, from all and from strangers, and how often it says the same."""

from __future__ import annotations

import ipaddress
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

_QUIET = 60.0  # seconds between two sentences about the same
_MOST_TOPICS = 1000
_LEAST_OF_ONE = 64  # connections from one address that have proved nothing
_MOST_HELD = 4 << 20  # bytes of requests of those who have proved nothing


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

    def __init__(self, size: int, most_of_one: int) -> None:
        self.size, self.held, self._most_of_one = size, 0, most_of_one
        self._by_node: Counter[tuple[str, str]] = Counter()

    def take(self, size: int, node: tuple[str, str]) -> bool:
        """One node, with however many connections, cannot keep the others out."""
        if self.held + size > self.size or self._by_node[node] + size > self._most_of_one:
            return False
        self.held += size
        self._by_node[node] += size
        return True

    def give_back(self, size: int, node: tuple[str, str]) -> None:
        self.held -= size
        self._by_node[node] -= size
        if not self._by_node[node]:
            del self._by_node[node]


class Closing(Protocol):
    def close(self) -> None: ...


class Strangers:
    """Connections that have proved nothing yet. If they are too many, or hold too much, the oldest goes."""

    def __init__(self, connections: int) -> None:
        self._most_of_one = max(connections // 4, _LEAST_OF_ONE)
        self._all: dict[Closing, str] = {}  # from old to new
        self._by_address: dict[str, dict[Closing, None]] = {}
        self._bytes: dict[Closing, int] = {}  # of requests that have begun to come
        self.held = 0

    def __len__(self) -> int:
        return len(self._all)

    def add(self, it: Closing, address: str) -> None:
        self._all[it] = address
        alike = self._by_address.setdefault(address, {})
        alike[it] = None
        if len(alike) > self._most_of_one:
            self._end(next(iter(alike)))

    def discard(self, it: Closing) -> None:
        address = self._all.pop(it, None)
        if address is None:
            return
        alike = self._by_address[address]
        del alike[it]
        if not alike:
            del self._by_address[address]
        self.held -= self._bytes.pop(it, 0)

    def hold(self, it: Closing, size: int) -> None:
        """So many bytes of its request have come."""
        if it in self._all:
            self.held += size - self._bytes.pop(it, 0)
            if size:
                self._bytes[it] = size
            while self.held > _MOST_HELD:
                self._end(next(iter(self._bytes)))

    def end_oldest(self) -> Closing | None:
        oldest = next(iter(self._all), None)
        if oldest is not None:
            self._end(oldest)
        return oldest

    def _end(self, it: Closing) -> None:
        self.discard(it)
        it.close()


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
        self._meanwhile = Counter({topic: it for topic, it in self._meanwhile.items() if topic in self._said})


def place_of(address: str) -> str:
    """An address as a topic: of IPv6 its /64 is one, as is all of 127.0.0.0/8."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
    return "127.0.0.0/8" if found.is_loopback else str(found)
