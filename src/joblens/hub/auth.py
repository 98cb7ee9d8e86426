"""Who sends: a node proves it with the token that belongs to it, or with munge."""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from joblens.errors import ConfigError
from joblens.hub.refusals import Refused

if TYPE_CHECKING:
    import asyncio  # else late: it takes memory that who only makes tokens does not have

_SHORTEST_KEY = 16
_UNMUNGE_SECONDS = 10.0
_MOST_UNMUNGE = 8  # at once
_MOST_CREDENTIALS = 20_000
_LONGEST_CREDENTIAL = 8192
_KEYS = "ENCODE_HOST,ENCODE_TIME,TTL,UID,LENGTH"


class Sender(NamedTuple):
    cluster: str
    node: str


def read_key(path: str) -> bytes:
    with open(path, "rb") as file:
        key = file.read(4096).strip()
    if len(key) < _SHORTEST_KEY:
        raise ConfigError(
            f"the key is shorter than {_SHORTEST_KEY} bytes; make one: openssl rand -hex 32", path
        )
    if os.stat(path).st_mode & 0o077:
        raise ConfigError("others can read the key file; chmod 600 it", path)
    return key


def make_token(key: bytes, cluster: str, node: str) -> str:
    return hmac.new(key, f"{cluster}\0{node}".encode(), hashlib.sha256).hexdigest()


def check_token(key: bytes, token: str, sender: Sender) -> None:
    """Raises Refused."""
    if not hmac.compare_digest(token.encode("utf-8", "replace"), make_token(key, *sender).encode()):
        raise Refused(
            403, "wrong token", f"the token is not that of node {sender.node} of cluster {sender.cluster}"
        )


class Munge:
    """Credentials that munged has vouched for: while they are good, and from where they came first."""

    def __init__(self, uids: tuple[int, ...], any_host: bool, socket: str = "") -> None:
        self._uids, self._any_host, self._socket = uids, any_host, socket
        self._known: dict[bytes, tuple[Sender, str, float]] = {}  # by digest: who, from where, until when
        self._turns: asyncio.Semaphore | None = None

    def recall(self, credential: str, address: str) -> Sender | None:
        """Who it is of if that is known already. munged says it only once of each. Raises Refused."""
        known = self._known.get(_digest(credential))
        if known is None:
            return None
        sender, first, until = known
        if time.time() > until:
            raise _refuse("is expired")
        if address != first:
            raise _refuse("was used from another address before")
        return sender

    async def check(self, credential: str, address: str) -> Sender:
        """Raises Refused."""
        if len(credential) > _LONGEST_CREDENTIAL:
            raise _refuse("is too long")
        sender = self.recall(credential, address)
        if sender is None:
            if self._turns is None:
                import asyncio

                self._turns = asyncio.Semaphore(_MOST_UNMUNGE)
            async with self._turns:
                code, text = await self._unmunge(credential)
            # The same one may have come twice at once, and munged told only the first who it is.
            sender = self.recall(credential, address) or self._learn(credential, address, code, text)
        return sender

    def _learn(self, credential: str, address: str, code: int, text: bytes) -> Sender:
        facts, payload = parse_unmunge(code, text)
        sender = read_payload(payload)
        if facts.uid not in self._uids:
            raise Refused(
                403, "wrong munge user", f"the munge credential is of uid {facts.uid}, who may not send"
            )
        if not self._any_host and sender.node.partition(".")[0] != facts.host.partition(".")[0]:
            raise Refused(403, "wrong node", f"the munge credential was not made on node {sender.node}")
        if len(self._known) >= _MOST_CREDENTIALS:
            now = time.time()
            self._known = {key: known for key, known in self._known.items() if known[2] > now}
        if len(self._known) < _MOST_CREDENTIALS:
            self._known[_digest(credential)] = sender, address, facts.until
        return sender

    async def _unmunge(self, credential: str) -> tuple[int, bytes]:
        """Its exit code, which is munge's own number of the error, and what it prints."""
        import asyncio

        command = ["unmunge", f"--keys={_KEYS}"]
        if self._socket:
            command.append(f"--socket={self._socket}")
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
            )
        except OSError:
            raise Refused(503, "munge failed", "the hub cannot run unmunge", retry=10) from None
        try:
            async with asyncio.timeout(_UNMUNGE_SECONDS):
                text, _ = await process.communicate(credential.encode("latin-1", "replace"))
        except TimeoutError:
            raise Refused(503, "munge failed", "munged does not answer the hub", retry=10) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return process.returncode or 0, text


class Facts(NamedTuple):
    host: str
    uid: int
    until: float


# munge.h: what its programs exit with.
_SUCCESS, _SOCKET, _TIMEOUT = 0, 6, 7
_EXIT = {15: "is expired", 16: "is from the future: a clock is wrong", 17: "was used before"}


def parse_unmunge(code: int, text: bytes) -> tuple[Facts, bytes]:
    """What unmunge(1) prints: lines `KEY: words (number)`, an empty line, and the payload. Raises Refused."""
    if code in (_SOCKET, _TIMEOUT):
        raise Refused(503, "munge failed", "munged does not run on the hub's machine", retry=10)
    if code != _SUCCESS:
        raise _refuse(_EXIT.get(code, "is not valid"))
    top, _, payload = text.partition(b"\n\n")
    lines = [line.partition(":") for line in top.decode("latin-1").split("\n")]
    facts = {name.strip(): value.strip() for name, _, value in lines}
    try:
        until = _in_brackets(facts["ENCODE_TIME"]) + int(facts["TTL"])
        found = Facts(facts["ENCODE_HOST"].partition(" ")[0], _in_brackets(facts["UID"]), float(until))
        return found, payload[: int(facts["LENGTH"])]
    except (KeyError, ValueError):
        raise Refused(503, "munge failed", "unmunge answers otherwise than expected", retry=10) from None


def _in_brackets(text: str) -> int:
    return int(text.rpartition("(")[2].rstrip(")"))


def read_payload(payload: bytes) -> Sender:
    try:
        cluster, node = payload.decode().split("\0")
    except ValueError:
        raise _refuse("does not name a cluster and a node") from None
    return Sender(cluster, node)


def _refuse(what: str) -> Refused:
    return Refused(401, "wrong munge credential", f"the munge credential {what}")


def _digest(credential: str) -> bytes:
    return hashlib.sha256(credential.encode("utf-8", "replace")).digest()
