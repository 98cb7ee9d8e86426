"""A small HTTP server in the agent's own loop: one page per request, bounded in all ways.

It answers GET. On a socket of Unix, where the kernel tells who asks, it can take small bodies as well.

The standard library's http.server costs 7 MB and 50 ms of start-up, which is more than the rest of the
agent, and a thread.
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
_MOST_HOLDERS = 256  # that are remembered
_MOST_UNREAD = 1 << 18
_AT_ONCE = 1 << 18  # bytes that are sent in one turn: a tick is not late for a large page
_LARGE_PAGE, _MOST_UNSENT = 1 << 16, 1 << 24
_IDLE_SECONDS = 60.0  # that a silent connection is kept
_LONGEST_EXCHANGE = 60.0  # seconds for a request to arrive, or for an answer to be fetched
# Of one core, for all that is asked, and again for accepting connections. A holder has a third of it, or less
# where there are more than three.
_TIME_SHARE, _FEWEST_HOLDERS = 0.1, 3
_SAVED = 15.0  # seconds whose part is kept for later
_SHORTEST_REST = 0.05
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
    """What one holder has of a server: its connections, and time on a core."""

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
        self.partial = False  # a body is on its way
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
        """Whether it is silent, or a request or an answer takes too long."""
        busy = self.is_answering or self.incoming
        return now - self.active > _IDLE_SECONDS or bool(busy and now - self.begun > _LONGEST_EXCHANGE)


class Server:
    """At a host and a port, or at the name of a socket of Unix; only there with bodies of some size.

    Connections, and time on a core, are shared between holders: users of this machine, and addresses of
    others. Who has used up their share is not read from for a while, and nobody else notices.
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
        self._door = _Share(_TIME_SHARE, time.monotonic())  # what accepting takes, of all together
        self.listener = _listen_at(address) if isinstance(address, str) else _listen(address)
        self.listener.setblocking(False)
        self._listen()

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    def _listen(self) -> None:
        self._events.add(self.listener, READ, self._accept_some, self._stop_listening)

    def _stop_listening(self) -> None:
        """For a short time, or until accepting has time again."""
        self._events.remove(self.listener)
        self._door.rests_until = max(self._door.rests_until, time.monotonic() + _SHORTEST_REST)
        self._rest(self._door)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._events.remove(self.listener)
        self.listener.close()
        self._peers.close()

    def wait(self) -> float:
        """Seconds until a holder has had its rest."""
        if not self._resting:
            return float("inf")
        return max(min(share.rests_until for share in self._resting) - time.monotonic(), 0.0)

    def tend(self) -> None:
        """After each round of events."""
        if self._resting:
            self._wake(time.monotonic())

    def drop_silent(self) -> None:
        """Now and then: connections that nobody uses, and holders that have none."""
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
            if share is self._door:
                self._listen()
            for connection in share.connections.values():
                self._register(connection)

    def _rate(self) -> float:
        """Of each holder: a few have a fixed part, many share what all may take."""
        return _TIME_SHARE / max(len(self._shares), _FEWEST_HOLDERS)

    def _accept_some(self, events: int) -> None:
        begin = time.thread_time()
        connection = self._accept()
        now = time.monotonic()
        self._door.charge(time.thread_time() - begin, _TIME_SHARE, now)
        if self._door.rests_until > now:
            self._stop_listening()
        if connection is not None and not connection.share.is_resting:
            # Most have sent their request by now: their place is free again for the next one.
            self._register(connection)
            self._serve(connection, READ)

    def _accept(self) -> Optional[_Connection]:
        try:
            channel, _ = self.listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):  # given up by the other side
            return None
        try:
            channel.setblocking(False)
            share = self._share(self._peers.holder(channel))
            connection = _Connection(channel, share)
        except OSError:  # it has gone, before anybody could know who it was
            channel.close()
            return None
        self._make_room(share)
        self._connections[channel.fileno()] = share.connections[channel.fileno()] = connection
        return connection

    def _share(self, holder: Holder) -> _Share:
        if holder not in self._shares and len(self._shares) >= _MOST_HOLDERS:
            self.drop_silent()
            if len(self._shares) >= _MOST_HOLDERS:
                holder = b""  # further ones have one together
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
        """One answer per turn, and no further one while that is not fetched: nothing piles up.

        Returns the seconds that making the answer took where that is not the asker's to pay.
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
        except OSError:  # the other side has hung up
            connection.closing, connection.head, connection.body = True, b"", b""
        if connection.closing and not connection.is_answering:
            with suppress(OSError):  # who closes with something unread takes the answer back
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
            response = Response(400, "text/plain", b"This is not a request that joblens understands.\n")
        elif length > self.most_body:
            response = Response(413, "text/plain", f"At most {self.most_body} bytes are taken.\n".encode())
        elif request.method not in (("GET", "HEAD", "POST") if self.most_body else ("GET", "HEAD")):
            response = Response(405, "text/plain", b"Only GET is answered here.\n")
        else:
            response = self.answer(request)
        # Pages limit by themselves how often they are rendered, and whoever asks next gains from it.
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
        """Who reads slowly keeps an old page in memory: of many such pages the oldest are given up."""
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
        why = sentence(error).partition(" (while attempting")[0]  # which only says the address again
        raise ServerError(f"cannot listen on {address[0]}:{address[1]}: {why}") from None


def _listen_at(name: str) -> socket.socket:
    """Raises OSError if another has it."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(name)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener
