"""A small HTTP server in the agent's own loop: one page per request, bounded in all ways.

It answers GET. On a socket of Unix, where the kernel tells who asks, it can take small bodies as well.

The standard library's http.server costs 7 MB and 50 ms of start-up, which is more than the rest of the
agent, and a thread.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from contextlib import suppress
from typing import Callable, Dict, NamedTuple, Optional, Tuple, Union

from joblens.errors import ServerError, sentence

_END = b"\r\n\r\n"
_LARGEST_REQUEST = 16_384
_MOST_CONNECTIONS = 64
_MOST_UNREAD = 1 << 18
_PATIENCE = 60.0  # seconds that a silent connection is kept
_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 409: "Conflict", 413: "Content Too Large", 429: "Too Many Requests",
}  # fmt: skip


class Request(NamedTuple):
    method: str
    path: str
    headers: Dict[str, str]  # names in lower case
    keep: bool = True  # the connection, for a next request
    body: bytes = b""
    uid: int = -1  # who asks, where the kernel tells
    pid: int = 0  # the process that does


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes


Answer = Callable[[Request], Response]


def parse_request(data: bytes) -> Optional[Request]:
    """None if it is not HTTP. What follows the empty line is not read."""
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


def body_length(request: Request) -> int:
    """-1 if that cannot be understood."""
    text = request.headers.get("content-length", "0")
    chunked = "transfer-encoding" in request.headers
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and not chunked else -1


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
        self.pid, self.uid = peer(channel)
        self.incoming = b""
        self.partial = False  # a body is on its way
        self.outgoing = b""
        self.closing = False
        self.active = time.monotonic()


class Server:
    """At a host and a port, or at the name of a socket of Unix; only there with bodies of some size."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        address: Union[Tuple[str, int], str],
        answer: Answer,
        most_body: int = 0,
    ) -> None:
        self.selector, self.answer, self.most_body = selector, answer, most_body
        self._connections: Dict[int, _Connection] = {}
        self.listener = _listen_at(address) if isinstance(address, str) else _listen(address)
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
            with suppress(OSError):  # who closes with something unread takes the answer back
                connection.channel.recv(_MOST_UNREAD)
            self._drop(connection)
            return
        busy = connection.outgoing or (_END in connection.incoming and not connection.partial)
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
            head, _, rest = connection.incoming.partition(_END)
            request = parse_request(head)
            length = body_length(request) if request and request.method == "POST" and self.most_body else 0
            connection.partial = len(rest) < length <= self.most_body
            if not connection.partial:
                connection.incoming = rest[max(length, 0) :]
                body = rest[: max(length, 0)] if length <= self.most_body else b""
                if request is not None:
                    request = request._replace(body=body, uid=connection.uid, pid=connection.pid)
                self._respond(connection, request, length)
        elif len(connection.incoming) > _LARGEST_REQUEST:
            self._respond(connection, None)

    def _respond(self, connection: _Connection, request: Optional[Request], length: int = 0) -> None:
        if request is None or length < 0:
            response = Response(400, "text/plain", b"This is not a request that joblens understands.\n")
        elif length > self.most_body:
            response = Response(413, "text/plain", f"At most {self.most_body} bytes are taken.\n".encode())
        elif request.method not in (("GET", "HEAD", "POST") if self.most_body else ("GET", "HEAD")):
            response = Response(405, "text/plain", b"Only GET is answered here.\n")
        else:
            response = self.answer(request)
        connection.closing = request is None or not request.keep or response.status in (400, 405, 413)
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


def _listen(address: Tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_MOST_CONNECTIONS)
    except (OSError, OverflowError) as error:
        why = sentence(error).partition(" (while attempting")[0]  # which only says the address again
        raise ServerError(f"cannot listen on {address[0]}:{address[1]}: {why}") from None


def _listen_at(name: str) -> socket.socket:
    """Raises OSError if another has it."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(name)
        listener.listen(_MOST_CONNECTIONS)
    except BaseException:
        listener.close()
        raise
    return listener


def peer(channel: socket.socket) -> Tuple[int, int]:
    """Process and user at the other end, by the kernel's word (unix(7)); 0 and -1 where it has none."""
    if channel.family != socket.AF_UNIX:
        return 0, -1
    pid, uid, _ = struct.unpack("iII", channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid), int(uid)
