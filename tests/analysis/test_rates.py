from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.series.rates import gaps, increase_between, rates

amounts = st.integers(0, 2**53).map(float)
moments = st.floats(0, 1e6, allow_nan=False)
steps = st.integers(1, 50)


def test_from_each_point_to_the_next() -> None:
    """Per second, one value less than points."""
    assert rates([0, 2, 3], [10, 14, 14], longest=10) == [2, 0]
    assert rates([5], [1], longest=10) == rates([], [], longest=10) == []


def test_reset() -> None:
    """A counter that goes back has begun anew: what it shows was added since."""
    assert rates([0, 1, 3], [100, 110, 8], longest=10) == [10, 4]


def test_nothing_is_said_over_a_gap() -> None:
    """Neither over a long time nor where a value is unknown."""
    assert rates([0, 1, 9, 10, 11], [1, 2, 3, None, 5], longest=5) == [1, None, None, None]


@given(st.lists(st.tuples(moments, st.none() | amounts)), st.floats(0.1, 1e6))
def test_any_points(points: list[tuple[float, float | None]], longest: float) -> None:
    """Unordered or equal times, unknown values, resets: a rate is never negative, and None where unknown."""
    times, counter = [time for time, _ in points], [value for _, value in points]
    found = rates(times, counter, longest)
    assert len(found) == max(len(points) - 1, 0)
    for number, rate in enumerate(found):
        elapsed = times[number + 1] - times[number]
        known = None not in counter[number : number + 2] and 0 < elapsed <= longest
        assert (rate is not None) == known
        assert rate is None or rate >= 0


@given(st.lists(st.tuples(steps, amounts), min_size=2))
def test_nothing_is_lost(points: list[tuple[int, float]]) -> None:
    """Rates over their times add up to what a counter has grown, whatever it was reset to in between."""
    times = [float(sum(step for step, _ in points[: n + 1])) for n in range(len(points))]
    counter = [value for _, value in points]
    grown = sum(now - before if now >= before else now for before, now in zip(counter, counter[1:]))
    found = rates(times, counter, longest=100)
    total = sum(rate * (b - a) for rate, a, b in zip(found, times, times[1:]) if rate is not None)
    assert total == pytest.approx(grown)


def test_gaps_at_both_ends_and_between() -> None:
    """Where no sample is for longer than it may be."""
    assert gaps([12, 13, 20], 0, 30, longest=5) == [(0, 12), (13, 20), (20, 30)]
    assert gaps([], 0, 30, longest=5) == [(0, 30)]
    assert gaps([5, 10, 15], 0, 20, longest=5) == []


@given(st.lists(moments), moments, moments, st.floats(0.1, 1e5))
def test_any_gaps(times: list[float], start: float, end: float, longest: float) -> None:
    """Within the job, in order, longer than it may be, and no sample inside; all else is covered."""
    found = gaps(times, start, end, longest)
    edges = [edge for gap in found for edge in gap]
    assert edges == sorted(edges)
    for a, b in found:
        assert b - a > longest
        assert start <= a < b <= end
        assert not [time for time in times if a < time < b]
    known = sorted({start, end, *(time for time in times if start < time < end)}) if start < end else []
    covered = sum(b - a for a, b in zip(known, known[1:]) if b - a <= longest)
    assert covered + sum(b - a for a, b in found) == pytest.approx(max(end - start, 0))


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [(10, 14, 40.0), (11.5, 12.5, 10.0), (9, 20, 40.0), (12, 12, 0.0)],
    ids=["all", "between samples", "beyond them", "no time"],
)
def test_increase_between(start: float, end: float, found: float) -> None:
    """At moments between two samples it stood in between; what is before the first and after the last is not
    known. One that begins anew goes on."""
    assert increase_between([10, 11, 12, 13, 14], [5, 15, None, 35, 45], start, end) == pytest.approx(found)
    assert increase_between([10, 12, 14], [85, 5, 20], 10, 14) == 20
    assert increase_between([10], [5], 10, 14) is None
