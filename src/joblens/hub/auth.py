"""Authentication of nodes: by a MAC, keyed with the node's token or with a key in a munge credential.

It is verified on the head of a request, before any of its body is buffered.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from joblens.core.errors import ConfigError, MalformedError, sentence
from joblens.core.files import NO_ROOM, make_folder, publish_once, unfinished_name
from joblens.hub.responses import Refused
from joblens.hub.settings import HubSettings
from joblens.wire.mac import FIELD, MUNGE, SCHEME, Head, Signer, digest_of, is_same, make_token, parse_head

if TYPE_CHECKING:
    import asyncio  # imported lazily: `joblens hub token` does not need it

    from joblens.hub.requests import Request

_FIELD = FIELD.lower().encode()
_SHORTEST_KEY = 16
_UNMUNGE_SECONDS = 10.0
_MOST_UNMUNGE = 8  # at once
_MOST_OF_ONE = 64  # credentials of one origin that wait to be checked
_PAUSE = 0.05  # seconds from a refused credential to the check of the next one of the same origin
_MOST_CREDENTIALS = 20_000
_MOST_SIGNERS = 20_000
_LONGEST_CREDENTIAL = 8192
_Decoded = TypeVar("_Decoded")
_KEYS = "ENCODE_HOST,ENCODE_TIME,TTL,UID,LENGTH"


class Sender(NamedTuple):
    cluster: str
    node: str


def is_ours(uid: int | None) -> bool:
    """Whether it is root or the user of this process, who can read its files anyway."""
    return uid in (0, os.geteuid())


def read_key(path: str) -> bytes:
    with open(path, "rb") as file:
        key = file.read(4096).strip()
    if len(key) < _SHORTEST_KEY:
        raise ConfigError(
            f"the key is shorter than {_SHORTEST_KEY} bytes; create one with: openssl rand -hex 32", path
        )
    if os.stat(path).st_mode & 0o077:
        raise ConfigError("the key file is readable by others; run chmod 600 on it", path)
    return key


def own_key(home: Path, made: str = "") -> bytes:
    """Return the key of a hub without hub.key_file, created once in its folder. Raises OSError, ConfigError.

    `made`: the key to write if there is none. It is returned too if the disk is full.
    """
    path = home / "key"
    if not path.exists():
        made = made or secrets.token_hex(32)
        make_folder(home)
        try:
            _write_key(path, made)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return made.encode()
    return read_key(str(path))


def _write_key(path: Path, made: str) -> None:
    unfinished = unfinished_name(str(path))
    try:
        with open(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w"
        ) as file:
            file.write(made + "\n")
        publish_once(unfinished, str(path))  # of two processes that race, one succeeds
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise


class Claim(NamedTuple):
    """The claimed sender of a request, and the proof."""

    head: Head
    signed: tuple[str, bytes, int]  # input of the MAC
    mac: bytes
    credential: str  # of munge; "": signed with the node's token

    @property
    def sender(self) -> Sender:
        return Sender(self.head.cluster, self.head.node)


def read_claim(request: Request) -> Claim:
    """Raises Refused."""
    kind, _, words = request.fields.get(b"authorization", b"").partition(b" ")
    if kind.decode("latin-1") not in (SCHEME, MUNGE):
        raise Refused(401, "no token", _HOW if kind != b"Bearer" else _NO_BEARER)
    credential, _, mac = words.rpartition(b" ")
    if bool(credential) != (kind.decode("latin-1") == MUNGE):
        raise Refused(401, "no token", f"Authorization is {SCHEME} MAC, or {MUNGE} CREDENTIAL MAC")
    signed = f"{request.method} {request.path}", request.fields.get(_FIELD, b""), request.length
    return Claim(read_head(request), signed, mac, credential.decode("latin-1"))


def read_head(request: Request) -> Head:
    """Raises Refused."""
    try:
        return parse_head(request.fields.get(_FIELD, b""))
    except MalformedError as error:
        raise Refused(401, "no token", sentence(error)) from None


_HOW = (
    "authentication required: set push.token_file or push.munge on the node; an agent on the hub's machine "
    "that runs as root or as the hub's user needs neither, with an address such as http://127.0.0.1:9478"
)
_NO_BEARER = "this hub does not accept tokens, only MACs made with them: update joblens on the node"


class Gate:
    """Authenticates requests."""

    def __init__(self, key: bytes, munge: Munge | None) -> None:
        self.key, self._munge = key, munge
        self._signers: dict[Sender, Signer] = {}  # of authenticated nodes

    def check(self, claim: Claim) -> Signer | None:
        """Return the signer for the response, None if munge has to be asked first. Raises Refused."""
        if not claim.credential:
            return self._check_token(claim)
        if self._munge is None:
            raise Refused(401, "no munge", "munge is not enabled on this hub: set hub.munge there")
        known = self._munge.recall(claim.credential)
        return None if known is None else check_known(claim, known)

    def _check_token(self, claim: Claim) -> Signer:
        sender = claim.sender
        signer = self._signers.get(sender) or Signer(make_token(self.key, *sender).encode())
        check_mac(claim, signer, "the token of that node: joblens hub token NODE --cluster CLUSTER prints it")
        if len(self._signers) >= _MOST_SIGNERS:
            self._signers.clear()
        self._signers[sender] = signer
        return signer

    async def ask(self, claim: Claim, place: str) -> Signer:
        """As `check`, asking munge. `place`: the origin of the request. Raises Refused."""
        assert self._munge is not None  # noqa: S101
        return check_known(claim, await self._munge.check(claim.credential, place))


def check_mac(claim: Claim, signer: Signer, what: str) -> None:
    if not is_same(claim.mac, signer.mac(*claim.signed).encode()):
        sender = claim.sender
        words = f"node {sender.node} of cluster {sender.cluster}: not signed with {what}"
        raise Refused(401, "wrong token", words)


def check_known(claim: Claim, known: Known) -> Signer:
    if known.sender != claim.sender:
        raise other_node(known.sender, claim.sender)
    check_mac(claim, known.signer, "what the munge credential holds")
    return known.signer


def other_node(proved: Sender, claimed: Sender) -> Refused:
    return Refused(
        403,
        "wrong node",
        f"authenticated as node {proved.node} of cluster {proved.cluster}, which cannot send as "
        f"{claimed.node} of {claimed.cluster}",
    )


def check_body(head: Head, body: bytes) -> None:
    """Raises Refused with 503, as the sender's copy is intact and can be sent again."""
    if digest_of(body) != head.digest:
        raise Refused(503, "damaged", "checksum mismatch: the batch was damaged in transit; retry", 1.0)


