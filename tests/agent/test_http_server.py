from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.agent.http_server import Request, Response, parse_request, render_head


def test_requests() -> None:
    """Method, path without its query, and headers in lower case."""
    data = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\nACCEPT:  text/plain \r\n\r\n"
    assert parse_request(data) == Request("GET", "/metrics", {"host": "a", "accept": "text/plain"})


@pytest.mark.parametrize(
    ("line", "header", "keep"),
    [
        ("HTTP/1.1", "Host: a", True),
        ("HTTP/1.1", "Connection: TE, Close", False),
        ("HTTP/1.0", "Host: a", False),
        ("HTTP/1.0", "Connection: keep-alive", True),
    ],
)
def test_keep_alive(line: str, header: str, keep: bool) -> None:
    """HTTP/1.1 keeps the connection by default; an older client waits for its end."""
    found = parse_request(f"GET / {line}\r\n{header}\r\n\r\n".encode())
    assert found is not None
    assert found.keep is keep


@given(st.binary() | st.binary().map(lambda tail: b"GET / HTTP/1.1\r\n" + tail))
def test_any_request(data: bytes) -> None:
    """Whatever is sent, it is a request or not one."""
    found = parse_request(data)
    assert found is None or found.method.isalpha()


def test_responses() -> None:
    """Length and type are said; 401 says how to do it right."""
    text = render_head(Response(401, "text/plain", b"no\n"), close=True)
    assert text.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
    assert b"Content-Length: 3\r\n" in text
    assert b"WWW-Authenticate: Bearer\r\n" in text
    assert text.endswith(b"\r\n\r\n")
