"""Distances of jobs by all of their metrics together."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.mahalanobis import distances, threshold
from joblens.analysis.outliers import modified_z


@pytest.mark.parametrize(("metrics", "quantile"), [(1, 12.116), (2, 15.202), (6, 24.103)])
def test_threshold(metrics: int, quantile: float) -> None:
    """Close to the quantiles of chi-squared that tables have for 0.9995."""
    assert threshold(metrics) ** 2 == pytest.approx(quantile, rel=0.06)


def test_metrics_that_differ_only_together() -> None:
    """Twice the work takes twice the time. The job that takes as long as the longest and does as little as
    the shortest is within the range of each metric, and no outlier of either."""
    jobs = [[float(size), 10.0 * size] for size in range(50, 151, 5)] + [[55.0, 1450.0]]
    found = distances(jobs)
    assert found[-1] > threshold(2, len(jobs))
    assert max(found[:-1]) < threshold(2)
    for metric in range(2):
        assert abs(modified_z([job[metric] for job in jobs])[-1]) < 3.5


def test_four_kernel_builds() -> None:
    """More metrics than jobs, and some that do not differ at all."""
    jobs = [
        [528.0, 449.0, 1e8, 10_600.0, 4e9, 1.7e9],
        [543.0, 449.9, 1e8, 10_600.0, 4e9, 1.7e9],
        [1174.0, 627.7, 1e8, 10_600.0, 4e9, 1.7e9],
        [565.0, 450.4, 1e8, 10_600.0, 4e9, 1.7e9],
    ]
    assert [it > threshold(6, 4) for it in distances(jobs)] == [False, False, True, False]


@given(
    st.lists(
        st.lists(st.floats(0, 1e15, allow_subnormal=False), min_size=3, max_size=3), min_size=3, max_size=12
    )
)
def test_any_jobs(jobs: list[list[float]]) -> None:
    """Distances are finite, and do not depend on the units of the metrics."""
    found = distances(jobs)
    assert len(found) == len(jobs)
    assert all(math.isfinite(it) and it >= 0 for it in found)
    scaled = distances([[job[0] * 1024.0, job[1], job[2]] for job in jobs])
    assert scaled == pytest.approx(found, rel=1e-6, abs=1e-6)


@given(st.lists(st.lists(st.floats(1.0, 1.02), min_size=4, max_size=4), min_size=3, max_size=12))
def test_jobs_that_are_almost_equal(jobs: list[list[float]]) -> None:
    """None of them is far away, however small their spread is."""
    assert max(distances(jobs)) < threshold(4)


@pytest.mark.parametrize("count", [3, 5, 12])
def test_few_jobs_have_no_outlier_by_chance(count: int) -> None:
    """Of sets of jobs that differ by chance only, by 15 %, about one in twenty has one."""
    chance = random.Random(count)
    sets = [[[chance.gauss(1.0, 0.15) for _ in range(6)] for _ in range(count)] for _ in range(150)]
    assert sum(max(distances(it)) > threshold(6, count) for it in sets) <= 15
