"""Jobs side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from joblens.analysis.comparison import Change, by_cpu, compare
from joblens.analysis.series.timeline import make_points_of_ends
from joblens.record.ends import EndedProcess
from joblens.record.report import Job, JobRecord, Point, Used
from joblens.store.end_groups import GroupUse
from joblens.store.end_table import table_of


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
    assert [it.what for it in by_cpu(found.operations)] == [("op:fetch",), ("op:check",), ("op:build",)]
    assert found.first_change == Change("operation", ("op:check",), "cpu_seconds", 20.0)


def test_a_missing_operation_counts_as_none() -> None:
    """In the ratio as in the difference; of a job without records nothing is known."""
    records = [
        JobRecord(job=Job(id=id, cluster="fox", name="", user="", start=0.0, end=100.0)) for id in "1234"
    ]
    both = [GroupUse(("a",), 1, 0.0, 10.0), GroupUse(("b",), 1, 1.0, 10.0)]
    found = compare(records, [both, both, both[:1], []], [[]] * 4, 1).operations
    assert [(it.metric, it.values, it.ratio) for it in found if it.what == ("b",)] == [
        ("cpu_seconds", [10.0, 10.0, 0.0, None], 0.5),
        ("span_seconds", [0.0, 0.0, 0.0, None], None),
        ("processes", [1, 1, 0, None], 0.5),
    ]


def _sampled(start: float, seconds: int, slow: int) -> JobRecord:
    """Eight cores, and from a second on four."""
    points = [Point(start + at, start + at + 1, cores=8.0 if at < slow else 4.0) for at in range(seconds)]
    return JobRecord(
        job=Job(id="1", cluster="fox", name="", user="", start=start, end=start + seconds), timeline=points
    )


def test_timelines_begin_together() -> None:
    """Each has the length of the longest job, and is unknown after the end of its own."""
    records = [_sampled(1000.0, 60, 60), _sampled(5000.0, 120, 30)]
    found = compare(records, [[], []], [[], []], 1)
    assert (found.step_seconds, [it.metric for it in found.timelines]) == (1.0, ["cores"])
    first, second = found.timelines[0].values
    assert first == pytest.approx([8.0] * 60 + [None] * 60)
    assert second == pytest.approx([8.0] * 30 + [4.0] * 90)
    assert found.first_change is not None
    kind, what, metric, seconds, ratio = found.first_change
    assert (kind, what, metric) == ("timeline", (), "cores")
    assert [seconds, ratio] == pytest.approx([30.0, 0.5])


def test_timelines_that_differ_as_runs_do() -> None:
    """No change, if the runs of a group differ as much; nor at the end of a job."""
    runs = [_sampled(0.0, 120, 30), _sampled(0.0, 120, 120), _sampled(0.0, 120, 30), _sampled(0.0, 120, 120)]
    assert compare(runs, [[]] * 4, [[]] * 4, 2).first_change is None
    ends = [_sampled(0.0, 60, 60), _sampled(0.0, 120, 120)]
    assert compare(ends, [[]] * 2, [[]] * 2, 1).first_change is None


def test_untagged_processes_are_no_operation() -> None:
    """Without a tag the first change is a program's."""
    records = [_sampled(0.0, 100, 100), _sampled(0.0, 100, 100)]
    untagged = [GroupUse(("",), 2, 0.0, 800.0)]
    programs = [[GroupUse(("make",), 1, 0.0, 1.0), GroupUse(("cc",), 9, 5.0, cpu)] for cpu in (300.0, 450.0)]
    for it in records:
        it.used.cpu_seconds = 800.0
    found = compare(records, [untagged, untagged], programs, 1)
    assert found.operations == []
    assert found.first_change == Change("program", ("cc",), "cpu_seconds", 5.0, 1.5)


@pytest.mark.parametrize("swapped", [False, True])
def test_without_records_nothing_is_new_or_gone(swapped: bool) -> None:
    """A job without exact records says nothing of its programs: the first change is that of the timelines.
    The largest programs of the other job come first."""
    records = [_sampled(0.0, 100, 100), _sampled(0.0, 100, 50)]
    known = [GroupUse(("make",), 1, 0.0, 1.0), GroupUse(("cc",), 9, 5.0, 300.0)]
    tagged = [GroupUse(("op:build",), 9, 0.0, 300.0)]
    for it in records:
        it.used.cpu_seconds = 300.0
    order = slice(None, None, -1) if swapped else slice(None)
    found = compare(records[order], [tagged, []][order], [known, []][order], 1)
    assert [it.what for it in by_cpu(found.programs)] == [("cc",), ("make",)]
    assert found.first_change is not None
    assert (found.first_change.kind, found.first_change.metric) == ("timeline", "cores")
    records[0].timeline = []
    assert compare(records[order], [tagged, []][order], [known, []][order], 1).first_change is None


def test_without_any_tag_no_operation_is_gone() -> None:
    """Records of the agent have no tags: their job is compared by programs."""
    records = [_sampled(0.0, 100, 100), _sampled(0.0, 100, 100)]
    for it in records:
        it.used.cpu_seconds = 800.0
    tagged, untagged = [GroupUse(("op:build",), 9, 0.0, 300.0)], [GroupUse(("",), 9, 0.0, 450.0)]
    programs = [[GroupUse(("cc",), 9, 5.0, cpu)] for cpu in (300.0, 450.0)]
    found = compare(records, [tagged, untagged], programs, 1)
    assert [it.values for it in by_cpu(found.operations)] == [[300.0, None]]
    assert found.first_change == Change("program", ("cc",), "cpu_seconds", 5.0, 1.5)


PROCESSES = st.builds(
    lambda began, seconds, cpu: EndedProcess(
        began_seconds=1e9 + began, ended_seconds=1e9 + began + seconds, user_seconds=cpu, system_seconds=cpu
    ),
    st.floats(0, 50),
    st.floats(0, 49),
    st.floats(0, 100),
)


@given(st.lists(PROCESSES, min_size=1, max_size=20), st.integers(1, 200))
def test_points_of_processes_add_up(processes: list[EndedProcess], most: int) -> None:
    """Over the time of the job, cores in use are the CPU time of its processes, each over its own life."""
    points = make_points_of_ends(table_of(processes, EndedProcess), 1e9, 1e9 + 100.0, most)
    assert len(points) == most
    used = sum((it.cores or 0.0) * it.seconds for it in points)
    assert used == pytest.approx(sum(it.cpu_seconds or 0.0 for it in processes), rel=1e-3, abs=1e-3)
    for point in points:
        running = [it for it in processes if (it.began_seconds or 0.0) < point.end]
        assert (point.processes or 0.0) <= len(running) + 1e-6


def test_points_of_unknown_times() -> None:
    """A process without a start or an end is in no point; of none there are none."""
    unknown = [EndedProcess(began_seconds=5.0), EndedProcess(ended_seconds=5.0)]
    assert make_points_of_ends(table_of(unknown, EndedProcess), 0.0, 10.0, 5) == []
    assert make_points_of_ends(table_of([], EndedProcess), 0.0, 10.0, 5) == []
