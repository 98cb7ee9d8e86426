"""The agent's pages: rendered once for all who ask at the same time."""

from __future__ import annotations

import time

from joblens.agent.loop import PageCache


class Source:
    def __init__(self) -> None:
        self.now, self.rendered = 100.0, 0
        self.pages = PageCache(lambda: self.now)

    def ask(self, version: int, name: str = "/metrics", seconds: float = 0.0) -> bytes:
        def render() -> bytes:
            end = time.thread_time() + seconds
            while time.thread_time() < end:
                pass
            self.rendered += 1
            return b"%d" % self.rendered

        return self.pages.get(name, (version,), render)


def test_once_per_tick() -> None:
    """Requests before the next tick get the same bytes; a page is never older than a second."""
    source = Source()
    first = source.ask(1)
    assert all(source.ask(1) is first for _ in range(1000))
    source.now += 0.5
    assert source.ask(2) == b"2"
    assert source.ask(2, "/sets") == b"3"
    source.now += 1.5
    assert source.ask(2) == b"4"


def test_a_share_of_the_time() -> None:
    """Where something new comes all the time, pages wait ten times as long as they took."""
    source = Source()
    for version in range(1000):
        source.ask(version, seconds=0.0 if version else 0.01)
        source.now += 0.0001
    assert 1 <= source.rendered <= 2
    source.now += 10
    assert source.ask(1000) == b"%d" % source.rendered


def test_old_pages_take_no_memory() -> None:
    source = Source()
    source.ask(1)
    source.pages.forget_old()
    assert source.pages._pages
    source.now += 2
    source.pages.forget_old()
    assert not source.pages._pages
