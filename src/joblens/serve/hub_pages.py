"""The live pages of the hub, fetched at most every two seconds for all viewers together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, NamedTuple

from joblens.core.config import Url
from joblens.core.errors import ServerError, sentence
from joblens.core.json_file import parse_json
from joblens.wire.credentials import bearer
from joblens.wire.http_client import Client

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
            client = Client(self._url, _TIMEOUT, self._ca_file, _LARGEST, whole_timeout=_TIMEOUT)
            with closing(client):
                answer = client.get(path, bearer(self._token_file))
            if answer.status != 200:
                return ServerError(f"{self._name} answers {answer.status}")
            return parse_json(answer.body)
        except (OSError, ServerError, ValueError, RecursionError) as error:
            return ServerError(f"{self._name} does not answer: {sentence(error)}")