class Known(NamedTuple):
    sender: Sender
    signer: Signer  # with the key that its requests are signed with
    until: float


class MungeQueue:
    """Credentials that wait to be decoded by munged."""

    def __init__(self, socket: str = "") -> None:
        self._socket = socket
        self._turns: asyncio.Semaphore | None = None
        # By origin with a check in progress, or one that was refused a moment ago.
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    async def ask(self, credential: str, place: str, parse: Callable[[int, bytes], _Decoded]) -> _Decoded:
        """Decode a credential, which takes a process: one at a time for each origin. `parse` gets the exit
        code of unmunge and its output. Raises Refused."""
        import asyncio

        if len(credential) > _LONGEST_CREDENTIAL:
            raise _refuse("is too long")
        await self._wait(place)
        pause = 0.0
        try:
            if self._turns is None:
                self._turns = asyncio.Semaphore(_MOST_UNMUNGE)
            async with self._turns:
                code, text = await self._unmunge(credential)
            return parse(code, text)
        except Refused as refused:
            pause = _PAUSE if refused.status in (401, 403) else 0.0
            raise
        finally:
            asyncio.get_running_loop().call_later(pause, self._call_next, place)

    async def _wait(self, place: str) -> None:
        """Wait for the other credentials of the same origin. Raises Refused.

        Invalid ones are recognised only by the check. The next one, and the one to drop
        when there are too many, are chosen at random, so that no sender is locked out for long.
        """
        import asyncio

        waiting = self._waiting.get(place)
        if waiting is None:
            self._waiting[place] = []
            return
        if len(waiting) >= _MOST_OF_ONE:
            ended = _pop_any(waiting)
            if not ended.done():
                words = "too many munge credentials from this origin; retry later"
                ended.set_exception(Refused(429, "too many credentials", words, 1.0))
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled() and turn.exception() is None:  # its turn had just come
                self._call_next(place)
            raise

    def _call_next(self, place: str) -> None:
        waiting = self._waiting[place]
        while waiting:
            turn = _pop_any(waiting)
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[place]

    async def _unmunge(self, credential: str) -> tuple[int, bytes]:
        """Return the exit code, which is munge's error number, and the output."""
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
            raise Refused(503, "munge failed", "munged does not respond", retry=10) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return process.returncode or 0, text


