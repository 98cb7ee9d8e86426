"""A persistent HTTP connection to one server, which may be slow, unreachable, or not a hub.

The standard library's client takes 7 MB of memory with its imports, and does not limit the total time of a
response.
"""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from typing import Dict, NamedTuple, Optional, Tuple

from joblens.core.config import Url
from joblens.core.errors import ServerError

_MOST_HEAD = 1 << 14
_MOST_BODY = 1 << 16
_MOST_INTERIM = 5
_NO_CONTENT = 204  # has no body, and no length either (RFC 9110, 8.6)
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\r\n]*)?")


class Answer(NamedTuple):
    status: int
    headers: Dict[str, str]
    body: bytes


class Client:
    def __init__(
        self,
        url: Url,
        timeout: float,
        ca_file: str,
        most_body: int = _MOST_BODY,
        connect_timeout: Optional[float] = None,
        whole_timeout: Optional[float] = None,
    ) -> None:
        self.url, self._timeout, self._ca_file, self._most_body = url, timeout, ca_file, most_body
        self._connect_timeout = timeout if connect_timeout is None else connect_timeout
        # The limit of one exchange, however steady its progress.
        self._whole_timeout = 6 * timeout if whole_timeout is None else whole_timeout
        self._socket: Optional[socket.socket] = None
        self._rest = bytearray()  # received, not yet parsed
        self._end = 0.0

    def post(self, path: str, headers: Dict[str, str], body: bytes) -> Answer:
        """Send a request. Raises OSError or ServerError. It may be sent again, and then arrive twice."""
        return self._ask("POST", path, {**headers, "Content-Length": str(len(body))}, body)

    def get(self, path: str, headers: Dict[str, str]) -> Answer:
        return self._ask("GET", path, headers, b"")

    def delete(self, path: str, headers: Dict[str, str]) -> Answer:
        return self._ask("DELETE", path, headers, b"")

    def peer(self) -> Optional[int]:
        """Return the uid of the process at the other end, None if it is remote or unknown."""
        from joblens.wire.peers import Peers

        if self._socket is None:
            return None
        peers = Peers()
        try:
            holder = peers.holder(self._socket)
        except OSError:
            return None
        finally:
            peers.close()
        return holder if isinstance(holder, int) else None

    def _render(self, method: str, path: str, headers: Dict[str, str], body: bytes) -> bytes:
        lines = [f"{method} {self.url.path}{path} HTTP/1.1", f"Host: {self.url.authority}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def _ask(self, method: str, path: str, headers: Dict[str, str], body: bytes) -> Answer:
        message = self._render(method, path, headers, body)
        kept = self._socket is not None
        try:
            return self._exchange(message)
        except (_SilentError, OSError) as error:
            if not kept or isinstance(error, socket.timeout):
                raise
            return self._exchange(message)  # the server had closed an idle connection

    def begin_get(self, path: str, headers: Dict[str, str]) -> None:
        """Send a request on a new connection; `finish` waits for the response. Raises as `get`."""
        self.close()
        try:
            self._begin(self._render("GET", path, headers, b""))
        except BaseException:
            self.close()
            raise

    def finish(self) -> Answer:
        """Raises OSError or ServerError."""
        try:
            return self._read_answer(self._socket or self._connect())
        except BaseException:
            self.close()
            raise

    def _exchange(self, message: bytes) -> Answer:
        try:
            self._begin(message)
        except BaseException:
            self.close()
            raise
        return self.finish()

    def _begin(self, message: bytes) -> None:
        self._end = time.monotonic() + self._whole_timeout
        self._send(self._socket or self._connect(), message)

    def _connect(self) -> socket.socket:
        url = self.url
        connection = self._connect_unix() if url.is_unix else self._connect_tcp()
        try:
            if not url.is_unix:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if url.secure:
                import ssl

                context = ssl.create_default_context(cafile=self._ca_file or None)
                connection = context.wrap_socket(connection, server_hostname=url.host)
        except BaseException:
            connection.close()
            raise
        self._socket, self._rest = connection, bytearray()
        return connection

    def _connect_tcp(self) -> socket.socket:
        try:
            return socket.create_connection((self.url.host, self.url.port), self._connect_timeout)
        except UnicodeError:
            raise ServerError(f"invalid host name {self.url.host!r}") from None

    def _connect_unix(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self._connect_timeout)
            connection.connect(self.url.host)
        except BaseException:
            connection.close()
            raise
        return connection

    def _send(self, connection: socket.socket, message: bytes) -> None:
        left = memoryview(message)
        while left:
            connection.settimeout(self._remaining())
            try:
                left = left[connection.send(left[: 1 << 16]) :]
            except (BrokenPipeError, ConnectionResetError):
                return  # it may have responded before closing, for instance that the body is too large

    def _remaining(self) -> float:
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise socket.timeout("timed out")
        return min(remaining, self._timeout)

    def _read_answer(self, connection: socket.socket) -> Answer:
        for _ in range(_MOST_INTERIM):
            status, newer, headers = self._read_head(connection)
            if status >= 200:
                break
        else:
            raise ServerError("too many interim responses")
        body, framed = (b"", True) if status == _NO_CONTENT else self._read_body(connection, headers)
        if not framed or not newer or "close" in headers.get("connection", "").lower():
            self.close()
        return Answer(status, headers, body)

    def _read_head(self, connection: socket.socket) -> Tuple[int, bool, Dict[str, str]]:
        while b"\r\n\r\n" not in self._rest:
            if not b"HTTP/1.".startswith(bytes(self._rest[:7])) or len(self._rest) > _MOST_HEAD:
                raise ServerError("the response is not HTTP")
            self._receive(connection)
        first, *lines = self._take(self._rest.index(b"\r\n\r\n"), 4).split(b"\r\n")
        match = _STATUS.fullmatch(first)
        if match is None:
            raise ServerError("the response is not HTTP")
        pairs = [line.decode("latin-1").partition(":") for line in lines]
        return (
            int(match[2]),
            match[1] == b"1",
            {name.strip().lower(): value.strip() for name, _, value in pairs},
        )

    def _read_body(self, connection: socket.socket, headers: Dict[str, str]) -> Tuple[bytes, bool]:
        """Return the body, and whether its length was known, so that the connection can be reused."""
        length = headers.get("content-length")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return self._read_chunks(connection), True
        if length is None:
            with suppress(_SilentError):
                while len(self._rest) <= self._most_body:
                    self._receive(connection)
            return bytes(self._rest[: self._most_body]), False
        if not re.fullmatch("[0-9]{1,9}", length):
            raise ServerError("the response is not HTTP")
        if int(length) > self._most_body:
            return b"", False  # not a response of a hub: the status is enough
        return self._read_bytes(connection, int(length)), True

    def _read_bytes(self, connection: socket.socket, count: int) -> bytes:
        while len(self._rest) < count:
            self._receive(connection)
        return self._take(count)

    def _take(self, count: int, end: int = 0) -> bytes:
        """Remove `count` bytes from the front of the received data, and `end` more, which are dropped."""
        found = bytes(self._rest[:count])
        del self._rest[: count + end]
        return found

    def _read_chunks(self, connection: socket.socket) -> bytes:
        body = bytearray()
        while True:
            size = self._read_line(connection).partition(b";")[0].strip()
            if not re.fullmatch(b"[0-9a-fA-F]{1,8}", size):
                raise ServerError("the response is not HTTP")
            if len(body) + int(size, 16) > self._most_body:
                raise ServerError(f"the response is larger than {self._most_body >> 10} KiB")
            if int(size, 16) == 0:
                while self._read_line(connection):
                    pass
                return bytes(body)
            body += self._read_bytes(connection, int(size, 16))
            self._read_line(connection)

    def _read_line(self, connection: socket.socket) -> bytes:
        while b"\r\n" not in self._rest:
            if len(self._rest) > _MOST_HEAD:
                raise ServerError("the response is not HTTP")
            self._receive(connection)
        return self._take(self._rest.index(b"\r\n"), 2)

    def _receive(self, connection: socket.socket) -> None:
        connection.settimeout(self._remaining())
        try:
            data = connection.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            raise _SilentError("connection closed by the server")
        self._rest += data

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def abort(self) -> None:
        """End a pending exchange, from another thread."""
        connection = self._socket
        if connection is not None:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # also of TLS, without close_notify


class _SilentError(ServerError):
    """The server closed the connection during a response, or before it."""
