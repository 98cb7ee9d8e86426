"""What a job wanted and did not get, from its series and processes."""

from __future__ import annotations

import pytest

from joblens.analysis.demand import find_demand, find_unsampled
from joblens.analysis.used import find_used
from joblens.analysis.view import Point
from joblens.store.reader import ProcessUse, Series


def process(cpu: float, delay: float | None) -> ProcessUse:
    return ProcessUse(1, 1, 0, "p", "p", "c1", 0.0, 10.0, cpu, 0.0, 0, 1, 0, 0, 0, 9, 0, delay)


def series(**last: float) -> Series:
    return Series([10.0], {name: [value] for name, value in last.items()}, {}, {})


def points(cores: float, delayed: float | None, blocked: float | None = 0.0) -> list[Point]:
    return [Point(0.0, 10.0, cores, 0.0, 0.0, 0.0, 0.0, 1, 1, delayed, blocked)]


def test_a_quota_that_a_neighbour_uses_up() -> None:
    """In a cgroup that it shares, a job was stopped only as far as it has used the quota itself."""
    asleep = find_used(
        10.0, {}, series(cpu_seconds=0.01, throttled_seconds=8.0), points(0.0, 0.0), [], False, 0.2
    )
    assert asleep["throttled_seconds"] == pytest.approx(0.04)
    busy = find_used(
        10.0, {}, series(cpu_seconds=2.0, throttled_seconds=8.0), points(0.2, 0.0), [], False, 0.2
    )
    assert (busy["throttled_seconds"], busy["throttled_share"]) == (8.0, 0.8)
    own = find_demand(5.0, series(throttled_seconds=5.0), points(0.5, 0.5), [process(5.0, 5.0)], 1.0)
    assert (own["throttled_share"], own["run_delay_share"], own["cores_delayed"]) == (0.5, 0.0, 0.0)


def test_short_processes_wait_as_the_sampled_ones() -> None:
    """They leave no run-queue delay behind; a hundred times more than was seen is not believed."""
    found = find_demand(8.0, series(), points(0.8, 0.2), [process(4.0, 2.0)], 1.0)
    assert found["run_delay_share"] == pytest.approx(1 / 3)
    assert found["cores_delayed"] == pytest.approx(0.4)
    many = find_demand(400.0, series(), points(0.8, 0.2), [process(4.0, 2.0)], 1.0)
    assert many["cores_delayed"] == pytest.approx(2.0)


def test_what_nobody_counted() -> None:
    """Records of older versions, imports and other servers have no run-queue delay: it is not known."""
    found = find_demand(5.0, series(), points(0.5, None, None), [process(5.0, None)], 1.0)
    assert {name for name, value in found.items() if value is not None} == set()
    assert find_demand(None, series(), [], [], 1.0)["cores_delayed"] is None
    assert find_unsampled(5.0, False, []) is None


def test_storage() -> None:
    """As a share of all that had something to do, whatever the number of processes."""
    found = find_demand(5.0, series(), points(0.5, 0.5, 4.0), [process(5.0, 5.0)], 1.0)
    assert (found["blocked_mean"], found["blocked_share"]) == (4.0, 0.8)
