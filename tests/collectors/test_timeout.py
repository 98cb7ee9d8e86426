"""Reading from what may never answer."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from joblens.agent.sampler import Running
from joblens.collectors import timeout as patience
from joblens.collectors.load import SCHEMA as LOAD
from joblens.collectors.table import Collector
from joblens.collectors.timeout import NoAnswerError, TimedReader, with_timeout
from joblens.core.host import Host
from joblens.core.model import NO_KEY, Rows

LONG = 60.0


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.001)


class Slow:
    """Answers 1, 2, … each when it may."""

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.asked = self.answered = 0

    def __call__(self) -> int:
        self.asked += 1
        assert self.may.acquire(timeout=LONG)
        self.answered += 1
        return self.answered


def test_answer_in_time() -> None:
    """Always from the same thread, which is not ours."""
    threads = TimedReader(threading.get_ident, LONG)
    found = {threads() for _ in range(10)}
    assert len(found) == 1
    assert found != {threading.get_ident()}


def test_late_answer() -> None:
    """A caller during a pending call does not start another one, and gets the answer once it is there."""
    slow = Slow()
    ask = TimedReader(slow, 0.05)
    for _ in range(5):
        with pytest.raises(NoAnswerError, match="the driver does not answer"):
            ask()
    assert slow.asked == 1
    slow.may.release()
    wait_for(lambda: 1 in given(ask))
    assert slow.asked == 1


def given(ask: Callable[[], int]) -> list[int]:
    try:
        return [ask()]
    except NoAnswerError:
        return []


def test_answer_from_another_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that took very long is discarded and requested again."""
    monkeypatch.setattr(patience, "_STALE_SECONDS", 0.0)
    slow = Slow()
    ask = TimedReader(slow, 0.05)
    assert given(ask) == []
    slow.may.release(10_000)
    found: list[int] = []
    while not found:
        found = given(ask)
    assert found > [1]


def test_errors_are_reported() -> None:
    def fail() -> None:
        raise ValueError("no")

    ask = TimedReader(fail, LONG)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            ask()


def test_thread_ends_with_it() -> None:
    """A reader that is garbage-collected leaves no thread behind."""
    before = threading.active_count()
    for _ in range(20):
        assert TimedReader(lambda: 1, LONG)() == 1
    gc.collect()
    wait_for(lambda: threading.active_count() <= before)


def test_collector_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent reports that it does not answer and continues with the others; only one thread waits."""
    monkeypatch.setattr(patience, "_SECONDS", 0.05)
    may = threading.Event()

    @with_timeout("proc")
    def slow(host: Host) -> Callable[[], tuple[Rows, ...]]:
        def read() -> tuple[Rows, ...]:
            assert may.wait(LONG)
            return (Rows(LOAD, NO_KEY, [0] * len(LOAD.columns)),)

        return read

    running = Running(Collector("slow", slow, ""), 1, {})
    host, log = Host(), list[str]()
    assert running.sample(host, 0, log.append) == ()
    threads = threading.active_count()
    for tick in range(1, 20):
        assert running.sample(host, tick, log.append) == ()
    assert threading.active_count() == threads
    assert (running.error, log) == ("the hardware does not answer", ["slow: the hardware does not answer"])
    may.set()
    wait_for(lambda: bool(running.sample(host, 99, log.append)))
    assert running.error == ""


def test_no_thread_for_what_is_not_there(tmp_path: Path) -> None:
    """Nor for a recording, which answers."""

    def collect(host: Host) -> Callable[[], tuple[Rows, ...]]:
        return tuple

    before = threading.active_count()
    assert with_timeout("not/there")(collect)(Host()) is tuple
    assert with_timeout("proc")(collect)(Host(str(tmp_path))) is tuple
    assert threading.active_count() == before
