"""Refusals as the service sends them: one JSON shape, with the sentence that the command line prints."""

from __future__ import annotations

from msgspec import Struct

from joblens.core.errors import printable

_CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    411: "length_required",
    413: "too_large",
    429: "too_many_requests",
    431: "header_too_large",
    500: "internal",
    502: "bad_gateway",
    503: "unavailable",
    504: "timeout",
}
_LONGEST = 1000


class Problem(Struct, frozen=True):
    """Why a request was not answered."""

    status: int
    code: str
    message: str


class ErrorBody(Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: Problem


class ApiError(Exception):
    """A refusal."""

    def __init__(self, status: int, message: str, retry: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.retry = status, message, retry


def body_of(status: int, message: str) -> ErrorBody:
    code = _CODES.get(status, "bad_request" if status < 500 else "internal")
    return ErrorBody(Problem(status, code, printable(message, _LONGEST)))
