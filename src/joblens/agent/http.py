"""A small HTTP server in the agent's own loop: GET only, one page per request, bounded in all ways.

The standard library's http.server costs 7 MB and 50 ms of start-up, which is more than the rest of the
agent, and a thread.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import Callable, Dict, NamedTuple, Optional, Tuple

from joblens.errors import ServerError, sentence

_END = b"\r\n\r\n"
_LARGEST_REQUEST = 16_384
_MOST_CONNECTIONS = 64
_PATIENCE = 60.0  # seconds that a silent connection is kept
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed"}


class Request(NamedTuple):
    method: str
    path: str
    headers: Dict[str, str]  # names in lower case
    keep: bool = True  # the connection, for a next request


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes


Answer = Callable[[Request], Response]


def parse_request(data: bytes) -> Optional[Request]:
    """None if it is not HTTP. What follows the empty line is not read: a GET has no body."""
    lines = data.split(_END, 1)[0].decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[0].isalpha():
        return None
    headers: Dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            return None
        headers[name.strip().lower()] = value.strip()
    wishes = [wish.strip() for wish in headers.get("connection", "").lower().split(",")]
    # RFC 9112, 9.3: until HTTP/1.1 the end of the connection was the end of the answer.
    keep = "keep-alive" in wishes if words[2] == "HTTP/1.0" else "close" not in wishes
    return Request(words[0], words[1].partition("?")[0], headers, keep)


def render_response(response: Response, close: bool, head_only: bool) -> bytes:
    head = (
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        f"Connection: {'close' if close else 'keep-alive'}\r\n"
    )
    if response.status == 401:
        head += "WWW-Authenticate: Bearer\r\n"
    return head.encode("latin-1") + b"\r\n" + (b"" if head_only else response.body)


class _Connection:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.incoming = b""
        self.outgoing = b""
        self.closing = False
        self.active = time.monotonic()


class Server:
    def __init__(self, selector: selectors.BaseSelector, address: Tuple[str, int], answer: Answer) -> None:
        self.selector, self.answer = selector, answer
        self._connections: Dict[int, _Connection] = {}
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            self.listener = socket.create_server(address, family=family, backlog=_MOST_CONNECTIONS)
        except (OSError, OverflowError) as error:
            why = sentence(error).partition(" (while attempting")[0]  # which only says the address again
            raise ServerError(f"cannot listen on {address[0]}:{address[1]}: {why}") from None
        self.listener.setblocking(False)
        selector.register(self.listener, selectors.EVENT_READ, self._accept)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self.selector.unregister(self.listener)
        self.listener.close()

    def drop_silent(self) -> None:
        limit = time.monotonic() - _PATIENCE
        for connection in [c for c in self._connections.values() if c.active < limit]:
            self._drop(connection)

    def _accept(self, events: int) -> None:
        try:
            channel, _ = self.listener.accept()
        except OSError:  # given up by the other side meanwhile, or no descriptor left: it will be asked again
            return
        if len(self._connections) >= _MOST_CONNECTIONS:  # idle ones must not keep others out
            self._drop(min(self._connections.values(), key=lambda it: it.active))
        channel.setblocking(False)
        connection = _Connection(channel)
        self._connections[channel.fileno()] = connection
        self.selector.register(channel, selectors.EVENT_READ, lambda events: self._serve(connection, events))

    def _serve(self, connection: _Connection, events: int) -> None:
        """One answer per turn, and no further one while that is not fetched: nothing piles up."""
        try:
            if events & selectors.EVENT_READ:
                self._receive(connection)
            if not connection.outgoing:
                self._answer_next(connection)
            if connection.outgoing:
                self._send(connection)
        except BlockingIOError:
            pass
        except OSError:  # the other side has hung up
            connection.closing, connection.outgoing = True, b""
        if connection.closing and not connection.outgoing:
            self._drop(connection)
            return
        busy = connection.outgoing or _END in connection.incoming
        wanted = selectors.EVENT_WRITE if busy else selectors.EVENT_READ
        key = self.selector.get_key(connection.channel)
        if key.events != wanted:
            self.selector.modify(connection.channel, wanted, key.data)

    def _receive(self, connection: _Connection) -> None:
        data = connection.channel.recv(_LARGEST_REQUEST)
        connection.active = time.monotonic()
        connection.incoming += data
        connection.closing = not data

    def _answer_next(self, connection: _Connection) -> None:
        if _END in connection.incoming:
            head, _, connection.incoming = connection.incoming.partition(_END)
            self._respond(connection, parse_request(head))
        elif len(connection.incoming) > _LARGEST_REQUEST:
            self._respond(connection, None)

    def _respond(self, connection: _Connection, request: Optional[Request]) -> None:
        if request is None:
            response = Response(400, "text/plain", b"This is not a request that joblens understands.\n")
        elif request.method not in ("GET", "HEAD"):
            response = Response(405, "text/plain", b"Only GET is answered here.\n")
        else:
            response = self.answer(request)
        connection.closing = request is None or not request.keep or response.status in (400, 405)
        head_only = request is not None and request.method == "HEAD"
        connection.outgoing = render_response(response, connection.closing, head_only)

    def _send(self, connection: _Connection) -> None:
        sent = connection.channel.send(connection.outgoing)
        connection.active = time.monotonic()
        connection.outgoing = connection.outgoing[sent:]

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection.channel.fileno(), None)
        self.selector.unregister(connection.channel)
        connection.channel.close()
