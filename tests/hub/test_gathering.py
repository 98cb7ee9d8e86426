"""Requests that arrive within a moment are handled together."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator

import pytest

from joblens.hub import gathering
from joblens.hub.gathering import GatheringSelector

Pipes = list[tuple[int, int]]


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    found = [os.pipe(), os.pipe()]
    yield found
    for end in (end for pipe in found for end in pipe):
        os.close(end)


def ready(selector: GatheringSelector) -> set[int]:
    return {key.fd for key, _ in selector.select(10.0)}


def test_the_first_event_waits_for_others(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause, what arrives soon after the first event is handled with it; then nothing waits."""
    now = [1000.0]
    monkeypatch.setattr("joblens.hub.gathering.time.monotonic", lambda: now[0])
    (first, to_first), (second, to_second) = pipes
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        os.write(to_second, b"b")

    monkeypatch.setattr("joblens.hub.gathering.time.sleep", sleep)
    with GatheringSelector() as selector:
        for end in (first, second):
            selector.register(end, selectors.EVENT_READ)
        os.write(to_first, b"a")
        assert ready(selector) == {first, second}
        assert ready(selector) == {first, second}
        assert waits == [2 * gathering._PER_CONNECTION]
        assert os.read(second, 9) == b"b"
        now[0] += gathering._IDLE
        assert ready(selector) == {first, second}
        assert len(waits) == 2
