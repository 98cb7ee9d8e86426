"""Responses of the hub, and refusals: a status, a reason for the counters, and a message for the sender."""

from __future__ import annotations

import math
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

from joblens.wire.mac import ANSWER, REFUSAL

MALFORMED, TOO_LARGE = "malformed", "too large"  # reasons that are final: no hub will ever accept the batch


class Refused(Exception):  # noqa: N818 (a response to the sender, not an error of the hub)
    def __init__(self, status: int, reason: str, text: str, retry: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.reason, self.text, self.retry = status, reason, text, retry

    def answer(self) -> Response:
        return Response(self.status, self.text, self.reason, self.retry)


class Response(NamedTuple):
    """The response to a request. 200 for a batch: it is on the disk."""

    status: int
    text: str  # JSON if 200, else one line of text
    reason: str = ""
    retry: float = 0.0  # seconds, for Retry-After of 429 and 503


Sign = Callable[[int, str, bytes], str]


def render_response(
    answer: Response, keep: bool, content_type: str = "", head_only: bool = False, sign: Sign | None = None
) -> bytes:
    """Render a response. `sign` makes the MAC over status, refusal and body, for an authenticated sender."""
    if not content_type:
        content_type = "application/json" if answer.status == 200 else "text/plain; charset=utf-8"
    body = answer.text.encode("utf-8", "replace")
    if answer.status != 200 and not body.endswith(b"\n"):
        body += b"\n"
    more = "" if keep else "Connection: close\r\n"
    if answer.status == 401:
        more += "WWW-Authenticate: Joblens, Bearer\r\n"
    if answer.status == 426:
        more += "Upgrade: TLS/1.2\r\n"  # required by RFC 9110, 15.5.22
    refusal = ""
    if answer.status in (400, 413) and answer.reason in (MALFORMED, TOO_LARGE):
        refusal = answer.reason
        more += f"{REFUSAL}: {refusal}\r\n"
    if sign is not None:
        more += f"{ANSWER}: {sign(answer.status, refusal, body)}\r\n"
    if answer.retry:
        more += f"Retry-After: {max(math.ceil(min(answer.retry, 3600.0)), 1)}\r\n"
    head = (
        f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    )
    return head.encode("latin-1") + (b"" if head_only else body)
