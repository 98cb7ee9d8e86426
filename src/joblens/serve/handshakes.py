"""TLS listeners: a connection is counted when it is accepted, and costs next to nothing before its handshake.

A handshake takes about 100 KB, so that only some are done at once. Others wait for their turn.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from joblens.serve.protocol import Connection, Connections
from joblens.wire.peers import Holder

SECONDS = 10.0  # from accept to the end of the handshake
AT_MOST = 128  # handshakes in progress; a quarter of them per network
_SECONDS_IF_OTHERS_WAIT = 2.0  # for one handshake: three round trips to anywhere
_AT_ONCE = 100  # accepted before others have a turn
_RETRY_SECONDS = 1.0  # after the system had no descriptor or memory
_BUFFER = 32_768  # per connection: two TLS records. asyncio's default is 256 KiB, also for one that is idle
MakeConnection = Callable[["Handshake"], Connection]


class Handshake:
    """A connection before TLS is established. It can be closed to make room for others."""

    is_idle = True

    def __init__(self, listener: TlsListener, channel: socket.socket) -> None:
        self._listener, self._channel = listener, channel
        self.holder = listener.all.peers.holder(channel)
        self.begun = 0.0
        self._task: asyncio.Task[None] | None = None
        self._deadline = listener.loop.call_later(SECONDS, self.end)
        listener.loop.add_reader(channel, self._wait)

    def _wait(self) -> None:
        """TLS takes memory, so it waits for the first byte and for its turn."""
        self._listener.loop.remove_reader(self._channel)
        self._listener.turns.ask(self)

    def begin(self) -> None:
        self.begun = self._listener.loop.time()
        self._task = self._listener.loop.create_task(self._run())

    async def _run(self) -> None:
        with suppress(OSError, asyncio.CancelledError):  # not TLS, closed, or ended
            await self._listener.loop.connect_accepted_socket(
                lambda: self._listener.make(self),
                self._channel,
                ssl=self._listener.tls,
                ssl_handshake_timeout=SECONDS,
            )
        self.leave()

    def leave(self) -> None:
        """It is established or closed: from now on this is not counted."""
        self._deadline.cancel()
        self._listener.forget(self)

    def end(self) -> None:
        self.leave()
        if self._task is not None:
            self._task.cancel()
            return
        self._listener.loop.remove_reader(self._channel)
        self._channel.close()


class Turns:
    """Which handshakes are done now, and which wait, by network."""

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self._most, self._most_of_one, self._loop = most, max(most // 4, 1), loop
        self._running: dict[Handshake, None] = {}  # from old to new
        self._waiting: dict[Holder, dict[Handshake, None]] = {}
        self._count: Counter[Holder] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, handshake: Handshake) -> None:
        """Begin it, now or later."""
        if self._has_room(handshake.holder):
            self._begin(handshake)
            return
        self._waiting.setdefault(handshake.holder, {})[handshake] = None
        self._end_slow()

    def leave(self, handshake: Handshake) -> None:
        """It has ended, or waits no longer."""
        if handshake in self._running:
            del self._running[handshake]
            self._count[handshake.holder] -= 1
            self._count += Counter()  # without those that have none
            self._next()
        else:
            self._forget(handshake)

    def _has_room(self, holder: Holder) -> bool:
        return len(self._running) < self._most and self._count[holder] < self._most_of_one

    def _begin(self, handshake: Handshake) -> None:
        self._running[handshake] = None
        self._count[handshake.holder] += 1
        handshake.begin()

    def _next(self) -> None:
        """Begin the newest that waits, of the network with the fewest in progress. Those before it may be of
        clients that have given up, or of one that only opens connections."""
        holders = [holder for holder in self._waiting if self._has_room(holder)]
        if holders:
            newest = next(reversed(self._waiting[min(holders, key=self._count.__getitem__)]))
            self._forget(newest)
            self._begin(newest)

    def _forget(self, handshake: Handshake) -> None:
        waiting = self._waiting.get(handshake.holder, {})
        waiting.pop(handshake, None)
        if not waiting:
            self._waiting.pop(handshake.holder, None)

    def _end_slow(self) -> None:
        """While others wait, close those that take long."""
        if self._timer is not None:
            return
        before = self._loop.time() - _SECONDS_IF_OTHERS_WAIT
        for handshake in [it for it in self._running if it.begun <= before and self._is_in_the_way(it)]:
            handshake.end()
        if self._waiting:
            self._timer = self._loop.call_later(_SECONDS_IF_OTHERS_WAIT / 4, self._again)

    def _again(self) -> None:
        self._timer = None
        self._end_slow()

    def _is_in_the_way(self, handshake: Handshake) -> bool:
        return handshake.holder in self._waiting or len(self._running) >= self._most


class TlsListener:
    """Accepts connections and counts them, then does the handshake. Ends like a server of asyncio."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext,
        all: Connections,
        make: MakeConnection,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._socket, self.tls, self.all, self.make, self.loop = listener, tls, all, make, loop
        self._open: dict[Handshake, None] = {}
        self.turns = Turns(AT_MOST, loop)
        sslproto.SSLProtocol.max_size = _BUFFER
        self._listen()

    def _listen(self) -> None:
        if self._socket.fileno() >= 0:
            self.loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                channel, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self.loop.remove_reader(self._socket)
                self.loop.call_later(_RETRY_SECONDS, self._listen)
                return
            self._admit(channel)

    def _admit(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        try:
            handshake = Handshake(self, channel)
        except OSError:  # the other side has gone
            channel.close()
            return
        self._open[handshake] = None
        if not self.all.add(handshake, handshake.holder):
            self.all.note_full(handshake.holder)
            handshake.end()

    def forget(self, handshake: Handshake) -> None:
        self._open.pop(handshake, None)
        self.all.remove(handshake, handshake.holder)
        self.turns.leave(handshake)

    def close(self) -> None:
        self.loop.remove_reader(self._socket)
        self._socket.close()
        for handshake in list(self._open):
            handshake.end()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""
