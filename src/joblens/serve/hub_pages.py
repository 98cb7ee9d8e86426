"""The live pages of the hub, fetched at most every two seconds for all viewers together."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any

from joblens.core.config import Url
from joblens.core.errors import ServerError, sentence
from joblens.core.json_file import parse_json

_KEPT_SECONDS = 2.0
_TIMEOUT = 5.0
_LARGEST = 1 << 28


class HubPages:
    def __init__(
        self,
        url: Url | None,
        token_file: str = "",
        ca_file: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._token_file, self._ca_file, self._clock = url, token_file, ca_file, clock
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[float, Any]] = {}  # or the error

    def get(self, path: str) -> Any:
        """Return a page as plain data, which is not to be changed. Raises ServerError."""
        with self._lock:
            when, found = self._kept.get(path, (float("-inf"), None))
            if self._clock() - when >= _KEPT_SECONDS:
                found = self._fetch(path)
                self._kept[path] = self._clock(), found
        if isinstance(found, ServerError):
            raise ServerError(str(found))
        return found

    def _fetch(self, path: str) -> Any:
        if self._url is None:
            return ServerError("no hub is configured for the service: set serve.hub")
        try:
            with closing(self._connect(self._url)) as connection:
                connection.request("GET", self._url.path + path, headers=self._headers())
                answer = connection.getresponse()
                body = answer.read(_LARGEST)
            if answer.status != 200:
                return ServerError(
                    f"the hub at {self._url.authority} answers {answer.status} {answer.reason}"
                )
            return parse_json(body)
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            return ServerError(f"the hub at {self._url.authority} does not answer: {sentence(error)}")

    def _connect(self, url: Url) -> HTTPConnection:
        if not url.secure:
            return HTTPConnection(url.host, url.port, timeout=_TIMEOUT)
        context = ssl.create_default_context(cafile=self._ca_file or None)
        return HTTPSConnection(url.host, url.port, timeout=_TIMEOUT, context=context)

    def _headers(self) -> dict[str, str]:
        if not self._token_file:
            return {}
        with open(self._token_file, encoding="latin-1") as file:  # the encoding of a header
            return {"Authorization": f"Bearer {file.read(4096).strip()}"}
