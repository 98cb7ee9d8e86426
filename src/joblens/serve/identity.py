"""Who is asking: the kernel says so, or a munge credential or a personal token proves it.

Nothing else that a client sends about itself counts. A credential that is sent must be valid: there is no
fallback from it to the user of the connection.
"""

from __future__ import annotations

import hmac
import os
import time
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from starlette.datastructures import Headers

from joblens.hub.auth import MungeQueue, parse_unmunge
from joblens.hub.connection import PASSED_ON
from joblens.hub.requests import is_literal
from joblens.hub.responses import Refused
from joblens.serve.errors import ApiError
from joblens.serve.settings import ServeSettings
from joblens.serve.tokens import Tokens
from joblens.wire.peers import Holder

SOCKET, MUNGE, TOKEN, LOOPBACK = "socket", "munge", "token", "loopback"
PAYLOAD = b"joblens serve"  # of a munge credential for this service: one for another service is not accepted
_PASSED_ON = frozenset(name.decode() for name in PASSED_ON)
_HOW = (
    "authentication required: use the Unix socket of the service, or send Authorization: Bearer TOKEN with a "
    "token of joblens token create"
)
_PROXY = (
    "this request came through a proxy or from a web page, so the user of the connection does not count: "
    "send Authorization: Bearer TOKEN"
)
_INVALID = "the token is not valid, was revoked or has expired: create one with joblens token create"


class Peer(NamedTuple):
    """The other end of a connection, as the kernel reports it."""

    unix: bool
    holder: Holder  # a uid of this machine, else its network

    @property
    def uid(self) -> int | None:
        return self.holder if isinstance(self.holder, int) else None

    @property
    def place(self) -> str:
        """For limits and the log."""
        return place_of(self.holder)


def place_of(holder: Holder) -> str:
    return f"uid {holder}" if isinstance(holder, int) else holder.hex()


class Identity(NamedTuple):
    """A user of this machine, and how that is known."""

    uid: int
    how: str
    user: str = ""  # of a token, which is not valid for another user with the same uid


class Proven:
    """The munge credential that a connection has sent before. munged decodes each only once, so a captured
    one is of no use on another connection."""

    def __init__(self) -> None:
        self._digest, self._identity, self._until = b"", Identity(-1, MUNGE), 0.0

    def recall(self, credential: str, now: float) -> Identity | None:
        same = hmac.compare_digest(_digest(credential), self._digest)
        return self._identity if same and now < self._until else None

    def keep(self, credential: str, identity: Identity, until: float) -> None:
        self._digest, self._identity, self._until = _digest(credential), identity, until


def _digest(credential: str) -> bytes:
    return sha256(credential.encode("utf-8", "replace")).digest()


class Identify:
    """Finds the user of a request."""

    def __init__(self, tokens: Tokens, munge: MungeQueue | None, trusts_loopback: bool = False) -> None:
        self._tokens, self._munge = tokens, munge
        self.trusts_loopback = trusts_loopback  # for the service's own user

    async def __call__(self, peer: Peer, headers: Headers, proven: Proven) -> Identity:
        """Raises ApiError."""
        given = headers.getlist("authorization")
        if len(given) > 1:
            raise ApiError(400, "there is more than one field Authorization")
        if given:
            return await self._by_credential(given[0], peer, proven)
        if peer.unix or peer.uid is not None:
            return _by_peer(peer, headers, self.trusts_loopback)
        raise ApiError(401, _HOW)

    async def _by_credential(self, given: str, peer: Peer, proven: Proven) -> Identity:
        scheme, _, credential = given.partition(" ")
        if scheme.lower() == "bearer":
            token = self._tokens.check(credential.strip(), time.time())
            if token is None:
                raise ApiError(401, _INVALID)
            return Identity(token.uid, TOKEN, token.user)
        if scheme.lower() != "munge":
            raise ApiError(401, "Authorization is Bearer TOKEN, or Munge CREDENTIAL")
        if self._munge is None:
            raise ApiError(401, "munge is not enabled for this service: set serve.munge there")
        known = proven.recall(credential.strip(), time.time())
        return known or await _by_munge(self._munge, credential.strip(), peer.place, proven)


def _by_peer(peer: Peer, headers: Headers, trusts_loopback: bool) -> Identity:
    """On TCP only for the user of a service of their own store: a relay of root's would lend its identity."""
    if _PASSED_ON & set(headers.keys()):
        raise ApiError(401, _PROXY)
    if peer.uid is None or peer.uid < 0:
        raise ApiError(401, _HOW)
    if peer.unix:
        return Identity(peer.uid, SOCKET)
    if not is_literal(headers.get("host", "localhost").encode("latin-1", "replace")):
        raise ApiError(401, _PROXY)
    if not trusts_loopback or peer.uid != os.geteuid():
        raise ApiError(401, _HOW)
    return Identity(peer.uid, LOOPBACK)


def is_personal(settings: ServeSettings, home: Path, state: Path, uid: int) -> bool:
    """Whether it is the service of one user for their own store, with nothing in front of it."""
    if uid == 0 or settings.certificate or settings.insecure:
        return False
    return state.parent == home and home.stat().st_uid == uid


async def _by_munge(queue: MungeQueue, credential: str, place: str, proven: Proven) -> Identity:
    try:
        facts, payload = await queue.ask(credential, place, parse_unmunge)
    except Refused as refused:
        raise ApiError(refused.status, _for_readers(refused.text), int(refused.retry)) from None
    if payload.strip() != PAYLOAD:
        raise ApiError(
            401, f"the munge credential is not for this service: make it with munge -s '{PAYLOAD.decode()}'"
        )
    identity = Identity(facts.uid, MUNGE)
    proven.keep(credential, identity, facts.until)
    return identity


def _for_readers(text: str) -> str:
    return text.partition(": set push.munge_uid")[0].replace("the hub", "the service")
