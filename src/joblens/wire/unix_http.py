"""Single requests over a Unix socket, never repeated: the service knows the user by the kernel."""

from __future__ import annotations

import socket
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

from joblens.core.errors import ServerError, printable, sentence
from joblens.core.json_file import parse_json, render_json

_SECONDS = 30.0
_LARGEST = 1 << 24


class UnixAnswer(NamedTuple):
    status: int
    body: Any  # plain data

    @property
    def message(self) -> str:
        """Why it was refused."""
        try:
            return printable(str(self.body["error"]["message"]), 400)
        except (LookupError, TypeError):
            return f"the HTTP status is {self.status}"


class _Connection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(self._path)


def ask_socket(path: str, method: str, target: str, body: Any = None) -> UnixAnswer:
    """Raises ServerError."""
    connection = _Connection(path)
    try:
        data = None if body is None else render_json(body)
        connection.request(method, target, data, {"Accept": "application/json"})
        answer = connection.getresponse()
        return UnixAnswer(answer.status, parse_json(answer.read(_LARGEST)))
    except (OSError, HTTPException) as error:
        raise ServerError(f"cannot reach the service at {path}: {sentence(error)}") from None
    except (ValueError, RecursionError):
        raise ServerError(f"{path} is not a joblens service, or of another version: not JSON") from None
    finally:
        connection.close()
