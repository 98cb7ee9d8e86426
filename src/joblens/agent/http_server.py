"""A small HTTP server in the agent's event loop: bounded connections, memory and CPU time.

It answers GET. On a Unix socket, where the kernel reports the peer's uid, it also accepts small bodies.

The standard library's http.server costs 7 MB and 50 ms of start-up, more than the rest of the agent, and a
thread.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from functools import partial
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from joblens.agent.event_loop import READ, WRITE, Events
from joblens.core.errors import ServerError, sentence
from joblens.wire.peers import Holder, Peers, unix_peer

_END = b"\r\n\r\n"
_LARGEST_REQUEST = 16_384
_MOST_CONNECTIONS, _MOST_OF_ONE = 128, 32
_BACKLOG = 128
_MOST_HOLDERS = 256  # with a share of their own
_MOST_UNREAD = 1 << 18
_AT_ONCE = 1 << 18  # bytes sent in one turn, so that a large page does not delay a tick
_LARGE_PAGE, _MOST_UNSENT = 1 << 16, 1 << 24
_IDLE_SECONDS = 60.0  # after which an idle connection is closed
_LONGEST_EXCHANGE = 60.0  # seconds for a request to arrive, or for an answer to be received
# Fraction of one core for all requests, and again for accepting connections. A holder has a third of it, or
# less if there are more than three.
_TIME_SHARE, _FEWEST_HOLDERS = 0.1, 3
_SAVED = 15.0  # seconds of unused budget that are kept
_SHORTEST_REST = 0.05
_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 409: "Conflict", 413: "Content Too Large", 429: "Too Many Requests",
}  # fmt: skip


class Request(NamedTuple):
    method: str
    path: str
    headers: Dict[str, str]  # names in lower case
    keep: bool = True  # the connection is kept open
    body: bytes = b""
    uid: int = -1  # of the peer, on a Unix socket
    pid: int = 0  # of the peer's process


class Response(NamedTuple):
    status: int
    content_type: str
    body: bytes


Answer = Callable[[Request], Response]


def parse_request(data: bytes) -> Optional[Request]:
    """None if it is not HTTP. What follows the empty line is ignored."""
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
    # RFC 9112, 9.3: in HTTP/1.0 the end of the connection is the end of the answer by default.
    keep = "keep-alive" in wishes if words[2] == "HTTP/1.0" else "close" not in wishes
    return Request(words[0], words[1].partition("?")[0], headers, keep)


def body_length(request: Request) -> int:
    """Return -1 if it is malformed or chunked."""
    text = request.headers.get("content-length", "0")
    chunked = "transfer-encoding" in request.headers
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and not chunked else -1


def render_head(response: Response, close: bool) -> bytes:
    head = (
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        f"Connection: {'close' if close else 'keep-alive'}\r\n"
    )
    if response.status == 401:
        head += "WWW-Authenticate: Bearer\r\n"
    return head.encode("latin-1") + b"\r\n"


class _Share:
    """One holder's connections and CPU time."""

    def __init__(self, rate: float, now: float) -> None:
        self.connections: Dict[int, _Connection] = {}
        self.seconds, self.since = rate * _SAVED, now
        self.is_resting, self.rests_until = False, 0.0

    def charge(self, seconds: float, rate: float, now: float) -> None:
        self.seconds = min(self.seconds + (now - self.since) * rate, rate * _SAVED) - seconds
        self.since = now
        if self.seconds < 0:
            self.rests_until = now + max(-self.seconds / rate, _SHORTEST_REST)

    def is_whole(self, rate: float, now: float) -> bool:
        return not self.connections and self.seconds + (now - self.since) * rate >= rate * _SAVED


class _Connection:
    def __init__(self, channel: socket.socket, share: _Share) -> None:
        self.channel, self.share = channel, share
        self.pid, self.uid = unix_peer(channel)
        self.incoming = b""
        self.partial = False  # part of a body has arrived
        self.head = self.body = b""  # of the answer
        self.sent = 0  # of both
        self.closing = False
        self.active = self.begun = time.monotonic()

    @property
    def is_answering(self) -> bool:
        return self.sent < len(self.head) + len(self.body)

    @property
    def wanted(self) -> int:
        busy = self.is_answering or (_END in self.incoming and not self.partial)
        return WRITE if busy else READ

    def is_over(self, now: float) -> bool:
        """Whether it is idle, or a request or an answer takes too long."""
        busy = self.is_answering or self.incoming
        return now - self.active > _IDLE_SECONDS or bool(busy and now - self.begun > _LONGEST_EXCHANGE)


