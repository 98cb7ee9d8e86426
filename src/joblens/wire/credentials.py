"""Credentials of a node: a token from a file, a token from a hub on the same machine, or munge."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Dict, Mapping, Optional, Tuple

from joblens.core.config import PushSettings, split_url
from joblens.core.errors import ConfigError, OutsideError, ServerError, printable
from joblens.wire.mac import FIELD, Head, digest_of, is_answer, render_head, sign

if TYPE_CHECKING:
    from joblens.wire.http_client import Answer, Client

_MUNGE_SECONDS = 5.0
# A credential is valid for five minutes by munged's default. Making and checking one takes a process each.
_CREDENTIAL_SECONDS = 120.0
_AGAIN_SECONDS = 10.0  # until a new one is made, after the hub had no time to check one
_MOST_WORDS = 400
_TOKEN_PATH = "/v1/token"  # noqa: S105


def read_token(path: str) -> Optional[bytes]:
    if not path:
        return None
    with open(path, "rb") as file:
        token = file.read(4096).strip()
    if not token:
        raise ConfigError("the token file is empty", path)
    if os.stat(path).st_mode & 0o077:
        raise ConfigError("others can read the token file; chmod 600 it", path)
    return token


def bearer(path: Optional[str]) -> Dict[str, str]:
    """Return the header with the token of a reader of pages; without a file, none."""
    if not path:
        return {}
    with open(path, encoding="latin-1") as file:  # the encoding of a header
        return {"Authorization": f"Bearer {file.read(4096).strip()}"}


class Proof:
    """Authenticates requests to the hub. Used by one thread only."""

    def __init__(self, settings: PushSettings, cluster: str, node: str) -> None:
        self._settings, self._cluster, self._node = settings, cluster, node
        self._secret = b""  # with which requests are signed
        self._stamp: Optional[Tuple[int, ...]] = None
        self._credential = ""
        # The previous credential and its key, until the hub has accepted the current one.
        self._before: Optional[Tuple[str, bytes]] = None
        self._made = 0.0
        self._local = bool(settings.url) and _is_here(split_url(settings.url).host)
        self._asked = False
        if settings.token_file:
            self._read_token()  # reports an invalid file at once

    def prepare(self, client: Client) -> None:
        """Without settings for it, request this node's token from a hub on the same machine.

        The hub gives it to root and to its own user. The kernel reports the users at both ends, so that no
        other process that listens at that port is trusted. Raises OSError or ServerError.
        """
        if self._settings.munge or self._settings.token_file or not self._local or self._asked:
            return
        answer = client.get(_TOKEN_PATH, {FIELD: render_head(self._head("-", 0, b""))})
        if answer.status in (408, 425, 429) or answer.status >= 500:  # temporary
            words = printable(answer.body.decode("utf-8", "replace").strip().partition("\n")[0][:_MOST_WORDS])
            raise ServerError(f"{_TOKEN_PATH} answers {answer.status}: {words}")
        self._check_holder(client.peer())  # whatever it answers: batches follow
        self._asked, self._made = True, time.monotonic()
        self._secret = answer.body.strip() if answer.status == 200 else b""

    def _check_holder(self, uid: Optional[int]) -> None:
        if uid is None:
            raise ServerError("nothing is sent: the hub's user is unknown; set push.token_file")
        if uid not in (0, os.geteuid(), self._settings.hub_uid):
            do = f"set push.token_file, or push.hub_uid = {uid} if that is the hub's user"
            raise ServerError(f"nothing is sent: the process at that port belongs to uid {uid}; {do}")

    def has_answered(self, request: Mapping[str, str], answer: Answer) -> bool:
        """Verify that the response to a signed request is signed with the same secret."""
        return is_answer(self._secret, request, *answer)

    def sign(self, target: str, boot: str, sequence: int, body: bytes = b"") -> Dict[str, str]:
        """Return the fields of a request such as `POST /v1/batch`. Raises OSError or JoblensError.

        A changed token file is read again.
        """
        if self._settings.munge:
            if not self._credential or time.monotonic() - self._made > _CREDENTIAL_SECONDS:
                before = (self._credential, self._secret) if self._credential else None
                self._made, self._credential = time.monotonic(), self._run_munge()
                self._before = before
        elif self._settings.token_file:
            found = os.stat(self._settings.token_file)
            if (found.st_ino, found.st_mtime_ns, found.st_size) != self._stamp:
                self._read_token()
        head = self._head(boot, sequence, body)
        if not self._secret:
            return {FIELD: render_head(head)}
        return sign(self._secret, target, head, len(body), self._credential)

    def _head(self, boot: str, sequence: int, body: bytes) -> Head:
        return Head(self._cluster, self._node, boot, sequence, time.time(), digest_of(body))

    def was_refused(self) -> bool:
        """Drop the credential. Return whether a new one may be accepted: a restarted hub cannot check an old
        one, and another hub has another key."""
        old = bool(self._credential) or self._asked
        self._credential, self._asked = "", False
        return old and time.monotonic() - self._made > 1.0

    def was_taken(self) -> None:
        self._before = None

    def was_put_off(self) -> bool:
        """Go back to the previous credential, which the hub knows, if there is one."""
        if self._before is None:
            return False
        (self._credential, self._secret), self._before = self._before, None
        self._made = time.monotonic() - _CREDENTIAL_SECONDS + _AGAIN_SECONDS
        return True

    def _read_token(self) -> None:
        path = self._settings.token_file
        found = os.stat(path)
        self._secret = read_token(path) or b""
        self._stamp = (found.st_ino, found.st_mtime_ns, found.st_size)

    def _run_munge(self) -> str:
        secret = os.urandom(32).hex()
        user = self._settings.munge_uid
        payload = f"{self._cluster}\0{self._node}\0{secret}".encode()
        restricted = f"--restrict-uid={os.geteuid() if user < 0 else user}"
        credential = make_credential(payload, self._settings.munge_socket, restricted)
        self._secret = secret.encode()
        return credential


def make_credential(payload: bytes, munge_socket: str = "", *options: str) -> str:
    """Return a munge credential of this process' user. Raises OutsideError, or OSError without munge."""
    import subprocess

    command = ["munge", *options, *([f"--socket={munge_socket}"] if munge_socket else [])]
    try:
        # By standard input: an argument cannot contain NUL.
        done = subprocess.run(
            command, input=payload, capture_output=True, timeout=_MUNGE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise OutsideError(f"munge did not answer within {_MUNGE_SECONDS:g} s") from None
    if done.returncode:
        first = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise OutsideError(f"munge made no credential: {first}" if first else "munge made no credential")
    return done.stdout.decode("ascii", "replace").strip()


def _is_here(host: str) -> bool:
    return host.startswith("127.") or host in ("localhost", "::1")
