"""Contenders alternate, and the result is the ratio of two that ran one after the other.

Time is CPU time. Other load slows all contenders at the same moments, so the ratio within a round is stable
when absolute figures are not.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from typing import Callable, Dict, List, NamedTuple, Sequence

NS = 1_000_000_000
Work = Callable[[], int]  # returns how many pieces of work it has just done


class Spread(NamedTuple):
    """Median and quartiles."""

    low: float
    middle: float
    high: float

    @property
    def percent(self) -> float:
        """Return half the interquartile range in per cent of the median."""
        return 50 * (self.high - self.low) / self.middle if self.middle else 0.0


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    return spread([one / other for one, other in zip(above, below)])


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return where the median is with 95 % confidence, whatever the distribution: as the sign test has it."""
    ordered, count, tail, rank = sorted(values), len(values), 0.0, 0
    while rank < count // 2 and tail + math.comb(count, rank) / 2**count <= 0.025:
        tail += math.comb(count, rank) / 2**count
        rank += 1
    return ordered[max(rank - 1, 0)], ordered[count - max(rank, 1)]


def interleave(contenders: Dict[str, Work], rounds: int, turns: int) -> Dict[str, List[float]]:
    """Return CPU seconds per unit of work: one figure per contender and round, of several turns each."""
    for work in contenders.values():  # opens the files and learns their layout
        work()
    gc.freeze()  # as the agent does after its start
    found: Dict[str, List[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders) if number % 2 else list(reversed(contenders))
        for name in order:
            found[name].append(_time(contenders[name], turns))
    gc.unfreeze()  # DuckDB complains of what is left at the end
    return found


def _time(work: Work, turns: int) -> float:
    done = 0
    begin = time.process_time_ns()
    for _ in range(turns):
        done += work()
    return (time.process_time_ns() - begin) / done / NS