class Server:
    """Listens at a host and port or at a Unix socket; bodies are accepted only there.

    Connections and CPU time are shared between holders: users of this machine, and addresses of others. A
    holder that has used up its share is not read from for a while, without effect on the others.
    """

    def __init__(
        self,
        events: Events,
        address: Union[Tuple[str, int], str],
        answer: Answer,
        most_body: int = 0,
    ) -> None:
        self.answer, self.most_body = answer, most_body
        self.evicted = 0
        self._events, self._peers = events, Peers()
        self._connections: Dict[int, _Connection] = {}
        self._shares: Dict[Holder, _Share] = {}
        self._resting: List[_Share] = []
        self._accepting = _Share(_TIME_SHARE, time.monotonic())  # cost of accepting, for all holders
        self.listener = _listen_at(address) if isinstance(address, str) else _listen(address)
        self.listener.setblocking(False)
        self._listen()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def _listen(self) -> None:
        self._events.add(self.listener, READ, self._accept_some, self._stop_listening)

    def _stop_listening(self) -> None:
        """Stop for a short time, or until accepting is within its budget again."""
        self._events.remove(self.listener)
        self._accepting.rests_until = max(self._accepting.rests_until, time.monotonic() + _SHORTEST_REST)
        self._rest(self._accepting)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._events.remove(self.listener)
        self.listener.close()
        self._peers.close()

    def wait(self) -> float:
        """Return the seconds until the first resting holder may go on."""
        if not self._resting:
            return float("inf")
        return max(min(share.rests_until for share in self._resting) - time.monotonic(), 0.0)

    def tend(self) -> None:
        """Called after each round of events."""
        if self._resting:
            self._wake(time.monotonic())

    def drop_silent(self) -> None:
        """Close idle connections, and forget holders without any."""
        now = time.monotonic()
        for connection in [it for it in self._connections.values() if it.is_over(now)]:
            self._drop(connection)
        rate = self._rate()
        self._shares = {who: it for who, it in self._shares.items() if not it.is_whole(rate, now)}

    def _wake(self, now: float) -> None:
        awake = [share for share in self._resting if share.rests_until <= now]
        self._resting = [share for share in self._resting if share.rests_until > now]
        for share in awake:
            share.is_resting = False
            if share is self._accepting:
                self._listen()
            for connection in share.connections.values():
                self._register(connection)

    def _rate(self) -> float:
        """Return the CPU share of one holder: a fixed part, less if there are many."""
        return _TIME_SHARE / max(len(self._shares), _FEWEST_HOLDERS)

    def _accept_some(self, events: int) -> None:
        begin = time.thread_time()
        connection = self._accept()
        now = time.monotonic()
        self._accepting.charge(time.thread_time() - begin, _TIME_SHARE, now)
        if self._accepting.rests_until > now:
            self._stop_listening()
        if connection is not None and not connection.share.is_resting:
            # Most have sent their request by now and can be answered at once.
            self._register(connection)
            self._serve(connection, READ)

    def _accept(self) -> Optional[_Connection]:
        try:
            channel, _ = self.listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # closed by the peer
            return None
        try:
            channel.setblocking(False)
            share = self._share(self._peers.holder(channel))
            connection = _Connection(channel, share)
        except OSError:  # closed before the peer could be identified
            channel.close()
            return None
        self._make_room(share)
        self._connections[channel.fileno()] = share.connections[channel.fileno()] = connection
        return connection

    def _share(self, holder: Holder) -> _Share:
        if holder not in self._shares and len(self._shares) >= _MOST_HOLDERS:
            self.drop_silent()
            if len(self._shares) >= _MOST_HOLDERS:
                holder = b""  # all further ones share one
        return self._shares.setdefault(holder, _Share(self._rate(), time.monotonic()))

    def _make_room(self, share: _Share) -> None:
        """Close an old connection of the holder itself or of one with the most, never of one with fewer."""
        count = len(share.connections)
        if count < _MOST_OF_ONE and len(self._connections) < _MOST_CONNECTIONS:
            return
        most = max(len(it.connections) for it in self._shares.values())
        heaviest = [it for it in self._shares.values() if len(it.connections) == most]
        chosen = [share] if count >= _MOST_OF_ONE or count == most else heaviest
        self._drop(min((c for it in chosen for c in it.connections.values()), key=lambda it: it.active))
        self.evicted += 1

    def _register(self, connection: _Connection) -> None:
        handle, failed = partial(self._serve, connection), partial(self._drop, connection)
        self._events.add(connection.channel, connection.wanted, handle, failed)

    def _serve(self, connection: _Connection, events: int) -> None:
        begin, share = time.thread_time(), connection.share
        free = self._exchange(connection, events)
        now = time.monotonic()
        share.charge(time.thread_time() - begin - free, self._rate(), now)
        if share.rests_until > now:
            self._rest(share)

    def _rest(self, share: _Share) -> None:
        for it in share.connections.values():
            self._events.remove(it.channel)
        if not share.is_resting:
            share.is_resting = True
            self._resting.append(share)

    def _exchange(self, connection: _Connection, events: int) -> float:
        """Answer one request per turn, and the next only after the peer has received that: nothing piles up.

        Return the seconds of making the answer that are not charged to the holder.
        """
        free = 0.0
        try:
            if events & READ:
                self._receive(connection)
            if not connection.is_answering:
                free = self._answer_next(connection)
            if connection.is_answering:
                self._send(connection)
        except BlockingIOError:
            pass
        except OSError:  # closed by the peer
            connection.closing, connection.head, connection.body = True, b"", b""
        if connection.closing and not connection.is_answering:
            with suppress(OSError):  # closing with unread data would reset the connection and lose the answer
                connection.channel.recv(_MOST_UNREAD)
            self._drop(connection)
        else:
            self._events.change(connection.channel, connection.wanted)
        return free

    def _receive(self, connection: _Connection) -> None:
        data = connection.channel.recv(_LARGEST_REQUEST)
        connection.active = time.monotonic()
        if not connection.incoming:
            connection.begun = connection.active
        connection.incoming += data
        connection.closing = not data

    def _answer_next(self, connection: _Connection) -> float:
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
                return self._respond(connection, request, length)
        elif len(connection.incoming) > _LARGEST_REQUEST:
            return self._respond(connection, None)
        return 0.0

    def _respond(self, connection: _Connection, request: Optional[Request], length: int = 0) -> float:
        begin = time.thread_time()
        if request is None or length < 0:
            response = Response(400, "text/plain", b"Malformed request.\n")
        elif length > self.most_body:
            response = Response(413, "text/plain", f"The limit is {self.most_body} bytes.\n".encode())
        elif request.method not in (("GET", "HEAD", "POST") if self.most_body else ("GET", "HEAD")):
            response = Response(405, "text/plain", b"Only GET is supported.\n")
        else:
            response = self.answer(request)
        # The page cache limits rendering, and the next request benefits from it.
        free = 0.0 if self.most_body else time.thread_time() - begin
        connection.closing = request is None or not request.keep or response.status in (400, 405, 413)
        head_only = request is not None and request.method == "HEAD"
        connection.head = render_head(response, connection.closing)
        connection.body, connection.sent = b"" if head_only else response.body, 0
        connection.begun = time.monotonic()
        if len(response.body) >= _LARGE_PAGE:
            self._limit_unsent(response.body)
        return free

    def _limit_unsent(self, newest: bytes) -> None:
        """Close the oldest of many slow connections: each keeps an old page in memory."""
        while True:
            slow = [it for it in self._connections.values() if it.is_answering and it.body is not newest]
            pages = {id(it.body): len(it.body) for it in slow}
            if not slow or sum(pages.values()) + len(newest) <= _MOST_UNSENT:
                return
            self._drop(min(slow, key=lambda it: it.begun))
            self.evicted += 1

    def _send(self, connection: _Connection) -> None:
        head, sent = connection.head, connection.sent
        rest = memoryview(connection.body)[max(sent - len(head), 0) :][:_AT_ONCE]
        connection.sent += connection.channel.sendmsg([head[sent:], rest])
        connection.active = time.monotonic()
        if not connection.is_answering:
            connection.head = connection.body = b""
            connection.sent = 0

    def _drop(self, connection: _Connection) -> None:
        number = connection.channel.fileno()
        self._connections.pop(number, None)
        connection.share.connections.pop(number, None)
        self._events.remove(connection.channel)
        connection.channel.close()


def _listen(address: Tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    try:
        return socket.create_server(address, family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        why = sentence(error).partition(" (while attempting")[0]  # which repeats the address
        raise ServerError(f"cannot listen on {address[0]}:{address[1]}: {why}") from None


def _listen_at(name: str) -> socket.socket:
    """Raises OSError if the name is taken."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(name)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
