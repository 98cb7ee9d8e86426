"""Clients that send nothing, or only a part: they take little memory, and are closed in the end."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from joblens.serve.handshakes import Turns
from programs import need
from services.running import free_port
from waiting import is_readable, wait_for

from .serving import ALICE, BOB, SETTINGS, Served, acting_as, memory, read, serving

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")

PART = b"POST /api/v1/tokens HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("openssl")
    path = tmp_path_factory.mktemp("tls") / "serve.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    files = ["-keyout", f"{path}.key", "-out", str(path)]
    words = [*command.split(), "-addext", "subjectAltName=DNS:localhost", *files]
    subprocess.run(words, check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def over_tls(certificate: Path) -> Iterator[Served]:
    text = f'[serve]\ncertificate = "{certificate}"\nprivate_key = "{certificate}.key"\n'
    with serving(SETTINGS + text, free_port()) as it:
        yield it


def ask(served: Served, certificate: Path, token: str) -> int:
    context = ssl.create_default_context(cafile=str(certificate))
    with closing(HTTPSConnection("localhost", served.port, context=context, timeout=60)) as connection:
        connection.request("GET", "/api/v1/jobs", headers={"Authorization": f"Bearer {token}"})
        return read(connection.getresponse()).status


def connect(served: Served, stack: ExitStack) -> socket.socket:
    channel = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), 60))
    channel.settimeout(60)
    return channel


def test_before_the_handshake(over_tls: Served, certificate: Path) -> None:
    """Connections without a handshake are limited as others are, and cost next to nothing."""
    token = over_tls.ask("POST", "/tokens", ALICE).json["token"]
    assert ask(over_tls, certificate, token) == 200
    before = memory(over_tls)
    with ExitStack() as stack:
        channels = [connect(over_tls, stack) for _ in range(1100)]
        assert channels[0].recv(1) == b""
        assert memory(over_tls) - before < 16 << 20
        assert ask(over_tls, certificate, token) == 200


def test_many_handshakes_that_do_not_go_on(over_tls: Served, certificate: Path) -> None:
    """Only some are done at once, so that they take little memory; a client between them is answered."""
    token = over_tls.ask("POST", "/tokens", ALICE).json["token"]
    assert ask(over_tls, certificate, token) == 200
    before = memory(over_tls)
    with ExitStack() as stack:
        for _ in range(900):
            connect(over_tls, stack).sendall(b"\x16\x03\x01\x02\x00")
        assert ask(over_tls, certificate, token) == 200
        assert memory(over_tls) - before < 24 << 20
    assert "Traceback" not in over_tls.log.read_text()


@dataclass(eq=False)
class Begun:
    """A handshake that writes down when it is its turn."""

    holder: str
    number: int
    log: list[tuple[str, int]]
    begun: float = math.inf  # and not slow

    def begin(self) -> None:
        self.log.append((self.holder, self.number))


def test_turns_of_several_networks() -> None:
    """Each has a quarter at most. The newest that waits is next, of the network with the fewest."""
    log: list[tuple[str, int]] = []
    loop = asyncio.new_event_loop()
    turns: Any = Turns(4, loop)
    many = [Begun("a", number, log) for number in range(3)]
    others = [Begun(holder, 0, log) for holder in "bcde"]
    for handshake in (*many, *others):
        turns.ask(handshake)
    assert log == [("a", 0), ("b", 0), ("c", 0), ("d", 0)]
    turns.leave(many[0])
    assert log[4:] in ([("a", 2)], [("e", 0)])
    for handshake in (*many, *others):
        turns.leave(handshake)
    loop.close()
    assert sorted(log) == [("a", 0), ("a", 2), ("b", 0), ("c", 0), ("d", 0), ("e", 0)]


def test_a_handshake_that_does_not_go_on(over_tls: Served, certificate: Path) -> None:
    """It is closed after its time, also if it has begun; what is not TLS is closed at once."""
    token = over_tls.ask("POST", "/tokens", ALICE).json["token"]
    with ExitStack() as stack:
        silent, begun, plain = (connect(over_tls, stack) for _ in range(3))
        begun.sendall(b"\x16\x03\x01\x02\x00")
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert ask(over_tls, certificate, token) == 200
        for channel in (plain, silent, begun):
            wait_for("its end", partial(is_closed, channel))
    assert "Traceback" not in over_tls.log.read_text()


def is_closed(channel: socket.socket) -> bool:
    try:
        return is_readable(channel.fileno(), 1.0) and not channel.recv(1000)
    except ConnectionResetError:
        return True


def test_a_body_that_does_not_arrive() -> None:
    """It has the same deadline as the head, and is closed before that if others need the connection."""
    with serving(SETTINGS + "[serve]\ntimeout = 3.0\nconnections = 8\n") as served, ExitStack() as stack:
        open_ = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        for channel in open_:
            channel.settimeout(60)
            with acting_as(BOB):
                channel.connect(served.socket)
            channel.sendall(PART)
        assert served.get("/me", ALICE).status == 200  # by now the parts have been read
        assert served.get("/me", BOB).status == 200
        assert served.raw(PART, ALICE) == b""
        assert "ClientDisconnect" not in served.log.read_text()
