"""A small server that agents can send to: it acknowledges, and misbehaves where a test asks it to."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from joblens.core.model import Sample
from joblens.wire.batch import decode
from joblens.wire.mac import Signer


class Post(NamedTuple):
    """One request that came in whole."""

    header: dict[str, Any]
    samples: list[Sample]
    fields: dict[str, str]
    client: tuple[str, int]

    @property
    def identity(self) -> tuple[str, str, str, int]:
        head = self.header
        return head["cluster"], head["node"], head["boot"], head["sequence"]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SmallHub
    timeout = 60

    def do_POST(self) -> None:
        self.signed = True  # the answer to this request, if its turn does not choose otherwise
        turn = self.server.next_turn()
        if getattr(turn, "early", False):
            turn(self)
            return
        header, samples = decode(self.rfile.read(int(self.headers["Content-Length"])))
        post = Post(header, samples, {k.lower(): v for k, v in self.headers.items()}, self.client_address)
        self.server.posts.append(post)
        turn(self)

    def do_GET(self) -> None:
        """Such as for a token."""
        status = self.server.gets.popleft() if self.server.gets else 200
        text = self.server.secret + b"\n" if status == 200 else b"wait\n"
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def answer(self, status: int, text: str, **fields: str) -> None:
        self.send_response(status)
        if self.signed:
            fields["X-Joblens-Answer"] = self.sign(status, text, fields.get("X_Joblens_Refused", ""))
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())
        if self.server.path != self.path:
            raise AssertionError(f"posted to {self.path}")

    def sign(self, status: int, text: str, refusal: str = "") -> str:
        """As a hub does that knows the secret."""
        authorization = self.headers.get("Authorization", "")
        signer = Signer(self.server.find_secret(authorization))
        return signer.answer_mac(authorization.rpartition(" ")[2].encode(), status, refusal, text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


Turn = Callable[[_Handler], None]


def acknowledge(it: _Handler) -> None:
    sequence = it.server.posts[-1].header["sequence"]
    it.server.stored.append(it.server.posts[-1])
    it.answer(200, json.dumps({"acknowledged": [sequence, sequence]}))


def answer(status: int, text: str = "", **fields: str) -> Turn:
    return lambda it: it.answer(status, text, **fields)


def cut(it: _Handler) -> None:
    """It has it, and the connection breaks before it can say so."""
    it.server.stored.append(it.server.posts[-1])
    it.close_connection = True


def garbage(it: _Handler) -> None:
    it.wfile.write(b"\x15\x03\x01\x00\x02\x02\x16" * 3000)
    it.close_connection = True


def half(it: _Handler) -> None:
    it.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"ackno')
    it.close_connection = True


def chunked(it: _Handler) -> None:
    """As a proxy in between may send it on."""
    it.server.stored.append(it.server.posts[-1])
    words = json.dumps({"acknowledged": [it.server.posts[-1].header["sequence"]] * 2})
    text, signed = words.encode(), f"X-Joblens-Answer: {it.sign(200, words)}\r\n".encode()
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n%s\r\n" % signed
    parts = b"".join(b"%x;x=y\r\n%s\r\n" % (len(part), part) for part in (text[:5], text[5:]))
    it.wfile.write(head + parts + b"0\r\nTrailer: x\r\n\r\n")


def drip(it: _Handler) -> None:
    """Always a little more, and never an end."""
    with suppress(OSError):
        it.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not it.server.over.wait(0.02):
            it.wfile.write(b"X-Wait: 1\r\n")
    it.close_connection = True


def hang(it: _Handler) -> None:
    it.server.over.wait()
    it.close_connection = True


def too_large(it: _Handler) -> None:
    """Said before the body was read."""
    it.answer(413, "too large", Connection="close", X_Joblens_Refused="too large")
    it.close_connection = True


too_large.early = True  # type: ignore[attr-defined]


class SmallHub(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, port: int = 0, certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.secure = certificate is not None
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.path = "/v1/batch"
        self.secret = b"what only the nodes and their hub know"
        self.find_secret: Callable[[str], bytes] = lambda authorization: self.secret
        self.posts: list[Post] = []
        self.stored: list[Post] = []
        self.turns: deque[Turn] = deque()  # what to do with the next ones
        self.gets: deque[int] = deque()  # what to answer to the next ones that ask for something
        self.otherwise: Turn = acknowledge  # and with all others
        self.over = threading.Event()
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http{'s' if self.secure else ''}://127.0.0.1:{self.server_port}"

    def next_turn(self) -> Turn:
        return self.turns.popleft() if self.turns else self.otherwise

    def stored_once(self) -> list[Post]:
        """As a hub keeps them: repeats by identity are none."""
        return list({post.identity: post for post in reversed(self.stored)}.values())[::-1]

    def get_request(self) -> tuple[socket.socket, Any]:
        found, address = super().get_request()
        self._connections.append(found)
        return found, address

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # senders that go away are what is tested

    def close(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()
        self._thread.join()
        for connection in self._connections:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


@contextmanager
def small_hub(port: int = 0, certificate: Path | None = None) -> Iterator[SmallHub]:
    hub = SmallHub(port, certificate)
    try:
        yield hub
    finally:
        hub.close()
