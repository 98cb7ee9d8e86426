"""The bad lines of one file: some are told with what is wrong, the others counted."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

_NAMED = 10


class Outcome(Protocol):
    bad: int  # lines
    problems: list[str]


class Trouble:
    def __init__(self, path: Path, outcome: Outcome) -> None:
        self.path, self.outcome, self.count = path, outcome, 0

    def tell(self, number: int, what: str) -> None:
        self.count += 1
        self.outcome.bad += 1
        if self.count <= _NAMED:
            self.outcome.problems.append(f"{self.path}:{number}: {what}")

    def sum_up(self) -> None:
        if self.count > _NAMED:
            self.outcome.problems.append(f"{self.path}: {self.count - _NAMED} more lines like that")
