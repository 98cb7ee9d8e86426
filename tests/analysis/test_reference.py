"""Judgements by a reference."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.reference import applies, is_too_short, judge, measure_groups, measure_totals
from joblens.record.model import ReferenceJob, ReferenceModel
from joblens.record.report import Job, JobRecord, Used
from joblens.store.end_groups import GroupUse

amounts = st.floats(0, 1e12)
REFERENCE = ReferenceJob("fox", "1", 0.0)
METRICS = ("duration_seconds", "memory_peak_bytes", "processes", "read_chars_bytes", "written_chars_bytes")


def record(cpu: float | None = None, **more: float) -> JobRecord:
    job = Job(
        id="1", cluster="fox", name="train-1", user="alice", start=0.0, end=1.0, tags={"a": "1", "b": "2"}
    )
    return JobRecord(job=job, used=Used(cpu_seconds=cpu, **more))  # type: ignore[arg-type]


def model(
    jobs: list[JobRecord], groups: list[list[GroupUse]] | None = None, **more: object
) -> ReferenceModel:
    made = {"name": "m", "owner": "alice", "created": 0.0, "jobs": [REFERENCE] * len(jobs)}
    figures = {"totals": measure_totals(jobs), "programs": measure_groups(groups or [])}
    return ReferenceModel(**{**made, **figures, **more})  # type: ignore[arg-type]


@given(st.lists(amounts, min_size=3, max_size=8), st.integers(0, 7))
def test_a_reference_job_is_usual(values: list[float], chosen: int) -> None:
    """Whatever the reference is, none of its own jobs is unlike it."""
    groups = [[GroupUse(("a",), 1, 0.0, value, value)] for value in values]
    jobs = [record(value) for value in values]
    at = chosen % len(values)
    found = judge(jobs[at], (), groups[at], model(jobs, groups), 0.0)
    assert (found.unusual, found.deviations, found.causes) == (False, [], [])


def test_reference_jobs_without_records() -> None:
    """They do not count as jobs without the program: what the others use stays usual."""
    known = [GroupUse(("cc",), 9, 0.0, 100.0)]
    usual = measure_groups([known, [], [], known, known])["cc"]["cpu_seconds"]
    assert (usual.centre, usual.low, usual.high) == (100.0, 100.0, 100.0)


@given(st.lists(amounts, min_size=3, max_size=8), amounts)
def test_any_job(values: list[float], value: float) -> None:
    """A deviation is outside of all reference values, and by a tenth of the usual value or more."""
    found = judge(record(value), (), (), model([record(it) for it in values]), 0.0)
    for it in found.deviations:
        assert not min(values) <= it.value <= max(values)
        assert abs(it.value - it.usual) >= 0.1 * it.usual


def test_ranked_by_the_difference() -> None:
    """The program that explains most comes first, and not the one with the largest ratio. One that differs by
    less than a hundredth of the job is left out; programs that are new or gone are there."""
    usual = {"ncks": 100.0, "ncatted": 10.0, "sh": 0.1, "rm": 30.0}
    groups = [[GroupUse((name,), 1, 0.0, cpu) for name, cpu in usual.items()] for _ in range(3)]
    now = {"ncks": 400.0, "ncatted": 200.0, "sh": 1.0, "wget": 20.0}
    own = [GroupUse((name,), 1, 0.0, cpu) for name, cpu in now.items()]
    reference = model([record(140.1)] * 3, groups)
    found = judge(record(621.0), (), own, reference, 0.0)
    cpu = [(it.group, it.ratio) for it in found.causes if it.metric == "cpu_seconds"]
    assert cpu == [("ncks", 4.0), ("ncatted", 20.0), ("rm", 0.0), ("wget", None)]
    assert judge(record(141.0), (), own, reference, 0.0).causes == []


@pytest.mark.parametrize(("user", "named"), [("alice", ["cc1", "ld"]), ("tushar", ["ld"])])
def test_names_of_other_users(user: str, named: list[str]) -> None:
    """A stored judgement names what its job does not have if all reference jobs are of the same user."""
    groups = [[GroupUse((name,), 1, 0.0, 100.0) for name in ("cc1", "ld")] for _ in range(3)]
    reference, own = model([record(200.0)] * 3, groups), [GroupUse(("ld",), 1, 0.0, 900.0)]
    reference.jobs = [ReferenceJob("fox", "1", 0.0, name) for name in ("alice", "alice", user)]
    stored, shown = (
        {it.group for it in judge(record(900.0), (), own, reference, 0.0, is_stored=it).causes}
        for it in (True, False)
    )
    assert (sorted(stored), sorted(shown)) == (named, ["cc1", "ld"])


def test_a_metric_that_is_not_known() -> None:
    """It is not compared, in the reference or in the job."""
    reference = model([record(1.0), record(None), record(1.0)])
    assert reference.totals == {}
    assert not judge(record(9.0), (), (), reference, 0.0).unusual
    assert not judge(record(None), (), (), model([record(1.0)] * 3), 0.0).unusual


def test_symptoms_alone_are_no_verdict() -> None:
    """They explain a job that is unlike the others, and say nothing of one that is not."""
    reference = model([record(10.0, run_delay_seconds=1.0)] * 3)
    found = judge(record(10.0, run_delay_seconds=50.0), (), (), reference, 0.0)
    assert (found.unusual, found.deviations) == (False, [])
    found = judge(record(20.0, run_delay_seconds=50.0), (), (), reference, 0.0)
    assert [it.metric for it in found.deviations] == ["cpu_seconds", "run_delay_seconds"]


def test_which_jobs_it_applies_to() -> None:
    """By name with * and ?, and all tags; only the owner's jobs, unless it is the staff's; while enabled."""
    job = record().job
    for expected, more in (
        (True, {"job_name": "train-*"}),
        (False, {"job_name": "train"}),
        (True, {"tags": {"a": "1"}}),
        (True, {"tags": {"a": "1", "b": "2"}, "job_name": "train-?"}),
        (False, {"tags": {"a": "1", "b": "3"}}),
        (False, {"tags": {"c": "1"}}),
        (False, {}),
        (False, {"job_name": "*", "enabled": False}),
        (False, {"job_name": "*", "owner": "bob"}),
        (True, {"job_name": "*", "owner": "bob", "everyone": True}),
    ):
        assert applies(model([record()], **more), job) is expected


@pytest.mark.parametrize("count", [3, 5, 12])
def test_few_jobs_raise_no_false_alarms(count: int) -> None:
    """Of jobs that differ by chance only, by 15 %, about one in a hundred is judged unusual."""
    chance = random.Random(count)

    def any_job() -> JobRecord:
        numbers = [max(chance.gauss(1.0, 0.15), 0.01) * 1e9 for _ in range(6)]
        return record(numbers[0], **dict(zip(METRICS, numbers[1:])))

    judged = [judge(any_job(), (), (), model([any_job() for _ in range(count)]), 0.0) for _ in range(400)]
    assert sum(it.unusual for it in judged) <= 12


def test_trifles() -> None:
    """A few bytes and milliseconds decide nothing, and a job that is as short as its reference is not judged;
    one that ended early is."""
    reference = model([record(0.004, duration_seconds=0.01, written_chars_bytes=434)] * 3)
    short = record(0.9, duration_seconds=0.9, written_chars_bytes=5)
    assert not judge(short, (), (), reference, 0.0).unusual
    assert is_too_short(short, reference)
    usual = model([record(50.0, duration_seconds=60.0)] * 3)
    assert not is_too_short(short, usual)
    assert judge(short, (), (), usual, 0.0).unusual
