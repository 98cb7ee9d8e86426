"""A sender's connection: requests one after the other, in bounded memory and time.

Only the head of a request is read at first, at most 16 KiB. If it does not authenticate the sender, the
connection is closed: no part of a body is buffered, decompressed or parsed before the sender is known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from joblens.core.log_limiter import LogLimiter
from joblens.hub.auth import Claim, Gate, Sender, check_body, is_ours, other_node, read_claim, read_head
from joblens.hub.limits import Authenticated, Unauthenticated, place_of
from joblens.hub.receive import Receiver
from joblens.hub.requests import LARGEST_HEAD, Request, is_literal, parse_head
from joblens.hub.responses import MALFORMED, TOO_LARGE, Refused, Response, render_response
from joblens.hub.settings import HubSettings
from joblens.wire.header import BatchId
from joblens.wire.mac import Signer, make_token
from joblens.wire.peers import Peers, is_loopback, network_of

_END = b"\r\n\r\n"
_READ_AHEAD = 65_536  # bytes of later requests that are buffered while one is answered
_MOST_BAD = 3  # malformed batches in a row
_IDLE = 300.0  # seconds until an idle connection is closed
_MOST_DROPPED = 49_152  # bytes that are read and dropped after the last response, so that it arrives
_LAST_SECONDS = 2.0  # for reading them
BATCH_PATH, CHECK_PATH, TOKEN_PATH = "/v1/batch", "/v1/check", "/v1/token"
PASSED_ON = {b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip", b"origin", b"sec-fetch-site"}
_PLAIN = "text/plain; charset=utf-8"
_READERS = Sender("", "")  # all readers of pages


class Page(NamedTuple):
    answer: Response
    content_type: str


class Server(Protocol):
    """State that all connections share: joblens.hub.server.Hub."""

    settings: HubSettings
    receiver: Receiver
    notes: LogLimiter
    gate: Gate
    connections: set[Connection]
    unauthenticated: Unauthenticated
    authenticated: Authenticated
    peers: Peers
    shared: memoryview  # the common read buffer: allocating one per read costs more than the read
    page: Callable[[Request], Page]

    def check_reader(self, request: Request, uid: Callable[[], int | None]) -> None: ...


class Connection(asyncio.BufferedProtocol):
    def __init__(self, server: Server, address: str) -> None:
        self._server, self._address = server, address
        self._buffer = bytearray()
        self._request: Request | None = None
        self._claim: Claim | None = None  # of the batch that is being received
        self._signer: Signer | None = None  # for the response, once the sender is authenticated
        self._early: Response | Refused | None = None  # sent when the whole request is received
        self._skip = 0  # remaining bytes of the request that are dropped
        self._held = 0
        self._room = server.receiver.room
        self._advancing = self._busy = False
        self._ended = False  # the other side sends no more
        self._stuck = False  # the other side does not read its responses
        self._paused = False
        self._closing = 0.0  # time of the last response, after which input is dropped
        self._dropped = 0
        self._bad = 0
        self._authenticated = False
        self._uid: tuple[int | None] | None = None
        self._begun = 0.0  # when the first byte of the current request arrived
        self._begun_ns = 0
        self.active = time.monotonic()

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        self._server.connections.add(self)
        self._server.unauthenticated.add(self, network_of(self._address).hex())

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._server.unauthenticated.discard(self)
        self._server.authenticated.discard(self)
        if not self._busy:  # else it is released when the journal has written the batch
            self._release()
        self._buffer.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the common buffer: its content is copied before the next connection reads."""
        return self._server.shared if self._authenticated else self._server.shared[:LARGEST_HEAD]

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport.is_closing():
            return
        if self._closing:
            self._dropped += nbytes
            if self._dropped > _MOST_DROPPED:
                self._transport.abort()
            return
        self._buffer += self._server.shared[:nbytes]
        self._advance()

    def eof_received(self) -> bool:
        """Keep the connection open until what was received is answered, which TLS does not support."""
        self._ended = True
        secure = self._transport.get_extra_info("ssl_object") is not None
        return (self._busy or self._stuck) and not secure

    def pause_writing(self) -> None:
        self._stuck = True

    def resume_writing(self) -> None:
        self._stuck = False
        self._advance()

    # Requests

    def _advance(self) -> None:
        """Process the received data as far as possible."""
        if self._advancing:  # called recursively, for an immediate response
            return
        self._advancing = True
        try:
            while not self._busy and not self._stuck and not self._is_closing():
                if self._request is None and not self._read_head():
                    break
                if not self._busy and self._request is not None and not self._read_body():
                    break
        except Refused as refused:
            self._reject(refused)
        finally:
            self._advancing = False
        if self._ended and not self._busy and not self._stuck:
            self._transport.close()
        self._balance()

    def _is_closing(self) -> bool:
        return bool(self._closing) or self._transport.is_closing()

    def _balance(self) -> None:
        """Pause reading while a response is due and enough of later requests is buffered."""
        enough = _READ_AHEAD if self._authenticated else 0
        full = (self._busy or self._stuck) and len(self._buffer) > enough and not self._closing
        if full != self._paused and not self._transport.is_closing():
            self._paused = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _read_head(self) -> bool:
        buffer = self._buffer
        if not buffer:
            return False
        if not self._begun:
            self._begun, self._begun_ns = time.monotonic(), time.time_ns()
        end = buffer.find(_END, 0, LARGEST_HEAD)
        if end < 0:
            if len(buffer) >= LARGEST_HEAD or not buffer[0:1].isalpha():
                raise Refused(400, "not HTTP", "not a valid request")
            self._server.unauthenticated.hold(self, len(buffer))
            return False
        self._request = parse_head(bytes(buffer[:end]))
        del buffer[: end + len(_END)]
        self._identify(self._request)
        return True

    def _identify(self, request: Request) -> None:
        """Authenticate a request before any of its body is buffered. Raises Refused."""
        if (request.method, request.path) in (("POST", BATCH_PATH), ("GET", CHECK_PATH)):
            claim = read_claim(request)
            signer = self._server.gate.check(claim)
            if signer is not None:
                self._admit(request, claim, signer)
            else:
                self._busy = True
                self._task = asyncio.get_running_loop().create_task(self._ask_munge(request, claim))
        else:
            self._server.check_reader(request, lambda: self._reader(request))
            self._set_authenticated(_READERS)
            self._show(request)

    async def _ask_munge(self, request: Request, claim: Claim) -> None:
        try:
            signer = await self._server.gate.ask(claim, self._place())
            self._busy = False
            self._admit(request, claim, signer)
        except Refused as refused:
            self._reject(refused)
        self._advance()

    def _place(self) -> str:
        """Return the user of this machine, or the remote address, for limits by origin."""
        uid = self._peer_uid()
        if uid is not None:
            return f"uid {uid}"
        return "loopback" if is_loopback(self._address) else self._address

    def _peer_uid(self) -> int | None:
        if self._uid is None:
            holder = self._server.peers.holder(self._transport.get_extra_info("socket"))
            self._uid = (holder if isinstance(holder, int) else None,)
        return self._uid[0]

    def _reader(self, request: Request) -> int | None:
        """Return the uid of the sender, None for forwarded requests: those of a proxy, and those that a web
        page makes a browser send, which name a host (DNS rebinding)."""
        fields = request.fields
        if fields.keys() & PASSED_ON or not is_literal(fields.get(b"host", b"localhost")):
            return None
        return self._peer_uid()

    def _set_authenticated(self, who: Sender) -> None:
        """Do not close it to make room for others while it is one of the newest of its sender."""
        if not self._authenticated:
            self._authenticated = True
            self._server.unauthenticated.discard(self)
            self._server.authenticated.add(self, who, who is _READERS)

    def demote(self) -> None:
        """Lose priority: the same sender has newer connections."""
        self._authenticated = False
        self._server.unauthenticated.add(self, network_of(self._address).hex())

    def _admit(self, request: Request, claim: Claim, signer: Signer) -> None:
        """Accept a signed request, which may be a replay: known batches and `/v1/check` are answered, but do
        not authenticate the connection."""
        self._claim, self._signer = claim, signer
        self._server.unauthenticated.hold(self, 0)
        if request.path == CHECK_PATH:
            self._finish(Response(200, '{"accepted":true}\n'), request.keep and not request.length)
            return
        receiver, is_new = self._server.receiver, self._server.receiver.is_new(_batch(claim))
        self._room = receiver.room if is_new else receiver.repeat_room
        if not self._authenticated and is_new:
            self._set_authenticated(claim.sender)
        most = self._server.settings.batch_bytes
        if request.length > most:
            self._early = Refused(413, TOO_LARGE, f"the batch exceeds hub.batch_bytes, {most} bytes")
            if request.length > 4 * most:
                raise self._early
        else:
            self._early = receiver.repeated(_batch(claim))
        if request.fields.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._early is not None:
            self._skip = request.length

    def _read_body(self) -> bool:
        request, claim = self._request, self._claim
        assert request is not None  # noqa: S101
        assert claim is not None  # noqa: S101
        if self._skip:
            some = min(self._skip, len(self._buffer))
            del self._buffer[:some]
            self._skip -= some
            if self._skip:
                return False
        if self._early is not None:
            early, self._early = self._early, None
            if isinstance(early, Refused):
                self._refuse(early)
            else:
                self._finish(early, request.keep)
            return True
        if not self._hold(min(len(self._buffer), request.length), claim.sender):
            self._early = Refused(503, "no room", "the hub is overloaded; retry later", 2.0)
            self._skip = request.length
            return self._read_body()
        if len(self._buffer) < request.length:
            return False
        body = bytes(self._buffer[: request.length])
        del self._buffer[: request.length]
        self._take(claim, body)
        return True

    def _hold(self, size: int, sender: Sender) -> bool:
        """Account for the received bytes, not for the announced length, so that announcing blocks no one."""
        more = size - self._held
        if more > 0:
            if not self._room.take(more, sender):
                self._release()
                return False
            self._held = size
        return True

    def _take(self, claim: Claim, body: bytes) -> None:
        self._busy = True
        try:
            check_body(claim.head, body)
            header = self._server.receiver.examine(body)
            _compare(claim, header.batch)
            self._server.receiver.store(header, body, self._begun_ns, self._offset(claim), self._done)
        except Refused as refused:
            self._refuse(refused)

    def _done(self, answer: Response) -> None:
        """Respond: the journal has written the batch, or failed."""
        self._bad = 0
        self._finish(answer, self._request is not None and self._request.keep)
        self._advance()

    def _offset(self, claim: Claim) -> float:
        """Return the hub's clock minus the sender's: time of the first byte minus time of sending."""
        return self._begun_ns / 1e9 - claim.head.sent

    # Responses

    def _show(self, request: Request) -> None:
        page = self._token_page(request) if request.path == TOKEN_PATH else self._server.page(request)
        self._finish(page.answer, request.keep and not request.length, page.content_type)

    def _token_page(self, request: Request) -> Page:
        """Serve an agent on this machine that runs as root or as the hub's user. Raises Refused."""
        if not is_ours(self._reader(request)):
            raise Refused(401, "no token", "only root and the hub's user on the same machine get a token")
        head = read_head(request)
        return Page(Response(200, make_token(self._server.gate.key, head.cluster, head.node) + "\n"), _PLAIN)

    def _refuse(self, refused: Refused) -> None:
        """Refuse a batch. Close the connection after several malformed ones or a wrong identity."""
        self._count(refused)
        self._bad += refused.status == 400
        keep = refused.status not in (401, 403) and self._bad < _MOST_BAD
        self._finish(refused.answer(), keep and self._request is not None and self._request.keep)

    def _reject(self, refused: Refused) -> None:
        self._count(refused, "; connection closed")
        self._finish(refused.answer(), keep=False)

    def _count(self, refused: Refused, more: str = "") -> None:
        self._server.receiver.refused[refused.reason] += 1
        if refused.status not in (404, 429):
            topic = f"{place_of(self._address)} {refused.reason}"
            self._server.notes.say(topic, f"{self._address}: {refused.status}: {refused.text}{more}")

    def _finish(self, answer: Response, keep: bool, content_type: str = "") -> None:
        head_only = self._request is not None and self._request.method == "HEAD"
        claim, signer = self._claim, self._signer
        self._release()
        self._busy, self._request, self._claim, self._signer, self._begun = False, None, None, None, 0.0
        self.active = time.monotonic()
        if self._is_closing():
            return
        sign = partial(signer.answer_mac, claim.mac) if claim is not None and signer is not None else None
        self._transport.write(render_response(answer, keep, content_type, head_only, sign))
        if not keep:
            self._drain()

    def _drain(self) -> None:
        """Drain the input: closing with unread data would lose the response (RFC 9112, 9.6)."""
        self._closing = time.monotonic()
        self._buffer.clear()
        self._server.unauthenticated.hold(self, 0)
        if self._ended:
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()
        self._balance()

    def _release(self) -> None:
        if self._held:
            assert self._claim is not None  # noqa: S101
            self._room.give_back(self._held, self._claim.sender)
            self._held = 0

    # Time

    def check_timeouts(self, now: float) -> None:
        """Close the connection if a request is incomplete, or the sender idle, for too long."""
        if self._closing:
            unsent = self._transport.get_write_buffer_size()
            if now - self._closing > (self._server.settings.timeout if unsent else _LAST_SECONDS):
                self._transport.abort()
        elif self._stuck and now - self.active > self._server.settings.timeout:
            self._transport.abort()
        elif self._begun and not self._busy and now - self._begun > self._server.settings.timeout:
            late = Refused(408, "too slow", "timed out waiting for the rest of the request")
            self._reject(late)
        elif not self._begun and now - self.active > (
            _IDLE if self._authenticated else self._server.settings.timeout
        ):
            self._transport.close()

    def close(self) -> None:
        self._transport.close()


def _batch(claim: Claim) -> BatchId:
    return BatchId(claim.head.cluster, claim.head.node, claim.head.boot, claim.head.sequence)


def _compare(claim: Claim, batch: BatchId) -> None:
    """Check that the batch is the one that was signed. Raises Refused."""
    if batch[:2] != claim.sender:
        raise other_node(claim.sender, Sender(*batch[:2]))
    if batch != _batch(claim):
        raise Refused(400, MALFORMED, "the batch has another boot or sequence number than the request")
