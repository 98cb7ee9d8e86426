"""Reading with a timeout, in a thread, from sources that may never answer, such as a driver."""

from __future__ import annotations

import time
from typing import Any, Callable, Generic, List, Optional, Tuple, TypeVar

from joblens.core.errors import OutsideError
from joblens.core.host import Host
from joblens.core.model import Rows

Collect = Callable[[Host], Callable[[], Tuple[Rows, ...]]]
Answer = TypeVar("Answer")
_SECONDS = 1.0
_STALE_SECONDS = 10.0  # an answer that took longer is discarded


class NoAnswerError(OutsideError):
    """The answer did not arrive in time. The request is still pending."""


class TimedReader(Generic[Answer]):
    """Calls a function in a thread, and waits only so long.

    While a call is pending it is not repeated: the next caller does not wait, and gets its answer once there
    is one. The thread ends with this object or, if the function never returns, with the process.
    """

    def __init__(self, ask: Callable[[], Answer], seconds: float, source: str = "the driver") -> None:
        import threading

        self._ask, self._seconds, self._source = ask, seconds, source
        self._box: List[Any] = []  # the function to call, then its result
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
        """Return how long the call took in total."""
        if not self._answer.acquire(timeout=seconds):
            raise NoAnswerError(f"{self._source} does not answer")
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
    """A recording always answers, and is used from one thread."""
    return type(host) is Host and host.live


def with_timeout(*folders: str) -> Callable[[Collect], Collect]:
    """For collectors that query a device's firmware: one that hangs must not delay the others.

    If none of the folders exists there is nothing to wait for, and no thread is needed.
    """

    def decorate(collect: Collect) -> Collect:
        def open_with_timeout(host: Host) -> Callable[[], Tuple[Rows, ...]]:
            if not needs_timeout(host) or not any(map(host.exists, folders)):
                return collect(host)
            # With its own host: open files shared by two threads could be closed by one of them.
            return TimedReader(collect(Host()), _SECONDS, "the hardware")

        return open_with_timeout

    return decorate


def _serve(box: List[Any], question: Any, answer: Any) -> None:
    """References only the box while it waits, so that the reader can be garbage-collected."""
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
