"""Live pages of a hub that answers, hangs, or sends byte by byte."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from joblens.core.config import Url
from joblens.core.errors import ServerError
from joblens.serve import hub_pages
from joblens.serve.hub_pages import HubPages

PAGE = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"n": 1}'


@contextmanager
def hub(answer: Callable[[socket.socket], None]) -> Iterator[Url]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    channel, _ = listener.accept()
                    threading.Thread(target=run, args=(channel,), daemon=True).start()

        def run(channel: socket.socket) -> None:
            with channel, suppress(OSError):
                channel.recv(10_000)
                answer(channel)

        threading.Thread(target=accept, daemon=True).start()
        yield Url(False, "127.0.0.1", listener.getsockname()[1], "")
        listener.shutdown(socket.SHUT_RDWR)


def test_a_hub_that_stops_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last page is shown for a while, then an error; meanwhile it is asked only once."""
    now, asked, release = [0.0], [0], threading.Event()

    def answer(channel: socket.socket) -> None:
        asked[0] += 1
        if asked[0] > 1:
            release.wait(60)
        channel.sendall(PAGE)

    async def read(url: Url) -> None:
        pages = HubPages(url, clock=lambda: now[0])
        assert await pages.get("/now") == {"n": 1}
        now[0] = 1.9
        assert await pages.get("/now") == {"n": 1}
        assert asked == [1]
        now[0] = 9.0
        assert await asyncio.gather(*(pages.get("/now") for _ in range(50))) == [{"n": 1}] * 50
        now[0] = 11.0
        with pytest.raises(ServerError, match="answer"):
            await pages.get("/now")
        assert asked == [2]
        release.set()
        found = None
        while found is None:
            now[0] += 3.0
            with suppress(ServerError):
                found = await pages.get("/now")
        assert found == {"n": 1}

    monkeypatch.setattr(hub_pages, "_TIMEOUT", 1.5)
    with hub(answer) as url:
        asyncio.run(read(url))


def test_a_hub_that_sends_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one deadline for the whole page; the error is shown at once while it is tried again."""
    monkeypatch.setattr(hub_pages, "_TIMEOUT", 0.3)
    ended = threading.Event()

    def answer(channel: socket.socket) -> None:
        channel.sendall(b"HTTP/1.1 200 OK\r\nServer: ")
        while not ended.wait(0.01):
            channel.sendall(b"H")

    async def read(url: Url) -> None:
        pages = HubPages(url)
        with pytest.raises(ServerError, match="the hub at 127"):
            await pages.get("/sets")
        while "/sets" in pages._fetching:
            await asyncio.wait([pages._fetching["/sets"]])
        with pytest.raises(ServerError, match="does not answer: timed out"):
            await pages.get("/sets")

    try:
        with hub(answer) as url:
            asyncio.run(read(url))
    finally:
        ended.set()
