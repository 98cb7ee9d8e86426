"""One sender's connection: requests one after the other, in bounded memory and in bounded time.

Of a request first only the head is taken, 16 KiB at most. Who proves nothing by it is answered and cut off:
nothing of a body is kept, decompressed or parsed before its sender is known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from joblens.core.log_limiter import LogLimiter
from joblens.hub.auth import Claim, Gate, Sender, check_body, is_ours, other_node, read_claim, read_head
from joblens.hub.limits import Proven, Strangers, place_of
from joblens.hub.receive import Receiver
from joblens.hub.requests import LARGEST_HEAD, Request, is_literal, parse_head
from joblens.hub.responses import MALFORMED, TOO_LARGE, Refused, Response, render_response
from joblens.hub.settings import HubSettings
from joblens.wire.header import BatchId
from joblens.wire.mac import Signer, make_token
from joblens.wire.peers import Peers, is_loopback, network_of

_END = b"\r\n\r\n"
_READ_AHEAD = 65_536  # bytes of later requests that are taken while one is answered
_MOST_BAD = 3  # batches that cannot be read, one after the other
_IDLE = 300.0  # seconds that a silent connection is kept
_MOST_DROPPED = 49_152  # bytes that are read after the last answer, so that it arrives
_LAST_SECONDS = 2.0  # for that
BATCH_PATH, CHECK_PATH, TOKEN_PATH = "/v1/batch", "/v1/check", "/v1/token"
_PASSED_ON = {b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip", b"origin", b"sec-fetch-site"}
_PLAIN = "text/plain; charset=utf-8"
_READERS = Sender("", "")  # of pages, all together


class Page(NamedTuple):
    answer: Response
    content_type: str


class MarkSocket(Protocol):
    """What all connections have in common."""

    settings: HubSettings
    receiver: Receiver
    notes: LogLimiter
    gate: Gate
    connections: set[Connection]
    strangers: Strangers
    proven: Proven
    peers: Peers
    shared: memoryview  # that all read into: to make one for each reading costs more than the reading
    page: Callable[[Request], Page]

    def check_reader(self, request: Request, uid: Callable[[], int | None]) -> None: ...


class Connection(asyncio.BufferedProtocol):
    def __init__(self, door: MarkSocket, address: str) -> None:
        self._door, self._address = door, address
        self._buffer = bytearray()
        self._request: Request | None = None
        self._claim: Claim | None = None  # of the batch that is on its way
        self._signer: Signer | None = None  # for the answer to who has proved who it is
        self._early: Response | Refused | None = None  # said when all of the request has come
        self._skip = 0  # bytes of it still to come that nobody needs
        self._held = 0
        self._advancing = self._busy = False
        self._ended = False  # nothing more comes
        self._stuck = False  # the other side does not fetch its answers
        self._paused = False
        self._closing = 0.0  # since when what comes is only dropped: the last answer is given
        self._dropped = 0
        self._bad = 0
        self._proved = False
        self._uid: tuple[int | None] | None = None
        self._begun = 0.0  # when the request under way began to come
        self._begun_ns = 0
        self.active = time.monotonic()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        self._door.connections.add(self)
        self._door.strangers.add(self, network_of(self._address).hex())

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.connections.discard(self)
        self._door.strangers.discard(self)
        self._door.proven.discard(self)
        if not self._busy:  # else it is given back when the journal is through with it
            self._give_back()
        self._buffer.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        """One for all: what is in it is taken out before the next one reads."""
        return self._door.shared if self._proved else self._door.shared[:LARGEST_HEAD]

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport.is_closing():
            return
        if self._closing:
            self._dropped += nbytes
            if self._dropped > _MOST_DROPPED:
                self._transport.abort()
            return
        self._buffer += self._door.shared[:nbytes]
        self._advance()

    def eof_received(self) -> bool:
        """The other side sends no more. What it has sent is still answered, which TLS cannot."""
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
        """As far as what has come allows."""
        if self._advancing:  # an answer that was known at once, from within
            return
        self._advancing = True
        try:
            while not self._busy and not self._stuck and not self._is_closing():
                if self._request is None and not self._read_head():
                    break
                if not self._busy and self._request is not None and not self._read_body():
                    break
        except Refused as refused:
            self._cut_off(refused)
        finally:
            self._advancing = False
        if self._ended and not self._busy and not self._stuck:
            self._transport.close()
        self._balance()

    def _is_closing(self) -> bool:
        return bool(self._closing) or self._transport.is_closing()

    def _balance(self) -> None:
        """Reading stops while an answer is due and enough has come of what follows."""
        enough = _READ_AHEAD if self._proved else 0
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
                raise Refused(400, "not HTTP", "this is not a request that joblens understands")
            self._door.strangers.hold(self, len(buffer))
            return False
        self._request = parse_head(bytes(buffer[:end]))
        del buffer[: end + len(_END)]
        self._identify(self._request)
        return True

    def _identify(self, request: Request) -> None:
        """Before anything of the body is kept. Raises Refused."""
        if (request.method, request.path) in (("POST", BATCH_PATH), ("GET", CHECK_PATH)):
            claim = read_claim(request)
            signer = self._door.gate.check(claim)
            if signer is not None:
                self._admit(request, claim, signer)
            else:
                self._busy = True
                self._task = asyncio.get_running_loop().create_task(self._ask_munge(request, claim))
        else:
            self._door.check_reader(request, lambda: self._reader(request))
            self._has_proved(_READERS)
            self._show(request)

    async def _ask_munge(self, request: Request, claim: Claim) -> None:
        try:
            signer = await self._door.gate.ask(claim, self._place())
            self._busy = False
            self._admit(request, claim, signer)
        except Refused as refused:
            self._cut_off(refused)
        self._advance()

    def _place(self) -> str:
        """A user of this machine, or a machine: nobody else can send from there."""
        uid = self._uid_there()
        if uid is not None:
            return f"uid {uid}"
        return "loopback" if is_loopback(self._address) else self._address

    def _uid_there(self) -> int | None:
        if self._uid is None:
            holder = self._door.peers.holder(self._transport.get_extra_info("socket"))
            self._uid = (holder if isinstance(holder, int) else None,)
        return self._uid[0]

    def _reader(self, request: Request) -> int | None:
        """Whose request it is. One that a proxy passes on is not the proxy's, nor one that a page makes a
        browser send its user's: such a page is of a host with a name, which it can let point to here."""
        fields = request.fields
        if fields.keys() & _PASSED_ON or not is_literal(fields.get(b"host", b"localhost")):
            return None
        return self._uid_there()

    def _has_proved(self, who: Sender) -> None:
        """It is not ended to make room for others, while it is one of the newest of its sender."""
        if not self._proved:
            self._proved = True
            self._door.strangers.discard(self)
            self._door.proven.add(self, who, who is _READERS)

    def demote(self) -> None:
        """The same sender has newer ones."""
        self._proved = False
        self._door.strangers.add(self, network_of(self._address).hex())

    def _admit(self, request: Request, claim: Claim, signer: Signer) -> None:
        """It is of whom it says, or was captured when that one sent it: what the hub has already, and a
        question that changes nothing, are answered, and prove nothing."""
        self._claim, self._signer = claim, signer
        self._door.strangers.hold(self, 0)
        if request.path == CHECK_PATH:
            self._finish(Response(200, '{"accepted":true}\n'), request.keep and not request.length)
            return
        if not self._proved and self._door.receiver.is_new(_batch(claim)):
            self._has_proved(claim.sender)
        most = self._door.settings.batch_bytes
        if request.length > most:
            self._early = Refused(413, TOO_LARGE, f"a batch can have {most} bytes here")
            if request.length > 4 * most:
                raise self._early
        else:
            self._early = self._door.receiver.repeated(_batch(claim))
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
            self._early = Refused(503, "no room", "the hub has more to do than it can; wait", 2.0)
            self._skip = request.length
            return self._read_body()
        if len(self._buffer) < request.length:
            return False
        body = bytes(self._buffer[: request.length])
        del self._buffer[: request.length]
        self._take(claim, body)
        return True

    def _hold(self, size: int, sender: Sender) -> bool:
        """What has come of a body, and not what is announced: nobody keeps others out by announcing."""
        more = size - self._held
        if more > 0:
            if not self._door.receiver.room.take(more, sender):
                self._give_back()
                return False
            self._held = size
        return True

    def _take(self, claim: Claim, body: bytes) -> None:
        self._busy = True
        try:
            check_body(claim.head, body)
            header = self._door.receiver.examine(body)
            _compare(claim, header.batch)
            self._door.receiver.store(header, body, self._begun_ns, self._offset(claim), self._done)
        except Refused as refused:
            self._refuse(refused)

    def _done(self, answer: Response) -> None:
        """The journal is through with it."""
        self._bad = 0
        self._finish(answer, self._request is not None and self._request.keep)
        self._advance()

    def _offset(self, claim: Claim) -> float:
        """The hub's clock minus the sender's: it says when it sent, we when that began to come."""
        return self._begun_ns / 1e9 - claim.head.sent

    # Answers

    def _show(self, request: Request) -> None:
        page = self._token_page(request) if request.path == TOKEN_PATH else self._door.page(request)
        self._finish(page.answer, request.keep and not request.length, page.content_type)

    def _token_page(self, request: Request) -> Page:
        """For an agent on this machine, of root or of the hub's own user. Raises Refused."""
        if not is_ours(self._reader(request)):
            raise Refused(401, "no token", "only root and the hub's own user on its machine are told")
        head = read_head(request)
        return Page(Response(200, make_token(self._door.gate.key, head.cluster, head.node) + "\n"), _PLAIN)

    def _refuse(self, refused: Refused) -> None:
        """A sender that only sends what cannot be read, or not as who it is, is sent away."""
        self._count(refused)
        self._bad += refused.status == 400
        keep = refused.status not in (401, 403) and self._bad < _MOST_BAD
        self._finish(refused.answer(), keep and self._request is not None and self._request.keep)

    def _cut_off(self, refused: Refused) -> None:
        self._count(refused, "; it is cut off")
        self._finish(refused.answer(), keep=False)

    def _count(self, refused: Refused, more: str = "") -> None:
        self._door.receiver.refused[refused.reason] += 1
        if refused.status not in (404, 429):
            topic = f"{place_of(self._address)} {refused.reason}"
            self._door.notes.say(topic, f"{self._address}: {refused.status}: {refused.text}{more}")

    def _finish(self, answer: Response, keep: bool, content_type: str = "") -> None:
        head_only = self._request is not None and self._request.method == "HEAD"
        claim, signer = self._claim, self._signer
        self._give_back()
        self._busy, self._request, self._claim, self._signer, self._begun = False, None, None, None, 0.0
        self.active = time.monotonic()
        if self._is_closing():
            return
        sign = partial(signer.answer_mac, claim.mac) if claim is not None and signer is not None else None
        self._transport.write(render_response(answer, keep, content_type, head_only, sign))
        if not keep:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """To close while something is unread would undo the answer (RFC 9112, 9.6): so some of it is read."""
        self._closing = time.monotonic()
        self._buffer.clear()
        self._door.strangers.hold(self, 0)
        if self._ended:
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()
        self._balance()

    def _give_back(self) -> None:
        if self._held:
            assert self._claim is not None  # noqa: S101
            self._door.receiver.room.give_back(self._held, self._claim.sender)
            self._held = 0

    # Time

    def look_at_clock(self, now: float) -> None:
        """A request that does not come to its end, and a sender that is not there any more."""
        if self._closing:
            unsent = self._transport.get_write_buffer_size()
            if now - self._closing > (self._door.settings.timeout if unsent else _LAST_SECONDS):
                self._transport.abort()
        elif self._stuck and now - self.active > self._door.settings.timeout:
            self._transport.abort()
        elif self._begun and not self._busy and now - self._begun > self._door.settings.timeout:
            late = Refused(408, "too slow", "the request did not come to its end in time")
            self._cut_off(late)
        elif not self._begun and now - self.active > (_IDLE if self._proved else self._door.settings.timeout):
            self._transport.close()

    def close(self) -> None:
        self._transport.close()


def _batch(claim: Claim) -> BatchId:
    return BatchId(claim.head.cluster, claim.head.node, claim.head.boot, claim.head.sequence)


def _compare(claim: Claim, batch: BatchId) -> None:
    """That the batch is the one that was signed for. Raises Refused."""
    if batch[:2] != claim.sender:
        raise other_node(claim.sender, Sender(*batch[:2]))
    if batch != _batch(claim):
        raise Refused(400, MALFORMED, "the batch has another boot or number than the request says")