class Munge:
    """Valid credentials that munged has decoded. Each contains a key that only its sender knows: a captured
    credential is useless without it."""

    def __init__(self, settings: HubSettings) -> None:
        self._settings, self._queue = settings, MungeQueue(settings.munge_socket)
        self._known: dict[str, Known] = {}  # by digest

    def recall(self, credential: str) -> Known | None:
        """Return a credential that was decoded before: munged decodes each only once. Raises Refused."""
        known = self._known.get(digest_of(credential.encode()))
        if known is not None and time.time() > known.until:
            raise _refuse("is expired")
        return known

    async def check(self, credential: str, place: str) -> Known:
        """Decode a credential, perhaps sent twice: munged decodes it only once. Raises Refused."""
        return await self._queue.ask(
            credential, place, lambda *found: self.recall(credential) or self._learn(credential, *found)
        )

    def _learn(self, credential: str, code: int, text: bytes) -> Known:
        facts, payload = parse_unmunge(code, text)
        sender, secret = read_payload(payload)
        self._check(sender, facts)
        now = time.time()
        if len(self._known) >= _MOST_CREDENTIALS:
            self._known = {key: known for key, known in self._known.items() if known.until > now}
        known = Known(sender, Signer(secret), facts.until)
        if len(self._known) < _MOST_CREDENTIALS:
            self._known[digest_of(credential.encode())] = known
        return known

    def _check(self, sender: Sender, facts: Facts) -> None:
        """Apply the rules. Raises Refused, with the setting that would allow it."""
        rules, node = self._settings, sender.node
        if facts.uid not in rules.munge_uids:
            allowed = [*rules.munge_uids, facts.uid]
            words = f"the munge credential is of uid {facts.uid}, which may not send"
            raise Refused(403, "wrong munge user", f"{words}; hub.munge_uids = {allowed} would allow it")
        if rules.munge_clusters and sender.cluster not in rules.munge_clusters:
            words = f"nodes of cluster {sender.cluster} may not send by munge"
            raise Refused(403, "wrong cluster", f"{words}: hub.munge_clusters does not name it")
        same = node.partition(".")[0] == facts.host.partition(".")[0]
        if not same and not rules.munge_any_host and f"{node}={facts.host}" not in rules.munge_hosts:
            raise Refused(
                403,
                "wrong node",
                f"the munge credential of node {node} was made on host {facts.host}: "
                f'hub.munge_hosts = ["{node}={facts.host}"] would allow it, or node = "{facts.host}" in the '
                "settings of that machine",
            )


def _pop_any(waiting: list[asyncio.Future[None]]) -> asyncio.Future[None]:
    return waiting.pop(secrets.randbelow(len(waiting)))


class Facts(NamedTuple):
    host: str
    uid: int
    until: float


# Exit codes, from munge.h.
_SUCCESS, _SOCKET, _TIMEOUT = 0, 6, 7
_EXIT = {
    15: "is expired",
    16: "is from the future: check the clocks",
    17: "was used before",
    18: "is for another user than the hub's: set push.munge_uid of the node to the hub's uid",
}


def parse_unmunge(code: int, text: bytes) -> tuple[Facts, bytes]:
    """Parse unmunge(1): lines `KEY: words (number)`, an empty line, the payload. Raises Refused."""
    if code in (_SOCKET, _TIMEOUT):
        raise Refused(503, "munge failed", "munged is not running on the hub's machine", retry=10)
    if code != _SUCCESS:
        raise _refuse(_EXIT.get(code, "is not valid"))
    top, _, payload = text.partition(b"\n\n")
    lines = [line.partition(":") for line in top.decode("latin-1").split("\n")]
    facts = {name.strip(): value.strip() for name, _, value in lines}
    try:
        until = _in_brackets(facts["ENCODE_TIME"]) + int(facts["TTL"])
        found = Facts(facts["ENCODE_HOST"].partition(" ")[0], _in_brackets(facts["UID"]), float(until))
        return found, payload[: int(facts["LENGTH"])]
    except (KeyError, ValueError, OverflowError):
        raise Refused(503, "munge failed", "unexpected output of unmunge", retry=10) from None


def _in_brackets(text: str) -> int:
    return int(text.rpartition("(")[2].rstrip(")"))


def read_payload(payload: bytes) -> tuple[Sender, bytes]:
    """Return the sender, and the key of its requests. Raises Refused."""
    try:
        cluster, node, secret = payload.decode().split("\0")
    except ValueError:
        raise _refuse("does not contain a cluster, a node and a key") from None
    if len(secret) < _SHORTEST_KEY:
        raise _refuse("contains a key that is too short")
    return Sender(cluster, node), secret.encode()


def _refuse(what: str) -> Refused:
    return Refused(401, "wrong munge credential", f"the munge credential {what}")
