"""The parameters and body of a request as the types of its route. What is unknown or wrong is refused."""

from __future__ import annotations

from typing import Any, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from joblens.record.fields import checked
from joblens.serve.errors import ApiError
from joblens.store.catalog.listing import unknown

_LONGEST_QUERY = 8192
_MOST_FIELDS = 64
_LARGEST_BODY = 4096
LONGEST_ID = 200


def parse_query(text: str, kind: type[Struct]) -> Any:
    """Raises ApiError, or UsageError that names the nearest parameter."""
    if len(text) > _LONGEST_QUERY:
        raise ApiError(400, f"the query is longer than {_LONGEST_QUERY} characters")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError:  # more fields than that, or not UTF-8
        raise ApiError(400, "the query has too many parameters, or is not UTF-8") from None
    fields = {it.encode_name: it for it in msgspec.structs.fields(kind)}
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in fields:
            raise unknown("parameter", name, fields)
        if "\0" in value:
            raise ApiError(400, f"{name} has a zero byte")
        if name in found and not _is_list(fields[name].type):
            raise ApiError(400, f"{name} is given more than once")
        found.setdefault(name, []).append(value)
    plain = {name: it if _is_list(fields[name].type) else it[0] for name, it in found.items()}
    try:
        return checked(lambda: msgspec.convert(plain, kind, strict=False))
    except ValueError as error:
        raise ApiError(400, str(error)) from None


def _is_list(kind: Any) -> bool:
    return list in (get_origin(kind), get_origin(getattr(kind, "__origin__", None)))


def parse_id(text: str) -> str:
    """Raises ApiError."""
    if not 0 < len(text) <= LONGEST_ID or "\0" in text:
        raise ApiError(400, f"an id has 1 to {LONGEST_ID} characters")
    return text


async def read_body(request: Request, kind: type[Struct]) -> Any:
    """Raises ApiError."""
    data = b""
    try:
        async for part in request.stream():
            data += part
            if len(data) > _LARGEST_BODY:
                raise ApiError(413, f"the body is larger than {_LARGEST_BODY} bytes")
    except ClientDisconnect:
        raise ApiError(400, "the body is incomplete") from None
    try:
        return checked(lambda: msgspec.json.decode(data or b"{}", type=kind))
    except (ValueError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid: {error}") from None
