"""Reading from what may never answer."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest

from joblens.collectors import patience
from joblens.collectors.patience import NoAnswerError, Patient

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
    threads = Patient(threading.get_ident, LONG)
    found = {threads() for _ in range(10)}
    assert len(found) == 1
    assert found != {threading.get_ident()}


def test_late_answer() -> None:
    """Whoever asks meanwhile does not ask again, and gets it when it is there."""
    slow = Slow()
    ask = Patient(slow, 0.05)
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
    """One that took very long is thrown away, and asked for anew."""
    monkeypatch.setattr(patience, "_STALE_SECONDS", 0.0)
    slow = Slow()
    ask = Patient(slow, 0.05)
    assert given(ask) == []
    slow.may.release(10_000)
    found: list[int] = []
    while not found:
        found = given(ask)
    assert found > [1]


def test_trouble_is_told() -> None:
    def fail() -> None:
        raise ValueError("no")

    ask = Patient(fail, LONG)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            ask()


def test_thread_ends_with_it() -> None:
    """Whoever is forgotten leaves no thread behind."""
    before = threading.active_count()
    for _ in range(20):
        assert Patient(lambda: 1, LONG)() == 1
    gc.collect()
    wait_for(lambda: threading.active_count() <= before)
