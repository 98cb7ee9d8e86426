"""Requests to a service: its address, who is asking, and what its refusals mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress

from joblens.api.source import AmbiguousError, NotFoundError
from joblens.core.config import split_server
from joblens.core.errors import JoblensError, OutsideError, ServerError, UsageError, printable, sentence
from joblens.core.json_file import parse_json, render_json
from joblens.wire.http_client import Answer, Client

BASE = "/api/v1"
MUNGE_PAYLOAD = b"joblens serve"  # which the service requires
CONNECT_SECONDS, ANSWER_SECONDS = 2.0, 30.0
_LARGEST = 1 << 28  # bytes of a response
_LONGEST_MESSAGE = 400
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.~")
_TOKEN = re.compile(rb"[\x21-\x7e]+")
Pairs = Iterable[tuple[str, object]]


class Connection:
    """A connection to a service, for one thread. `name` is its address as the user wrote it."""

    def __init__(
        self, address: str, token_file: str = "", ca_file: str = "", answer_seconds: float = ANSWER_SECONDS
    ) -> None:
        self.name = printable(address, 200)
        self._url = split_server(address, name="the address of the service")
        if ca_file and not self._url.secure:
            raise UsageError("a CA file needs an address that begins with https://")
        self._has_token = bool(token_file)
        self._credential = _bearer(token_file) if token_file else ""
        if self._credential:
            self._require_secrecy()
        self._begun = ""  # the request whose response was not read yet
        self._client = Client(self._url, answer_seconds, ca_file, _LARGEST, CONNECT_SECONDS)

    def begin(self, path: str, query: Pairs = ()) -> None:
        """Send a request whose response `get` returns later. An error is raised by that, too."""
        target = BASE + path + encode_query(query)
        with suppress(OSError, ServerError):
            self._client.begin_get(target, self._headers())
            self._begun = target

    def get(self, path: str, query: Pairs = ()) -> bytes:
        """Return the body of a response. Raises LookupError, UsageError or ServerError."""
        target = BASE + path + encode_query(query)
        answer = self._request(target)
        if answer.status == 401 and self._may_use_munge():
            self._credential = f"Munge {_make_credential()}"
            answer = self._request(target)
        return self._body(answer)

    def post(self, path: str, body: object) -> bytes:
        """Raises as `get`."""
        data = render_json(body)
        return self._body(self._exchange(lambda: self._client.post(BASE + path, self._headers(), data)))

    def delete(self, path: str) -> bytes:
        """Raises as `get`."""
        return self._body(self._exchange(lambda: self._client.delete(BASE + path, self._headers())))

    def close(self) -> None:
        self._client.close()

    def _request(self, target: str) -> Answer:
        begun, self._begun = self._begun, ""
        if begun and begun != target:
            self._client.close()
        client = self._client
        return self._exchange(
            client.finish if begun == target else lambda: client.get(target, self._headers())
        )

    def _exchange(self, send: Callable[[], Answer]) -> Answer:
        try:
            answer = send()
        except (OSError, ServerError) as error:
            raise ServerError(f"cannot read from {self.name}: {_why(error)}") from None
        length = answer.headers.get("content-length", "")
        if not answer.body and length.isdigit() and int(length) > _LARGEST:
            raise ServerError(f"{self.name}: the response is larger than {_LARGEST >> 20} MiB")
        return answer

    def _body(self, answer: Answer) -> bytes:
        if answer.status != 200:
            raise refusal(self.name, answer.status, answer.body)
        return answer.body

    def _may_use_munge(self) -> bool:
        """Also again: a credential is valid for some minutes."""
        return not self._has_token and self._url.secure and _has_munge()

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        return {**headers, "Authorization": self._credential} if self._credential else headers

    def _require_secrecy(self) -> None:
        """On this machine, too, another user may have taken the port."""
        if not self._url.secure and not self._url.is_unix:
            raise UsageError(f"{self.name}: credentials are sent over https:// or a Unix socket only")


def encode(text: str) -> str:
    """Percent-encode: nothing in it is a separator. urllib.parse takes as long to load as a request."""
    data = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)


def encode_query(query: Pairs) -> str:
    pairs = [f"{encode(name)}={encode(str(value))}" for name, value in query if value is not None]
    return "?" + "&".join(pairs) if pairs else ""


def refusal(name: str, status: int, body: bytes) -> Exception:
    """Return the error for a response that is not a success. Its message is the service's sentence."""
    try:
        message = parse_json(body)["error"]["message"]
        if not isinstance(message, str):
            raise TypeError
    except (ValueError, LookupError, TypeError):
        kind = "the HTTP status is" if status >= 500 else "not a joblens service: HTTP status"
        return ServerError(f"{name}: {kind} {status}")
    words = printable(" ".join(message.split()), _LONGEST_MESSAGE)
    if status == 404:
        return NotFoundError(words)
    if status == 409:
        return AmbiguousError(words)
    return UsageError(words) if status == 400 else ServerError(f"{name}: {words}")


def _bearer(path: str) -> str:
    from joblens.wire.credentials import read_token

    try:
        token = read_token(path) or b""
    except OSError as error:
        raise OutsideError(f"cannot read the token: {sentence(error)}") from None
    if not _TOKEN.fullmatch(token):
        raise UsageError(f"{path}: not a token; joblens token create makes one")
    return f"Bearer {token.decode('ascii')}"


def _has_munge() -> bool:
    from shutil import which

    return which("munge") is not None


def _make_credential() -> str:
    from joblens.wire.credentials import make_credential

    try:
        return make_credential(MUNGE_PAYLOAD)
    except (JoblensError, OSError) as error:
        raise ServerError(f"no munge credential: {sentence(error)}") from None


def _why(error: Exception) -> str:
    """A file is named already; Python's message about a certificate has three parts in brackets."""
    if isinstance(error, FileNotFoundError):
        return "there is no such socket"
    verified = getattr(error, "verify_message", "")
    if verified:
        return f"its certificate is not accepted: {printable(verified, 200)}"
    return sentence(error)
