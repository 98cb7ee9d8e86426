"""Authentication between node and hub: a MAC over the head of a request, and one over its response.

Both are keyed with a shared secret that is never sent. docs/formats.md describes the fields.
"""

from __future__ import annotations

import re
from _operator import _compare_digest  # as in hmac, which would load OpenSSL and 3 MB
from typing import Dict, Mapping, NamedTuple

from joblens.core.errors import MalformedError

try:
    from _blake2 import blake2b  # as in hashlib, which would load OpenSSL and 3 MB
except ImportError:  # this Python has it from OpenSSL only
    from hashlib import blake2b

FIELD = "X-Joblens-Batch"
REFUSAL = "X-Joblens-Refused"  # in a response: no hub will ever accept this batch
ANSWER = "X-Joblens-Answer"  # in a response: its MAC
SCHEME = "Joblens"  # of `Authorization`, followed by the MAC
MUNGE = "Munge"  # the same, followed by a munge credential and the MAC
_DIGEST_BYTES = 32
_LONGEST_NAME = 255
_PLAIN = re.compile(r"[A-Za-z0-9._~+:@/-]+")
_NAME = rb"([A-Za-z0-9._~+:@/%-]+)"
_QUOTED = re.compile(rb"(?:[^%]|%[0-9A-F]{2})+")
_HEAD = re.compile(
    b" ".join(
        (_NAME, _NAME, _NAME, rb"([0-9]{1,19})", rb"([0-9]{1,12}(?:\.[0-9]{1,9})?)", rb"([0-9a-f]{64})")
    )
    + rb"(?: .*)?",
    re.S,
)


class Head(NamedTuple):
    """The field that describes a request's body before it arrives."""

    cluster: str
    node: str
    boot: str
    sequence: int
    sent: float  # seconds since 1970, by the sender's clock
    digest: str  # of the body


def render_head(head: Head) -> str:
    names = " ".join(map(_quote, head[:3]))
    return f"{names} {head.sequence} {head.sent:.6f} {head.digest}"


def parse_head(text: bytes) -> Head:
    """Parse the field. Further words, of newer agents, are ignored. Raises MalformedError."""
    match = _HEAD.fullmatch(text)
    if match is None:
        raise MalformedError(FIELD, "not CLUSTER NODE BOOT SEQUENCE TIME DIGEST")
    cluster, node, boot, sequence, sent, digest = match.groups()
    if int(sequence) >= 1 << 63:
        raise MalformedError(FIELD, "the sequence number is too large")
    names = _unquote(cluster), _unquote(node), _unquote(boot)
    return Head(*names, int(sequence), float(sent), digest.decode())


def _quote(name: str) -> str:
    if _PLAIN.fullmatch(name):
        return name
    return "".join(
        chr(byte) if byte < 128 and _PLAIN.match(chr(byte)) else f"%{byte:02X}"
        for byte in name.encode("utf-8", "replace")
    )


def _unquote(word: bytes) -> str:
    if b"%" in word:
        if not _QUOTED.fullmatch(word):
            raise MalformedError(FIELD, "a name is malformed")
        first, *parts = word.split(b"%")
        word = first + b"".join(bytes((int(part[:2], 16),)) + part[2:] for part in parts)
    try:
        name = word.decode()
    except UnicodeDecodeError:
        name = ""
    if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
        raise MalformedError(FIELD, "a name is not printable, or too long")
    return name


def digest_of(body: bytes) -> str:
    return blake2b(body, digest_size=_DIGEST_BYTES).hexdigest()


class Signer:
    """Makes MACs with one secret."""

    __slots__ = ("_answers", "_requests")  # keyed states, which are copied: rekeying takes ten times as long

    def __init__(self, secret: bytes) -> None:
        self._requests = _keyed(secret, b"joblens request")
        self._answers = _keyed(secret, b"joblens answer")

    def mac(self, target: str, head: bytes, length: int) -> str:
        """Return the MAC of a request: method and path, the whole field and the length of the body."""
        made = self._requests.copy()
        made.update(b"%s\n%s\n%d" % (target.encode(), head, length))
        return made.hexdigest()

    def answer_mac(self, request: bytes, status: int, refusal: str, body: bytes) -> str:
        """Return the MAC of a response. It covers the MAC of the request, and so the request."""
        made = self._answers.copy()
        made.update(b"%s\n%d\n%s\n%s" % (request, status, refusal.encode(), body))
        return made.hexdigest()


def sign(secret: bytes, target: str, head: Head, length: int, credential: str = "") -> Dict[str, str]:
    """Return the fields that authenticate a request such as `POST /v1/batch`."""
    words = render_head(head)
    mac = Signer(secret).mac(target, words.encode(), length)
    return {FIELD: words, "Authorization": f"{MUNGE} {credential} {mac}" if credential else f"{SCHEME} {mac}"}


def is_answer(
    secret: bytes, request: Mapping[str, str], status: int, fields: Mapping[str, str], body: bytes
) -> bool:
    """Verify the MAC of the response to the request with these fields. Names in `fields`, those of the
    response, are in lower case."""
    asked = request.get("Authorization", "").rpartition(" ")[2]
    if not secret or not asked:
        return False
    refusal = fields.get(REFUSAL.lower(), "")
    wanted = Signer(secret).answer_mac(asked.encode(), status, refusal, body)
    return is_same(fields.get(ANSWER.lower(), "").encode("latin-1", "replace"), wanted.encode())


def make_token(key: bytes, cluster: str, node: str) -> str:
    """Return the secret with which a node signs its requests."""
    return _keyed(key, b"joblens push", f"{cluster}\0{node}".encode()).hexdigest()


def make_page_token(key: bytes, cluster: str, node: str) -> str:
    """Return the token for readers of a node's pages. The other token cannot be derived from it."""
    return _keyed(key, b"joblens pages", f"{cluster}\0{node}".encode()).hexdigest()


def _keyed(key: bytes, purpose: bytes, data: bytes = b"") -> blake2b:
    whole = blake2b(key).digest()  # BLAKE2 takes keys of up to 64 bytes
    return blake2b(data, key=whole, person=purpose, digest_size=_DIGEST_BYTES)


def is_same(given: bytes, wanted: bytes) -> bool:
    """Compare in constant time."""
    return _compare_digest(given, wanted)
