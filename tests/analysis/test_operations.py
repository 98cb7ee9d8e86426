from __future__ import annotations

from joblens.analysis.operations import Operation, find_operations, in_tree_order
from joblens.record.ends import EndedProcess
from joblens.store.end_table import table_of


def process(pid: int, parent: int, begin: float, end: float, tags: str = "") -> EndedProcess:
    return EndedProcess(
        node="n", pid=pid, start=int(begin * 100), parent=parent, began_seconds=begin, ended_seconds=end,
        tags=tags, user_seconds=1.0, system_seconds=0.5, memory_peak_bytes=pid,
    )  # fmt: skip


def operations(*rows: EndedProcess) -> list[Operation]:
    return find_operations(table_of(list(rows), EndedProcess))


def tree(rows: list[EndedProcess]) -> list[tuple[int, int]]:
    """Return depths and pids."""
    places, depths = in_tree_order(table_of(rows, EndedProcess))
    return [(depth, rows[place].pid) for place, depth in zip(places, depths)]


def test_three_durations() -> None:
    """Sum, time in which at least one ran, and time from the first start to the last end."""
    (found,) = operations(process(1, 0, 0, 4), process(2, 1, 2, 5), process(3, 1, 9, 10))
    assert (found.summed_wall_seconds, found.busy_seconds, found.span_seconds) == (8.0, 6.0, 10.0)
    assert (found.processes, found.cpu_seconds, found.memory_peak_bytes) == (3, 4.5, 3)


def test_one_operation_per_tags() -> None:
    """Processes with the same tags are one operation; those without are one, too."""
    found = operations(process(1, 0, 0, 4), process(2, 1, 2, 5, "op:a"), process(3, 1, 9, 10, "op:a"))
    assert [(it.tags, it.processes) for it in found] == [("", 1), ("op:a", 2)]


def test_process_without_times_has_no_duration() -> None:
    """A process of which only its existence is known is counted, and its duration is unknown, not zero."""
    (found,) = operations(EndedProcess(pid=1))
    assert (found.processes, found.summed_wall_seconds, found.cpu_seconds) == (1, None, None)


def test_tree_with_a_reused_pid() -> None:
    """A child belongs to the owner of its parent's pid at that time, and follows it."""
    rows = [
        process(5, 1, 0, 1), process(6, 5, 0.5, 0.6), process(5, 1, 2, 3), process(7, 5, 2.5, 2.6),
        process(8, 7, 2.55, 2.58),
    ]  # fmt: skip
    assert tree(rows[::-1]) == [(0, 5), (1, 6), (0, 5), (1, 7), (2, 8)]


def test_deep_tree() -> None:
    """A chain of any length is listed."""
    found = tree([process(pid, pid - 1, pid, pid + 1) for pid in range(1, 5001)])
    assert [depth for depth, _ in found] == list(range(5000))
