"""The subset of HTTP/1.1 requests that the hub accepts."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from joblens.hub.responses import Refused
from joblens.wire.mac import FIELD

LARGEST_HEAD = 16_384
_MOST_FIELDS = 64
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")  # RFC 9110, 5.6.2
_WORDS = re.compile(rb"([A-Z]{1,16}) (/[\x21-\x7e]{0,1023}) HTTP/1\.([01])")
_ONCE = (b"content-length", b"authorization", b"transfer-encoding", FIELD.lower().encode())


class Request(NamedTuple):
    method: str
    path: str
    fields: dict[bytes, bytes]  # names in lower case
    length: int
    keep: bool


def parse_head(head: bytes) -> Request:
    """Parse a request up to the empty line. Raises Refused, after which the connection must be closed."""
    lines = head.split(b"\r\n")
    words = _WORDS.fullmatch(lines[0])
    if words is None:
        raise _not_http("bad request line")
    if len(lines) > _MOST_FIELDS:
        raise Refused(431, "not HTTP", "the request has too many header fields")
    fields: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name):
            raise _not_http("malformed header field")
        name = name.lower()
        if name in fields and name in _ONCE:
            raise _not_http("duplicate header field")
        fields[name] = value.strip(b" \t")
    wishes = fields.get(b"connection", b"").lower()
    keep = b"keep-alive" in wishes if words[3] == b"0" else b"close" not in wishes
    return Request(words[1].decode(), words[2].decode().partition("?")[0], fields, _length(fields), keep)


def _length(fields: dict[bytes, bytes]) -> int:
    if b"transfer-encoding" in fields:
        raise Refused(411, "not HTTP", "Content-Length required: chunked bodies are not supported")
    text = fields.get(b"content-length", b"0")
    if not text.isdigit() or len(text) > 15:
        raise _not_http("Content-Length is not a number")
    return int(text)


def _not_http(what: str) -> Refused:
    return Refused(400, "not HTTP", f"not a valid request: {what}")


def is_literal(host: bytes) -> bool:
    """Whether the field Host is an address or localhost, with or without a port."""
    found = re.fullmatch(r"(?:\[(.*)\]|([^:]*))(?::[0-9]*)?", host.decode("latin-1"))
    name = found[1] or found[2] if found else ""
    try:
        return name.lower() == "localhost" or bool(ipaddress.ip_address(name))
    except ValueError:
        return False
