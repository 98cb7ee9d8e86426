"""HTTP connections of the service: their user, limits of number and time, and errors as JSON."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from joblens.core.log_limiter import LogLimiter
from joblens.serve.errors import body_of
from joblens.serve.identity import Peer, Proven, place_of
from joblens.wire.peers import Holder, Peers, unix_peer

LARGEST_HEAD = 16_384
PEER, PROVEN = "peer", "proven"  # names in the state of a request


class Closable(Protocol):
    """A connection, or one before its TLS handshake."""

    @property
    def is_idle(self) -> bool: ...

    def end(self) -> None: ...


class Connections:
    """All open connections, by user or network. Each of these can have a quarter of them."""

    def __init__(self, most: int, timeout: float, log: Callable[[str], None]) -> None:
        self.most, self.timeout = most, timeout
        self.most_of_one = max(most // 4, 1)
        self.notes = LogLimiter(log)
        self.peers = Peers()
        self._open: dict[Holder, dict[Closable, None]] = {}  # from old to new
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, connection: Closable, holder: Holder) -> bool:
        """Make room by closing the oldest idle one of the same user, or of the one with the most. Return
        False if there is none."""
        own = self._open.setdefault(holder, {})
        own[connection] = None
        self._count += 1
        if len(own) > self.most_of_one:
            return self._close_idle(own, connection)
        if self._count > self.most:
            return self._close_idle(max(self._open.values(), key=len), connection)
        return True

    def remove(self, connection: Closable, holder: Holder) -> None:
        own = self._open.get(holder, {})
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._open[holder]

    def note_full(self, holder: Holder) -> None:
        self.note(place_of(holder), "full", "limit of connections reached; further ones are closed")

    def note(self, place: str, topic: str, text: str) -> None:
        self.notes.say(f"{place} {topic}", f"{place}: {text}")

    def _close_idle(self, some: dict[Closable, None], new: Closable) -> bool:
        for connection in some:
            if connection is not new and connection.is_idle:
                connection.end()
                return True
        return False


class Connection(H11Protocol):
    """One connection. Its user is read from the kernel when it begins, and is the same for all requests."""

    def __init__(
        self,
        all: Connections,
        config: Config,
        state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        established: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config, state, app_state, loop)
        self._all, self._established = all, established
        self._deadline: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        channel = transport.get_extra_info("socket")
        unix = channel.family == socket.AF_UNIX
        self._holder: Holder = unix_peer(channel)[1] if unix else self._all.peers.holder(channel)
        self.app_state = {**self.app_state, PEER: Peer(unix, self._holder), PROVEN: Proven()}
        self._expect()
        if self._established is not None:  # it was counted until now
            self._established()
        if not self._all.add(self, self._holder):
            self._all.note_full(self._holder)
            self._refuse(503, "too many connections; retry later")

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._deadline)
        _cancel(self._stalled)
        self._all.remove(self, self._holder)
        super().connection_lost(exc)

    @property
    def is_idle(self) -> bool:
        """Whether no complete request is being answered."""
        return self._is_answered or self.cycle.more_body

    @property
    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def end(self) -> None:
        """Close it at once, whatever the other side has not read."""
        self._all.remove(self, self._holder)
        self.transport.abort()

    # Time limits: uvicorn's own begins again with each byte

    def _expect(self) -> None:
        """A request has to arrive in this time, with its body."""
        _cancel(self._deadline)
        self._deadline = self.loop.call_later(self._all.timeout, self.end)

    def handle_events(self) -> None:
        super().handle_events()
        if not self.is_idle:
            _cancel(self._deadline)

    def on_response_complete(self) -> None:
        if not self.transport.is_closing():
            self._expect()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        _cancel(self._stalled)
        self._stalled = self.loop.call_later(self._all.timeout, self.end)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stalled)

    # Errors

    def send_400_response(self, msg: str) -> None:
        """Called for what is not HTTP. The error is reported before the request is known."""
        self._all.note(place_of(self._holder), "not HTTP", "not a valid HTTP request; connection closed")
        too_large = len(self.conn.trailing_data[0]) > LARGEST_HEAD
        self._refuse(
            431 if too_large else 400, "the request header is too large" if too_large else "not HTTP"
        )

    def _refuse(self, status: int, message: str) -> None:
        if not self._is_answered:  # the answer to the previous request is in flight
            self.end()
            return
        body = msgspec.json.encode(body_of(status, message))
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.transport.write(head.encode() + body)
        self.transport.close()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
