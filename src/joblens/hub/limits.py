"""Limits of the hub: per sender, in total, and for unauthenticated connections."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Protocol

_LEAST_OF_ONE = 64  # unauthenticated connections from one address
_MOST_OF_SENDER = 2  # connections with priority; a restarted agent may have an old one
_MOST_HELD = 4 << 20  # bytes of unauthenticated requests


class Bucket:
    """A token bucket: bytes per second, with a burst."""

    __slots__ = ("at", "level")

    def __init__(self, burst: float, now: float) -> None:
        self.level, self.at = burst, now

    def take(self, size: int, rate: float, burst: float, now: float) -> float:
        """Return 0, or the seconds to wait. A message larger than the burst leaves a debt."""
        self.level = min(self.level + (now - self.at) * rate, burst)
        self.at = now
        if self.level <= 0:
            return -self.level / rate or 1 / rate
        self.level -= size
        return 0.0


class Room:
    """Memory for bodies that are being received and for batches that wait for the disk."""

    def __init__(self, size: int, most_of_one: int) -> None:
        self.size, self.held, self._most_of_one = size, 0, most_of_one
        self._by_node: Counter[tuple[str, str]] = Counter()

    def take(self, size: int, node: tuple[str, str]) -> bool:
        """Reserve memory, within the limits of the node and in total."""
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


class Unauthenticated:
    """Connections without authentication. Above a limit of number or memory the oldest is closed."""

    def __init__(self, connections: int) -> None:
        self._most_of_one = max(connections // 4, _LEAST_OF_ONE)
        self._all: dict[Closing, str] = {}  # from old to new
        self._by_address: dict[str, dict[Closing, None]] = {}
        self._bytes: dict[Closing, int] = {}  # of incomplete requests
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
        """Set the number of received bytes of its request."""
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


class Demoted(Closing, Protocol):
    def demote(self) -> None: ...


class Authenticated:
    """Connections by authenticated sender. Only the newest few of each have priority over unauthenticated
    ones: an agent has one, and a replay of its requests cannot displace other senders."""

    def __init__(self, connections: int) -> None:
        self._most_readers = max(connections // 4, _LEAST_OF_ONE)
        self._by_sender: dict[tuple[str, str], dict[Demoted, None]] = {}
        self._all: dict[Demoted, tuple[str, str]] = {}

    def add(self, it: Demoted, sender: tuple[str, str], reads: bool) -> None:
        alike = self._by_sender.setdefault(sender, {})
        alike[it] = None
        self._all[it] = sender
        if len(alike) > (self._most_readers if reads else _MOST_OF_SENDER):
            oldest = next(iter(alike))
            self.discard(oldest)
            oldest.demote()

    def discard(self, it: Demoted) -> None:
        sender = self._all.pop(it, None)
        if sender is None:
            return
        alike = self._by_sender[sender]
        del alike[it]
        if not alike:
            del self._by_sender[sender]


def place_of(address: str) -> str:
    """Return the network of an address for log limits: a /64 of IPv6, and all of 127.0.0.0/8."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))
    return "127.0.0.0/8" if found.is_loopback else str(found)
