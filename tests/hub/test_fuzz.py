"""Whatever comes in at the hub's door: one known answer or none, and the hub goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from joblens.core.errors import MalformedError
from joblens.hub.auth import parse_unmunge, read_payload
from joblens.hub.requests import parse_head
from joblens.hub.responses import Refused
from joblens.wire.batch import Batch
from joblens.wire.frame import check_sections, read_header
from joblens.wire.header import parse_header

from .sending import Hub, Sender, make_batch, make_header, running_hub

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=20,
)
KEYS = st.sampled_from([*make_header(1), "period", "updates", "other"])


def is_one_line(text: str) -> bool:
    return text.isprintable() and bool(text)


@given(st.binary(max_size=200))
@example(b"POST /v1/batch HTTP/1.1\r\nContent-Length: \xb2")
@example(b"POST /v1/batch HTTP/1.1\r\nContent-Length: " + b"9" * 5000)
def test_heads(data: bytes) -> None:
    """Any bytes, and such as begin as a request: understood, or refused with a line."""
    for begin in (b"", b"POST /v1/batch HTTP/1.1\r\n", b"POST /v1/batch HTTP/1.1\r\nContent-Length: "):
        try:
            request = parse_head(begin + data)
        except Refused as error:
            refused = error
        else:
            assert 0 <= request.length < 10**15
            continue
        assert refused.status in (400, 411, 431)
        assert is_one_line(refused.text)


@given(st.dictionaries(KEYS, JSON))
def test_headers(change: dict[str, object]) -> None:
    """Any JSON in any place: taken or MalformedError, and what is taken can be shown."""
    said, header = "", None
    try:
        header = parse_header({**make_header(1), **change})
    except MalformedError as error:
        said = str(error)
    if header is None:
        assert is_one_line(said)
        return
    for found in (header.sets(), header.jobs(), header.gaps()):
        json.dumps(found, allow_nan=False).encode()
    assert all(is_one_line(name) for name in header.batch[:3])


@given(st.binary(max_size=100), st.data())
def test_frames(more: bytes, data: st.DataObject) -> None:
    """Cut off, longer, or with a byte changed: no other error."""
    whole = make_batch(1, sent=1.5)
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for message in (whole[: data.draw(st.integers(0, len(whole)))] + more, bytes(changed), more):
        with suppress(MalformedError):
            parse_header(read_header(message))
            check_sections(message)


@given(st.integers(0, 30), st.binary(max_size=200))
@example(0, b"ENCODE_HOST: a (1)\nENCODE_TIME: 2026 (9)\nTTL: 3\nUID: root (0)\nLENGTH: 3\n\nc\0n")
def test_unmunge(code: int, text: bytes) -> None:
    with suppress(Refused):
        parse_unmunge(code, text)
        read_payload(text)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with running_hub(tmp_path_factory.mktemp("fuzzed"), "timeout = 2.0\nbatch_bytes = 10_000") as hub:
        yield hub


PIECES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"POST /v1/batch HTTP/1.1\r\n",
            b"GET /sets HTTP/1.1\r\n",
            b"Content-Length: 10\r\n",
            b"Content-Length: 20000\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"Expect: 100-continue\r\n",
            b"Authorization: Munge MUNGE:AwQ\r\n",
            b"X-Joblens-Batch: lab n1 b1 7 nan -\r\n",
            b"\r\n",
            b"JLB1",
            Batch().encode(make_header(7, sent=1.5)),
            b"POST /v1/batch HTTP/1.1\r\nContent-Length: 10\r\n\r\n0123456789",
        ]
    ),
)


@settings(max_examples=300)
@given(st.lists(st.lists(PIECES, max_size=6).map(b"".join), max_size=5))
def test_connections(hub: Hub, pieces: list[bytes]) -> None:
    """Any bytes in any pieces: answers are of HTTP, and the hub says nothing but its sentences."""
    answer = b""
    address = "127.0.0.1", hub.port
    with suppress(ConnectionError), socket.create_connection(address, timeout=60) as channel:
        for piece in pieces:
            channel.sendall(piece)
        with suppress(OSError):  # the hub may have ended it by now
            channel.shutdown(socket.SHUT_WR)
        while piece := channel.recv(65536):
            answer += piece
    assert answer == b"" or answer.startswith((b"HTTP/1.1 ", b"HTTP/1.1 100 Continue"))
    assert hub.process.poll() is None
    assert all(line.startswith("joblens hub: 127.0.0.1: ") and line.isprintable() for line in hub.said())


def test_still_there(hub: Hub) -> None:
    """After all of it, in whichever order: a batch is taken, and nothing is held."""
    with Sender(hub.port) as sender:
        assert sender.send(make_batch(1, "after")).status == 200
    assert hub.metrics()["joblens_hub_waiting_bytes"] == 0
