"""Reading from what may never answer, such as a driver: in a thread of its own, so that nobody else hangs."""

from __future__ import annotations

import time
from typing import Any, Callable, Generic, List, Optional, Tuple, TypeVar

from joblens.core.errors import OutsideError
from joblens.core.host import Host
from joblens.core.model import Rows

Collect = Callable[[Host], Callable[[], Tuple[Rows, ...]]]
Answer = TypeVar("Answer")
_SECONDS = 1.0
_STALE_SECONDS = 10.0  # an answer that took longer than this tells of another time


class NoAnswerError(OutsideError):
    """It did not come in time. The question stands."""


class TimedReader(Generic[Answer]):
    """A function that is called in one thread, and waited for only so long.

    While it is out it is not called again: who asks then does not wait, and gets its answer when it is there.
    The thread ends with this object, or, if the function never returns, with the process.
    """

    def __init__(self, ask: Callable[[], Answer], seconds: float, whom: str = "the driver") -> None:
        import threading

        self._ask, self._seconds, self._whom = ask, seconds, whom
        self._box: List[Any] = []  # what to call, then what came of it
        self._question, self._answer = threading.Semaphore(0), threading.Semaphore(0)
        self._asked: Optional[float] = None
        threading.Thread(target=_serve, args=(self._box, self._question, self._answer), daemon=True).start()

    def __call__(self) -> Answer:
        if self._asked is None or self._wait(0.0) > _STALE_SECONDS:
            self._begin()
            self._wait(self._seconds)
        return self._take()

    def _begin(self) -> None:
        self._box[:] = [self._ask]
        self._asked = time.monotonic()
        self._question.release()

    def _wait(self, seconds: float) -> float:
        """How long it took in all."""
        if not self._answer.acquire(timeout=seconds):
            raise NoAnswerError(f"{self._whom} does not answer")
        took, self._asked = time.monotonic() - (self._asked or 0.0), None
        return took

    def _take(self) -> Answer:
        found = self._box.pop()
        if isinstance(found, Exception):
            raise found
        answer: Answer = found
        return answer

    def __del__(self) -> None:
        if self._asked is None:
            self._box[:] = []
            self._question.release()


def needs_timeout(host: Host) -> bool:
    """A recording answers, and remembers what it was asked by one thread."""
    return type(host) is Host and host.live


def with_timeout(*folders: str) -> Callable[[Collect], Collect]:
    """For collectors of devices whose firmware is asked: one that hangs must not hold up the others.

    Where none of the folders is there it will not hang, and needs no thread.
    """

    def decorate(collect: Collect) -> Collect:
        def open_patiently(host: Host) -> Callable[[], Tuple[Rows, ...]]:
            if not needs_timeout(host) or not any(map(host.exists, folders)):
                return collect(host)
            # With a host of its own: open files that two threads share could be closed by one of them.
            return TimedReader(collect(Host()), _SECONDS, "the hardware")

        return open_patiently

    return decorate


def _serve(box: List[Any], question: Any, answer: Any) -> None:
    """Knows nobody but its box while it waits, so that whoever asks can be forgotten."""
    while True:
        question.acquire()
        if not box:
            return
        box[:] = [_outcome(box[0])]
        answer.release()


def _outcome(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        return error
