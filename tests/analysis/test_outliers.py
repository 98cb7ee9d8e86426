"""Scores of values among others, and the processes that a difference comes from."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.outliers import (
    METHODS,
    Outlier,
    find_causes,
    find_group_outliers,
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
    assert modified_z([5.0, 5.0, 5.0, 6.0])[-1] == pytest.approx(1 / (1.253314 * 0.25))
    assert z([1.0, 1.0, 4.0]) == pytest.approx([-0.7071, -0.7071, 1.4142], abs=1e-4)
    assert iqr([1.0, 2.0, 3.0, 4.0, 10.0]) == [-0.5, 0.0, 0.0, 0.0, 3.0]
    assert iqr([2.0, 2.0, 2.0, 2.0, 9.0])[-1] == math.inf


@pytest.mark.parametrize(("method", "found"), [("modified-z", [2]), ("iqr", [2]), ("z", [])])
def test_few_jobs(method: str, found: list[int]) -> None:
    """Of four jobs two methods find the one; z, at most 1.5 then, finds none."""
    assert [it.job for it in find_outliers("cpu_seconds", CPU, method)] == found
    assert [it.job for it in find_outliers("cpu_seconds", [1.0] * 15 + [9.0], "z")] == [15]


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
