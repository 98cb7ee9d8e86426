"""Rates from raw counters: the one place where resets and gaps are handled."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import sub


def rates(times: Sequence[float], counter: Sequence[float | None], longest: float) -> list[float | None]:
    """Return the rate per second between successive points, one value less than points.

    A decrease is a reset: the counter's value is what was added since. Over a gap longer than `longest` the
    rate is unknown: the mean over it is not the rate at any moment.
    """
    found: list[float | None] = []
    for number in range(1, len(times)):
        before, now = counter[number - 1], counter[number]
        elapsed = times[number] - times[number - 1]
        if before is None or now is None or elapsed <= 0 or elapsed > longest:
            found.append(None)
        else:
            found.append((now - before if now >= before else now) / elapsed)
    return found


def increase(counter: Sequence[float | None]) -> float | None:
    """Return the increase from the first to the last known value. A decrease is a reset of the counter."""
    known = [value for value in counter if value is not None]
    if len(known) < 2:
        return None
    return sum(now - before if now >= before else now for before, now in zip(known, known[1:]))


def increase_between(
    times: Sequence[float], counter: Sequence[float | None], start: float, end: float
) -> float | None:
    """Between two moments, at which it is taken to have stood between its samples around them."""
    known = [(time, value) for time, value in zip(times, counter) if value is not None]
    if len(known) < 2:
        return None
    sums = [0.0]
    for (_, before), (_, now) in zip(known, known[1:]):
        sums.append(sums[-1] + (now - before if now >= before else now))
    moments = [time for time, _ in known]
    return _at(moments, sums, end) - _at(moments, sums, start)


def _at(times: Sequence[float], values: Sequence[float], moment: float) -> float:
    place = bisect_right(times, moment)
    if place in (0, len(times)):
        return values[max(place - 1, 0)]
    part = (moment - times[place - 1]) / (times[place] - times[place - 1])
    return values[place - 1] + part * (values[place] - values[place - 1])


def gaps(times: Sequence[float], start: float, end: float, longest: float) -> list[tuple[float, float]]:
    """Stretches of the job without any sample, also before the first and after the last one."""
    moments = [start, *sorted(time for time in times if start < time < end), end]
    if max(map(sub, moments[1:], moments)) <= longest:  # most jobs have none, and samples are many
        return []
    return [(a, b) for a, b in zip(moments, moments[1:]) if b - a > longest]
