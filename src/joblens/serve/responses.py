"""Answers over HTTP: JSON, an ETag, and compression."""

from __future__ import annotations

import gzip
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response

from joblens.serve.errors import ApiError, body_of

_FEW = 1000  # bytes that are not worth compressing
_LEVEL = 4
# Answers depend on who asks: no cache in between may keep them, and a client asks if its copy is current.
_FIELDS = {
    "Cache-Control": "private, no-cache",
    "Vary": "Authorization, Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
}
_JSON = "application/json"


class Body(NamedTuple):
    """An encoded answer."""

    data: bytes
    tag: str
    gzipped: bool = False


def encode(answer: Any, may_gzip: bool) -> Body:
    """To be called in a thread: a large answer takes a while."""
    data = msgspec.json.encode(answer)
    tag = blake2b(data, digest_size=16).hexdigest()
    if may_gzip and len(data) > _FEW:
        return Body(gzip.compress(data, _LEVEL, mtime=0), f'"{tag}-gzip"', True)
    return Body(data, f'"{tag}"')


def accepts_gzip(headers: Headers) -> bool:
    for choice in headers.get("accept-encoding", "").lower().split(","):
        name, _, quality = choice.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def respond(body: Body, headers: Headers) -> Response:
    fields = {**_FIELDS, "ETag": body.tag}
    known = [tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")]
    if body.tag in known or "*" in known:
        return Response(status_code=304, headers=fields)
    if body.gzipped:
        fields["Content-Encoding"] = "gzip"
    return Response(body.data, headers=fields, media_type=_JSON)


def respond_once(answer: Any) -> Response:
    """Of a request that has changed something: nothing to keep, and secrets are not compressed."""
    fields = {**_FIELDS, "Cache-Control": "no-store"}
    return Response(msgspec.json.encode(answer), headers=fields, media_type=_JSON)


def refuse(error: ApiError) -> Response:
    fields = {**_FIELDS, "Cache-Control": "no-store"}
    if error.status == 401:
        fields["WWW-Authenticate"] = "Bearer, Munge"
    if error.retry:
        fields["Retry-After"] = str(error.retry)
    body = msgspec.json.encode(body_of(error.status, error.message))
    return Response(body, error.status, fields, _JSON)
