"""The live pages of the hub, fetched at most every two seconds for all viewers together."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple

from joblens.core.config import Url
from joblens.core.errors import ServerError, sentence
from joblens.core.json_file import parse_json

_KEPT_SECONDS = 2.0
_STALE_SECONDS = 10.0  # for which a page is shown while the hub does not send a newer one
_PATIENCE = 0.5  # seconds to wait for a newer page, if there is an older one or an error
_TIMEOUT = 5.0
_LARGEST = 1 << 28


class Kept(NamedTuple):
    """A page as plain data, which is not to be changed, or why there is none."""

    when: float
    found: Any


class HubPages:
    """Each page is fetched in a thread of its own, so that a hub that hangs delays no other request."""

    def __init__(
        self,
        url: Url | None,
        token_file: str = "",
        ca_file: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url, self._token_file, self._ca_file, self._clock = url, token_file, ca_file, clock
        self._kept: dict[str, Kept] = {}
        self._fetching: dict[str, asyncio.Future[None]] = {}

    async def get(self, path: str) -> Any:
        """Return a page, which is at most two seconds old if the hub answers. Raises ServerError."""
        kept = self._kept.get(path)
        if kept is None or self._age(kept) >= _KEPT_SECONDS:
            may_wait = _TIMEOUT if kept is None or self._is_stale(kept) else _PATIENCE
            await asyncio.wait([self._begin(path)], timeout=may_wait)
            kept = self._kept.get(path)
        if kept is None or self._is_stale(kept):
            raise ServerError(f"{self._name} has not answered for {_TIMEOUT:g} seconds")
        if isinstance(kept.found, ServerError):
            raise ServerError(str(kept.found))
        return kept.found

    def _age(self, kept: Kept) -> float:
        return self._clock() - kept.when

    def _is_stale(self, kept: Kept) -> bool:
        """An error is true until there is a page."""
        return self._age(kept) >= _STALE_SECONDS and not isinstance(kept.found, ServerError)

    def _begin(self, path: str) -> asyncio.Future[None]:
        """Return the fetch that is in progress, or begin one."""
        if path not in self._fetching:
            loop = asyncio.get_running_loop()
            self._fetching[path] = loop.create_future()
            threading.Thread(target=self._run, args=(path, loop), name="hub", daemon=True).start()
        return self._fetching[path]

    def _run(self, path: str, loop: asyncio.AbstractEventLoop) -> None:
        found: Any = ServerError(f"{self._name} cannot be read")
        try:
            found = self._fetch(path)
        finally:
            with suppress(RuntimeError):  # the service has ended
                loop.call_soon_threadsafe(self._keep, path, found)

    def _keep(self, path: str, found: Any) -> None:
        self._kept[path] = Kept(self._clock(), found)
        self._fetching.pop(path).set_result(None)

    @property
    def _name(self) -> str:
        return f"the hub at {self._url.authority}" if self._url else "the hub"

    def _fetch(self, path: str) -> Any:
        if self._url is None:
            return ServerError("no hub is configured for the service: set serve.hub")
        try:
            with closing(self._connect(self._url)) as connection, _deadline(connection):
                connection.request("GET", self._url.path + path, headers=self._headers())
                answer = connection.getresponse()
                body = answer.read(_LARGEST)
            if answer.status != 200:
                return ServerError(f"{self._name} answers {answer.status} {answer.reason}")
            return parse_json(body)
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            return ServerError(f"{self._name} does not answer: {sentence(error)}")

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


@contextmanager
def _deadline(connection: HTTPConnection) -> Iterator[None]:
    """End it after this time, also if a byte arrives now and then."""

    late = threading.Event()

    def end() -> None:
        late.set()
        with suppress(OSError, AttributeError):  # it is closed, or not open yet
            connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(_TIMEOUT, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, HTTPException):
        if late.is_set():
            raise TimeoutError(f"no page in {_TIMEOUT:g} seconds") from None
        raise
    finally:
        timer.cancel()
