"""One sender's connection: requests one after the other, in bounded memory and in bounded time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from joblens.hub.auth import Munge, Sender, check_token
from joblens.hub.header import Header
from joblens.hub.limits import Notes
from joblens.hub.receive import Receiver
from joblens.hub.refusals import Answer, Refused
from joblens.hub.requests import LARGEST_HEAD, Request, parse_head, render_answer
from joblens.hub.settings import HubSettings

_END = b"\r\n\r\n"
_READ_AHEAD = 65_536  # bytes of later requests that are taken while one is answered
_MOST_BAD = 3  # batches that cannot be read, one after the other
_IDLE = 300.0  # seconds that a silent connection is kept
BATCH_PATH = "/v1/batch"


class Page(NamedTuple):
    answer: Answer
    content_type: str


class Door(Protocol):
    """What all connections have in common."""

    settings: HubSettings
    receiver: Receiver
    notes: Notes
    key: bytes
    munge: Munge | None
    connections: set[Connection]
    shared: memoryview  # that all read into: to make one for each reading costs more than the reading
    page: Callable[[Request], Page]


class Connection(asyncio.BufferedProtocol):
    def __init__(self, door: Door, address: str) -> None:
        self._door, self._address = door, address
        self._buffer = bytearray()
        self._request: Request | None = None
        self._refused: Refused | None = None  # said when all of the request has come
        self._skip = 0  # bytes of it still to come that nobody needs
        self._held, self._held_as_stranger = 0, True
        self._advancing = self._busy = False
        self._ended = False  # nothing more comes
        self._stuck = False  # the other side does not fetch its answers
        self._paused = False
        self._bad = 0
        self._proved: tuple[bytes, Sender] | None = None
        self._begun = 0.0  # when the request under way began to come
        self._begun_ns = 0
        self.active = time.monotonic()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        self._door.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.connections.discard(self)
        if not self._busy:  # else it is given back when the journal is through with it
            self._give_back()
        self._buffer.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        """One for all: what is in it is taken out before the next one reads."""
        return self._door.shared

    def buffer_updated(self, nbytes: int) -> None:
        if self._transport.is_closing():
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
            while not self._busy and not self._stuck and not self._transport.is_closing():
                if self._request is None and not self._read_head():
                    break
                if not self._read_body():
                    break
        except Refused as refused:
            self._cut_off(refused)
        finally:
            self._advancing = False
        if self._ended and not self._busy and not self._stuck:
            self._transport.close()
        self._balance()

    def _balance(self) -> None:
        """Reading stops while an answer is due and enough has come of what follows."""
        full = (self._busy or self._stuck) and len(self._buffer) > _READ_AHEAD
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
            return False
        request = parse_head(bytes(buffer[:end]))
        del buffer[: end + len(_END)]
        self._request = request
        if request.length:
            self._admit(request)
        return True

    def _admit(self, request: Request) -> None:
        """Before its body is taken: what is refused already is not kept in memory."""
        if request.length > self._door.settings.batch_bytes:
            self._refused = Refused(
                413, "too large", f"a batch can have {self._door.settings.batch_bytes} bytes here"
            )
            if request.length > 4 * self._door.settings.batch_bytes:
                raise self._refused
        elif request.method != "POST" or request.path != BATCH_PATH:
            self._refused = Refused(404, "no such page", f"batches are taken at {BATCH_PATH}")
        self._held_as_stranger = self._proved is None
        if request.fields.get(b"expect", b"").lower() == b"100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._refused is not None:
            self._skip = request.length

    def _read_body(self) -> bool:
        request = self._request
        assert request is not None  # noqa: S101
        if self._skip:
            some = min(self._skip, len(self._buffer))
            del self._buffer[:some]
            self._skip -= some
            if self._skip:
                return False
        if self._refused is not None:
            refused, self._refused = self._refused, None
            self._refuse(refused)
            return True
        if not self._hold(min(len(self._buffer), request.length)):
            self._refused = Refused(503, "no room", "the hub has more to do than it can; wait", 2.0)
            self._skip = request.length
            return self._read_body()
        if len(self._buffer) < request.length:
            return False
        body = bytes(self._buffer[: request.length])
        del self._buffer[: request.length]
        if request.path == BATCH_PATH and request.method == "POST":
            self._take(request, body)
        else:
            self._show(request)
        return True

    def _hold(self, size: int) -> bool:
        """What has come of a body, and not what is announced: nobody keeps others out by announcing."""
        more = size - self._held
        if more > 0:
            if not self._door.receiver.room.take(more, self._held_as_stranger):
                self._give_back()
                return False
            self._held = size
        return True

    def _take(self, request: Request, body: bytes) -> None:
        self._busy = True
        try:
            header = self._door.receiver.examine(body)
            if self._prove(request, header):
                self._store(request, header, body)
            else:
                task = asyncio.get_running_loop().create_task(self._prove_by_munge(request, header, body))
                self._task = task  # the loop itself holds tasks only weakly
        except Refused as refused:
            self._refuse(refused)

    def _store(self, request: Request, header: Header, body: bytes) -> None:
        self._door.receiver.store(header, body, self._begun_ns, self._offset(request), self._done)

    def _done(self, answer: Answer) -> None:
        """The journal is through with it."""
        self._bad = 0
        self._finish(answer, self._request is not None and self._request.keep)
        self._advance()

    def _offset(self, request: Request) -> float | None:
        """The hub's clock minus the sender's: it says when it sent, we when that began to come."""
        try:
            sent = float(request.fields[b"x-joblens-sent"])
        except (KeyError, ValueError):
            return None
        offset = self._begun_ns / 1e9 - sent
        return offset if abs(offset) < 1e12 else None

    # Who sends

    def _prove(self, request: Request, header: Header) -> bool:
        """False if munge must be asked. Raises Refused."""
        sender = Sender(header.batch.cluster, header.batch.node)
        given = request.fields.get(b"authorization", b"")
        if self._proved == (given, sender) and not given.startswith(b"Munge "):
            return True
        if not self._door.key and self._door.munge is None:
            self._proved = given, sender
            return True
        kind, _, words = given.decode("latin-1").partition(" ")
        if kind == "Bearer" and self._door.key:
            check_token(self._door.key, words, sender)
        elif kind == "Munge" and self._door.munge is not None:
            known = self._door.munge.recall(words, self._address)
            if known is None:
                return False
            _check_node(known, sender)
        else:
            raise Refused(
                401, "no token", "a node must prove who it is: Authorization: Bearer TOKEN, or Munge"
            )
        self._proved = given, sender
        return True

    async def _prove_by_munge(self, request: Request, header: Header, body: bytes) -> None:
        assert self._door.munge is not None  # noqa: S101
        sender = Sender(header.batch.cluster, header.batch.node)
        given = request.fields[b"authorization"]
        try:
            known = await self._door.munge.check(given.decode("latin-1").partition(" ")[2], self._address)
            _check_node(known, sender)
            self._proved = given, sender
            self._store(request, header, body)
        except Refused as refused:
            self._refuse(refused)
            self._advance()

    # Answers

    def _show(self, request: Request) -> None:
        page = self._door.page(request)
        self._finish(page.answer, request.keep, page.content_type)

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
            topic = f"{self._address} {refused.reason}"
            self._door.notes.say(topic, f"{self._address}: {refused.status}: {refused.text}{more}")

    def _finish(self, answer: Answer, keep: bool, content_type: str = "") -> None:
        head_only = self._request is not None and self._request.method == "HEAD"
        self._give_back()
        self._busy, self._request, self._begun = False, None, 0.0
        self.active = time.monotonic()
        if self._transport.is_closing():
            return
        self._transport.write(render_answer(answer, keep, content_type, head_only))
        if not keep:
            self._transport.close()

    def _give_back(self) -> None:
        if self._held:
            self._door.receiver.room.give_back(self._held, self._held_as_stranger)
            self._held = 0

    # Time

    @property
    def proved(self) -> bool:
        return self._proved is not None

    def look_at_clock(self, now: float) -> None:
        """A request that does not come to its end, and a sender that is not there any more."""
        if self._stuck and now - self.active > self._door.settings.timeout:
            self._transport.abort()
        elif self._begun and not self._busy and now - self._begun > self._door.settings.timeout:
            late = Refused(408, "too slow", "the request did not come to its end in time")
            self._cut_off(late)
        elif not self._begun and now - self.active > _IDLE:
            self._transport.close()

    def close(self) -> None:
        self._transport.close()


def _check_node(known: Sender, sender: Sender) -> None:
    if known != sender:
        raise Refused(
            403, "wrong node", f"this is proved to be node {known.node}, and cannot send as {sender.node}"
        )
