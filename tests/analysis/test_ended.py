from __future__ import annotations

from joblens.analysis.ended import count_processes, merge_ended
from joblens.record.ends import EndedProcess
from joblens.record.report import ProcessUse


def sampled(pid: int, start: int, last: float = 5.0) -> ProcessUse:
    return ProcessUse(pid, start, 1, "x", "x y", "n", 1.0, last, 1.0, 0.5, looks=3)


def ended(pid: int, start: int, exact: int = 1, at: float = 6.0) -> EndedProcess:
    return EndedProcess(
        node="n", pid=pid, start=start, exact=exact, began_seconds=0.5, ended_seconds=at,
        user_seconds=2.0 if exact else None, system_seconds=1.0 if exact else None,
    )  # fmt: skip


def test_sampled_process_gets_its_exact_usage() -> None:
    """The same pid and start is the same process."""
    (found,) = merge_ended([sampled(7, 70)], [ended(7, 70)])
    assert (found.exact, found.user_seconds, found.command, found.looks) == (True, 2.0, "x y", 3)


def test_process_without_a_start_is_found_by_its_pid() -> None:
    """A program without the library does not report its start; it is not counted twice."""
    (found,) = merge_ended([sampled(7, 70)], [ended(7, 0)])
    assert (found.start, found.exact) == (70, True)


def test_two_of_one_pid_without_a_start() -> None:
    """Each of them is a process."""
    found = merge_ended([], [ended(7, 0, at=2.0), ended(7, 0, at=4.0)])
    assert count_processes(found, 9.0).ended == 2


def test_counts() -> None:
    """Exact, sampled only, and only known to have existed; one that is still sampled has not ended."""
    sampled_ones = [sampled(1, 1), sampled(2, 2), sampled(3, 3, last=9.5)]
    merged = merge_ended(sampled_ones, [ended(1, 1), ended(4, 4, exact=0), ended(2, 2, exact=0)])
    counts = count_processes(merged, finish=9.0)
    assert counts.to_dict() == {"ended": 3, "exact": 1, "sampled": 1, "counted": 1}
