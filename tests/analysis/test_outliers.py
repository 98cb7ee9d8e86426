"""Scores of values among others, and the processes that a difference comes from."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.outliers import (
    LEAST_JOBS,
    METHODS,
    Outlier,
    find_causes,
    find_group_outliers,
    find_longer,
    find_outliers,
    iqr,
    modified_z,
    z,
)
from joblens.store.end_groups import GroupUse

CPU = [449.0, 449.9, 627.7, 450.4]  # four kernel builds, the third of which is labelled an outlier
amounts = st.floats(0, 1e12)


def test_scores_by_hand() -> None:
    """Iglewicz and Hoaglin's score by median and median deviation, z, and quartiles."""
    assert modified_z([1.0, 2.0, 3.0, 4.0, 100.0])[-1] == pytest.approx(0.6745 * 97)
    assert modified_z([5.0, 5.0, 4.0, 5.0, 6.0]) == [0.0, 0.0, -math.inf, 0.0, math.inf]
    assert z([1.0, 1.0, 4.0]) == pytest.approx([-0.5774, -0.5774, 1.1547], abs=1e-4)
    assert iqr([1.0, 2.0, 3.0, 4.0, 10.0]) == [-0.5, 0.0, 0.0, 0.0, 3.0]
    assert iqr([2.0, 2.0, 2.0, 2.0, 9.0])[-1] == math.inf


@pytest.mark.parametrize(("method", "found"), [("modified-z", [2]), ("iqr", [2]), ("z", [])])
def test_few_jobs(method: str, found: list[int]) -> None:
    """Of four jobs two methods find the one; z, at most 1.5 then, finds none."""
    assert [it.job for it in find_outliers("cpu_seconds", CPU, method)] == found
    assert [it.job for it in find_outliers("cpu_seconds", [1.0] * 15 + [9.0], "z")] == [15]


def test_one_of_equal_values() -> None:
    """A value that differs is an outlier also if all others are equal."""
    (found,) = find_outliers("x", [100.0, 100.0, 100.0, 10_000.0], "modified-z")
    assert (found.job, found.usual) == (3, 100.0)
    assert list(find_outliers("x", [100.0, 100.0, 100.0, 109.0], "modified-z")) == []


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", range(3, 14))
def test_least_number_of_jobs(method: str, count: int) -> None:
    """One value far from the others, which differ a little, is found from the least number of jobs on: of z,
    among fewer no score is above the threshold."""
    values = [*(100.0 + at * 1e-9 for at in range(count - 1)), 1e9]
    assert bool(list(find_outliers("x", values, method))) == (count >= LEAST_JOBS[method])
    if method != "modified-z":
        assert (METHODS[method][0](values)[-1] > METHODS[method][1]) == (count >= LEAST_JOBS[method])


def test_small_differences_are_none() -> None:
    """Runs that are almost equal have no outlier, however small their spread is."""
    assert list(find_outliers("x", [100.0, 100.0, 100.001, 105.0], "modified-z")) == []
    assert [it.job for it in find_outliers("x", [100.0, 100.0, 100.001, 115.0], "modified-z")] == [3]
    assert list(find_outliers("x", [100.0, None, None, 115.0], "modified-z")) == []


@pytest.mark.parametrize("method", METHODS)
@given(st.lists(amounts | st.none(), max_size=12))
def test_outliers_of_any_values(method: str, values: list[float | None]) -> None:
    """Each is one of the values, and fewer than half of them are outliers by the robust methods."""
    found = list(find_outliers("x", values, method))
    assert all(values[it.job] == it.value for it in found)
    known = sum(value is not None for value in values)
    assert len(found) <= known / 2


def test_groups_and_causes() -> None:
    """The operation and the program with most of the difference; small ones are not listed."""

    def job(build: float, link: float, tiny: float) -> list[GroupUse]:
        return [
            GroupUse(("op:build",), 10, 1.0, build, 2 * build),
            GroupUse(("op:link",), 1, 2.0, link, link),
            GroupUse(("op:tiny",), 1, 3.0, tiny, tiny),
        ]

    jobs = [job(100.0, 10.0, 0.1), job(101.0, 10.0, 0.1), job(160.0, 14.0, 0.9), job(100.0, 10.1, 0.1)]
    found = find_group_outliers(jobs, "modified-z")
    assert {(it.job, it.group[0]) for it in found} == {(2, "op:build"), (2, "op:link")}
    assert found[0].group == ("op:build",)
    (largest, second) = find_causes(Outlier(2, "cpu_seconds", 174.9, 111.1, 9.0), jobs)
    assert (largest.group, largest.usual, largest.value) == (("op:build",), 100.0, 160.0)
    assert largest.share == pytest.approx(60 / 64.8)
    assert second.group == ("op:link",)
    assert find_causes(Outlier(2, "memory_peak_bytes", 5.0, 1.0, 9.0), jobs) == []
    assert find_causes(Outlier(0, "cpu_seconds", 1.0, 0.0, 9.0), [job(1, 1, 1), [], []]) == []


