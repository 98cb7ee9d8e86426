"""How much the hub takes: from one sender, from all, and from those who have not proved who they are."""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Protocol

_LEAST_OF_ONE = 64  # connections from one address that have proved nothing
_MOST_OF_SENDER = 2  # that are kept when others go; an agent that was restarted may have an old one
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


class Demoted(Closing, Protocol):
    def demote(self) -> None: ...


class Proven:
    """Connections whose sender is known, by sender. Only the newest few of each are better off than those of
    strangers: an agent has one, and who replays what an agent sent cannot take the place of others."""

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
