"""What the hub does not take: a status, a word for the counters, and a sentence for the sender."""

from __future__ import annotations

from typing import NamedTuple

MALFORMED, TOO_LARGE = "malformed", "too large"  # of a batch that no hub will ever take


class Refused(Exception):  # noqa: N818 (it is an answer, and no error of ours)
    def __init__(self, status: int, reason: str, text: str, retry: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.reason, self.text, self.retry = status, reason, text, retry

    def answer(self) -> Answer:
        return Answer(self.status, self.text, self.reason, self.retry)


class Answer(NamedTuple):
    """To one batch. 200: it is on the disk."""

    status: int
    text: str  # JSON if 200, else a sentence
    reason: str = ""
    retry: float = 0.0  # seconds after which to try again, for 429 and 503