def test_causes_of_an_outlier_without_records() -> None:
    """Nothing is known of its processes: none of those of the others is gone."""
    others = [GroupUse(("cc",), 9, 0.0, 100.0, ended_seconds=50.0)]
    jobs = [others, others, [], others]
    assert find_causes(Outlier(2, "cpu_seconds", 10.0, 100.0, 9.0), jobs) == []
    assert find_longer(Outlier(2, "duration_seconds", 10.0, 100.0, 9.0), jobs) == []


def test_longer_operations() -> None:
    """Of a longer duration an operation has the share by which it took longer on the clock, however many of
    its processes ran at once. Processes without a tag, which run from begin to end, are not named."""

    def job(start: float, build: float) -> list[GroupUse]:
        return [
            GroupUse(("",), 1, start, 1.0, build + 100, ended_seconds=start + build + 100),
            GroupUse(("op:build",), 64, start, 9.0, 64 * build, ended_seconds=start + build),
            GroupUse(("op:test",), 1, start + build, 9.0, 100.0, ended_seconds=start + build + 100),
        ]

    jobs = [job(0.0, 100.0), job(1000.0, 300.0), job(2000.0, 100.0)]
    (found,) = find_longer(Outlier(1, "duration_seconds", 450.0, 200.0, 9.0), jobs)
    assert found == (("op:build",), "span_seconds", 300.0, 100.0, 200 / 250)
    assert find_causes(Outlier(1, "duration_seconds", 450.0, 200.0, 9.0), jobs) == []
    assert find_longer(Outlier(1, "cpu_seconds", 450.0, 200.0, 9.0), jobs) == []


def test_a_missing_operation_is_found() -> None:
    """A job that lacks an operation of the others has 0 of it."""
    groups = [GroupUse(("a",), 1, 1.0, 5.0), GroupUse(("b",), 1, 2.0, 5.0)]
    found = find_group_outliers([groups, groups, groups[:1], groups, groups], "iqr")
    assert ("b",) in {it.group for it in found if it.job == 2 and it.value == 0}


def test_a_command_of_one_job_is_not_compared() -> None:
    """If only common groups count, one with the name of a temporary file is no outlier; a larger one is."""
    jobs = [[GroupUse(("a",), 1, 1.0, 5.0), GroupUse((f"/tmp/{it}",), 1, 2.0, 5.0)] for it in range(5)]
    jobs[3][0] = jobs[3][0]._replace(cpu_seconds=9.0)
    found = find_group_outliers(jobs, "iqr", only_common=True)
    assert {(it.job, it.group) for it in found} == {(3, ("a",))}


@pytest.mark.parametrize("count", [4, 5, 8, 20])
@pytest.mark.parametrize("method", ["modified-z", "iqr"])
def test_few_jobs_have_no_outlier_by_chance(method: str, count: int) -> None:
    """Of sets of jobs that differ by chance only, by 15 %, about one in twenty has an outlier in one of six
    metrics; by quartiles, one in ten."""
    chance = random.Random(count)
    found = 0
    for _ in range(150):
        metrics = [[chance.gauss(100.0, 15.0) for _ in range(count)] for _ in range(6)]
        found += any(list(find_outliers("x", values, method)) for values in metrics)
    assert found <= (15 if method == "modified-z" else 25)


def test_two_of_many_do_not_hide_each_other() -> None:
    """The interval is that of the others, without either."""
    values = [100.0, 101.0, 99.0, 102.0, 98.0, 100.5, 99.5, 101.5, 180.0, 185.0]
    assert [it.job for it in find_outliers("cpu_seconds", values, "modified-z")] == [8, 9]


@pytest.mark.parametrize(
    ("metric", "small", "large"),
    [("cpu_seconds", 0.9, 3.0), ("written_chars_bytes", 500_000.0, 5e6), ("processes", 2.0, 9.0)],
)
def test_trifles(metric: str, small: float, large: float) -> None:
    """Milliseconds, some bytes and one process more are no outlier, however many times the usual they are."""
    base = 0.01 if metric != "processes" else 1.0
    assert list(find_outliers(metric, [base, base, base, small], "modified-z")) == []
    assert [it.job for it in find_outliers(metric, [base, base, base, large], "modified-z")] == [3]
