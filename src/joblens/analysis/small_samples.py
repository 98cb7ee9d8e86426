"""How far from few values another may be: prediction intervals by Student's t."""

from __future__ import annotations

import math
import statistics
from functools import lru_cache

_NORMAL = statistics.NormalDist()
_STEP, _STEPS = 0.05, 160  # of the integral over a normal distribution
_MOST = 200  # degrees of freedom; beyond, the normal distribution is as good


@lru_cache(1024)
def student(freedom: int, probability: float) -> float:
    """Return the value beyond which, on both sides, Student's t is with this probability."""
    if freedom > _MOST:
        return _NORMAL.inv_cdf(1.0 - probability / 2.0)
    low, high = 0.0, 1e6
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if _beyond(middle, freedom) > probability else (low, middle)
    return high


def _beyond(value: float, freedom: int) -> float:
    """The finite series for whole degrees of freedom (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(value / math.sqrt(freedom))
    cosine, sine, odd = math.cos(angle), math.sin(angle), freedom % 2
    term, total = cosine if odd else 1.0, 0.0
    for number in range(freedom // 2):
        total += term
        term *= cosine * cosine * (2 * number + 1 + odd) / (2 * number + 2 + odd)
    return 1.0 - (2.0 / math.pi * (angle + sine * total) if odd else sine * total)


def prediction(count: int, probability: float) -> float:
    """Return how many standard deviations of so many values another is away with this probability."""
    return student(count - 1, probability) * math.sqrt(1.0 + 1.0 / count)


@lru_cache(1024)
def usual_range(count: int) -> float:
    """Return the mean distance of the lowest and the highest of so many normal values (Tippett 1925)."""
    parts = (_NORMAL.cdf(number * _STEP) for number in range(-_STEPS, _STEPS + 1))
    return sum(1.0 - part**count - (1.0 - part) ** count for part in parts) * _STEP
