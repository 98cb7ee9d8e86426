"""Views of the processes that capture recorded: operations, and the tree of parents and children."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from joblens.record.ends import EndedProcess


class Operation(NamedTuple):
    """The processes with the same tags, with three durations."""

    tags: str
    processes: int
    began_seconds: float | None
    sum_seconds: float  # of all processes
    busy_seconds: float  # in which at least one of them ran
    span_seconds: float  # from the first start to the last end
    cpu_seconds: float | None
    memory_peak_bytes: int | None  # of the largest


def find_operations(processes: Iterable[EndedProcess]) -> list[Operation]:
    groups: dict[str, list[EndedProcess]] = {}
    for process in processes:
        groups.setdefault(process.tags, []).append(process)
    return [_operation(tags, some) for tags, some in groups.items()]


def _operation(tags: str, processes: list[EndedProcess]) -> Operation:
    times = sorted(
        (it.began_seconds, it.ended_seconds)
        for it in processes
        if it.began_seconds is not None and it.ended_seconds is not None
    )
    known = [it.cpu_seconds for it in processes if it.cpu_seconds is not None]
    return Operation(
        tags,
        len(processes),
        times[0][0] if times else None,
        sum(end - begin for begin, end in times),
        _union(times),
        max((end for _, end in times), default=0.0) - times[0][0] if times else 0.0,
        sum(known) if known else None,
        max((it.memory_peak_bytes for it in processes if it.memory_peak_bytes is not None), default=None),
    )


def _union(times: list[tuple[float, float]]) -> float:
    """Return the length of all intervals together, in order of their start."""
    total, reached = 0.0, float("-inf")
    for begin, end in times:
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total


def in_tree_order(processes: list[EndedProcess]) -> list[tuple[int, EndedProcess]]:
    """Return each process after its parent, with its depth. A parent is the last owner of that pid before."""
    children: dict[int, list[int]] = {}
    tops: list[int] = []
    owners: dict[tuple[str, int], int] = {}
    ordered = sorted(processes, key=_birth)
    for number, process in enumerate(ordered):
        parent = owners.get((process.node, process.parent))
        (tops if parent is None else children.setdefault(parent, [])).append(number)
        owners[process.node, process.pid] = number
    found: list[tuple[int, EndedProcess]] = []
    waiting = [(0, number) for number in reversed(tops)]
    while waiting:
        depth, number = waiting.pop()
        found.append((depth, ordered[number]))
        waiting += [(depth + 1, child) for child in reversed(children.get(number, []))]
    return found


def _birth(process: EndedProcess) -> tuple[float, int, int]:
    times = (process.began_seconds, process.ended_seconds)
    return next((time for time in times if time is not None), 0.0), process.start, process.pid
