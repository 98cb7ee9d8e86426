"""Jobs side by side."""

from __future__ import annotations

from joblens.analysis.comparison import compare
from joblens.record.report import Job, JobRecord, Used
from joblens.store.end_groups import GroupUse


def test_a_new_operation_is_the_first_that_changed() -> None:
    """Operations are in order of their start in a job, also one that the first job lacks."""

    def record(start: float) -> JobRecord:
        return JobRecord(
            job=Job(id="1", cluster="fox", name="", user="", start=start, end=start + 100),
            used=Used(cpu_seconds=100.0),
        )

    def group(name: str, began: float, cpu: float) -> GroupUse:
        return GroupUse((name,), 1, began, cpu)

    before = [group("op:fetch", 1000.0, 10.0), group("op:build", 1050.0, 50.0)]
    after = [
        group("op:fetch", 9000.0, 10.0),
        group("op:check", 9020.0, 30.0),
        group("op:build", 9060.0, 90.0),
    ]
    found = compare([record(1000.0), record(9000.0)], [before, after], [before, after], 1)
    assert [it.what for it in found.operations] == [("op:fetch",), ("op:check",), ("op:build",)]
    assert found.first_change == ("op:check",)


def test_a_missing_operation_counts_as_none() -> None:
    """In the ratio as in the difference; of a job without records nothing is known."""
    records = [
        JobRecord(job=Job(id=id, cluster="fox", name="", user="", start=0.0, end=100.0)) for id in "1234"
    ]
    both = [GroupUse(("a",), 1, 0.0, 10.0), GroupUse(("b",), 1, 1.0, 10.0)]
    (_, lacking) = compare(records, [both, both, both[:1], []], [[]] * 4, 1).operations
    assert (lacking.values, lacking.ratio) == ([10.0, 10.0, 0.0, None], 0.5)
