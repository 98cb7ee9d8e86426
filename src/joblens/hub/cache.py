"""A cache that is bounded by the memory it holds: the least recently used entries are evicted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_ENTRY = 300  # bytes of an entry beside its key and value
_LARGEST_SHARE = 8  # an entry larger than this part of the limit is not kept


class ByteCache(Generic[K, V]):
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """`size`: bytes of the key and of all that the value keeps alive. The key must be a new one."""
        size += _ENTRY
        if size > self.limit // _LARGEST_SHARE:
            return
        self._entries[key] = value, size
        self.bytes += size
        while self.bytes > self.limit:
            _, (_, gone) = self._entries.popitem(last=False)
            self.bytes -= gone
