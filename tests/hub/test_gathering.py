"""Requests that arrive within a moment are handled together."""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Iterator
from pathlib import Path

import pytest

from joblens.hub import gathering, receive
from joblens.hub.gathering import GatheringLoop, GatheringSelector
from joblens.hub.receive import Receiver
from joblens.hub.settings import HubSettings
from joblens.wire.header import parse_header
from waiting import PATIENCE

from .sending import make_batch, make_header

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
        assert selector.has_gathered
        assert ready(selector) == {first, second}
        assert not selector.has_gathered
        assert waits == [2 * gathering._PER_CONNECTION]
        assert os.read(second, 9) == b"b"
        now[0] += gathering._IDLE
        assert ready(selector) == {first, second}
        assert len(waits) == 2
        assert (selector.has_gathered, selector.since) == (True, now[0])


def test_periodic_tasks_run_while_the_loop_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are due between the first request of a period and the end of its wait for others."""
    now = [1000.25]
    loop = GatheringLoop()
    try:
        with monkeypatch.context() as patch:
            patch.setattr("joblens.hub.gathering.time.monotonic", lambda: now[0])
            loop.gathering.since = 990.125
            for passed in (0.0, 0.125, 0.75, 7.5):
                now[0] = 1000.25 + passed
                wait = loop.until_next(1.0)
                assert 0 < wait <= 1.0
                assert 0.125 < (now[0] + wait) % 1.0 < 0.125 + gathering._LONGEST
    finally:
        loop.close()


def test_batches_for_which_the_loop_has_waited_are_synced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are stored with one sync. Without such a wait a batch waits for those of other nodes."""
    monkeypatch.setattr(receive, "_SHARE", 1e6)
    monkeypatch.setattr(receive, "_LONGEST_SHARE", 1e6)

    async def store() -> list[int]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, GatheringLoop)
        receiver = Receiver(HubSettings(), tmp_path, print)
        receiver.start()
        commits = []
        for sequence in (1, 2):
            loop.gathering.has_gathered = sequence == 1
            answers = [loop.create_future() for _ in range(3)]
            for number, answer in enumerate(answers):
                node = f"n{number}-{sequence}"
                header = parse_header(make_header(sequence, node))
                receiver.nodes.get("lab", node).heard -= 10.0  # else it is taken to be sending its spool
                receiver.store(header, make_batch(sequence, node), 1, None, answer.set_result)
            if sequence == 2:
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert len(receiver._collected) == len(answers)  # not passed to the journal
                receiver.hurry()
            async with asyncio.timeout(PATIENCE):
                assert {response.status for response in await asyncio.gather(*answers)} == {200}
            commits.append(receiver.journal.commits)
        receiver.close()
        return commits

    with asyncio.Runner(loop_factory=GatheringLoop) as runner:
        assert runner.run(store()) == [1, 2]
