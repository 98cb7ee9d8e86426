"""Senders with one connection each, which wait for the response before they send the next batch."""

from __future__ import annotations

import heapq
import selectors
import socket
import time
import zlib
from collections.abc import Sequence

from bench.messages import Messages


class Fleet:
    def __init__(
        self, messages: Messages, nodes: int, port: int, rate: float, sequences: Sequence[int] = ()
    ) -> None:
        self.messages, self.period = messages, 1 / rate if rate else 0.0
        self.selector = selectors.DefaultSelector()
        self.sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(nodes)]
        for node, it in enumerate(self.sockets):
            it.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(it, selectors.EVENT_READ, node)
        self.sequences = list(sequences) or [0] * nodes
        self.answered = self.refused = self.under_way = 0

    def send(self, seconds: float) -> tuple[int, int]:
        """Return the numbers of acknowledged and of other batches."""
        begin = time.monotonic()
        due = [(begin + self._first(node), node) for node in range(len(self.sockets))]
        heapq.heapify(due)
        while time.monotonic() < begin + seconds:
            self._send_due(due)
            wait = due[0][0] - time.monotonic() if due and self.period else seconds
            for node in self._answers(max(min(wait, begin + seconds - time.monotonic()), 0.0)):
                if not self.period:
                    self._send(node)
        deadline = time.monotonic() + 10
        while self.under_way and time.monotonic() < deadline:
            self._answers(0.1)
        for it in self.sockets:
            it.close()
        return self.answered, self.refused + self.under_way

    def _first(self, node: int) -> float:
        """Return the seconds until its first batch. Agents sample at whole seconds, and the node's name
        selects the one that ends a period; the duration of a sample is spread here over 50 ms."""
        if self.period < 2.0:
            return node * self.period / len(self.sockets)
        digest = zlib.crc32(b"bench\0n%d" % node)
        return digest % int(self.period) + digest // 1000 % 50 / 1000

    def _send_due(self, due: list[tuple[float, int]]) -> None:
        while due and due[0][0] <= time.monotonic():
            moment, node = heapq.heappop(due)
            self._send(node)
            if self.period:
                heapq.heappush(due, (moment + self.period, node))

    def _send(self, node: int) -> None:
        self.sockets[node].sendall(self.messages.request(node, self.sequences[node]))
        self.sequences[node] += 1
        self.under_way += 1

    def _answers(self, wait: float) -> list[int]:
        found = []
        for key, _ in self.selector.select(wait):
            answer = self.sockets[key.data].recv(1 << 16)
            self.under_way -= 1
            if b" 200 " in answer[:20]:
                self.answered += 1
                found.append(key.data)
            else:
                self.refused += 1
                self.selector.unregister(self.sockets[key.data])
        return found
