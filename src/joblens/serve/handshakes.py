"""TLS listeners: a connection is counted when it is accepted, and costs next to nothing before it sends."""

from __future__ import annotations

import asyncio
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress

from joblens.serve.protocol import Connection, Connections

SECONDS = 10.0  # from accept to the end of the handshake
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
        self._task: asyncio.Task[None] | None = None
        self._deadline = listener.loop.call_later(SECONDS, self.end)
        listener.loop.add_reader(channel, self._begin)

    def _begin(self) -> None:
        """TLS takes memory, so it waits for the first byte."""
        self._listener.loop.remove_reader(self._channel)
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

    def close(self) -> None:
        self.loop.remove_reader(self._socket)
        self._socket.close()
        for handshake in list(self._open):
            handshake.end()

    async def wait_closed(self) -> None:
        """Nothing is left to wait for."""
