"""Views of the processes that capture recorded: operations, and the tree of parents and children."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.record.ends import EndedProcess

if TYPE_CHECKING:
    from joblens.store.end_table import EndTable


class Operation(NamedTuple):
    """The processes with the same tags, with three durations."""

    tags: str
    processes: int
    began_seconds: float | None
    summed_wall_seconds: float | None  # from start to end of each process, added up
    busy_seconds: float | None  # in which at least one of them ran
    span_seconds: float | None  # from the first start to the last end
    cpu_seconds: float | None
    memory_peak_bytes: int | None  # of the largest


def find_operations(table: EndTable[EndedProcess]) -> list[Operation]:
    """Return them in order of the first process of each."""
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for row in table.cells(
        "tags", "began_seconds", "ended_seconds", "user_seconds", "system_seconds", "memory_peak_bytes"
    ):
        groups.setdefault(row[0], []).append(row)
    return [_operation(tags, some) for tags, some in groups.items()]


def _operation(tags: str, processes: list[tuple[Any, ...]]) -> Operation:
    times = sorted([row[1:3] for row in processes if row[1] is not None and row[2] is not None])
    used = [row[3] + row[4] for row in processes if row[3] is not None and row[4] is not None]
    return Operation(
        tags,
        len(processes),
        times[0][0] if times else None,
        sum([end - begin for begin, end in times]) if times else None,
        _union(times) if times else None,
        max([end for _, end in times]) - times[0][0] if times else None,
        sum(used) if used else None,
        max([row[5] for row in processes if row[5] is not None], default=None),
    )


def _union(times: list[tuple[Any, ...]]) -> float:
    """Return the length of all intervals together, in order of their start."""
    total, reached = 0.0, float("-inf")
    for begin, end in times:
        if end > reached:
            total += end - (begin if begin > reached else reached)
            reached = end
    return total


def in_tree_order(table: EndTable[EndedProcess]) -> tuple[list[int], list[int]]:
    """Return the places of processes, each after its parent, and their depths. A parent is the last owner of
    that pid before."""
    cells = table.cells("began_seconds", "ended_seconds", "start", "pid", "parent", "node")
    births = [ended if began is None else began for began, ended, *_ in cells]
    keys = [(birth or 0.0, start, pid) for birth, (_, _, start, pid, _, _) in zip(births, cells)]
    children: dict[int, list[int]] = {}
    tops: list[int] = []
    owners: dict[tuple[str, int], int] = {}
    for place in sorted(range(len(keys)), key=keys.__getitem__):
        *_, own, above, host = cells[place]
        owner = owners.get((host, above))
        (tops if owner is None else children.setdefault(owner, [])).append(place)
        owners[host, own] = place
    places: list[int] = []
    depths: list[int] = []
    waiting = [(0, place) for place in reversed(tops)]
    while waiting:
        depth, place = waiting.pop()
        places.append(place)
        depths.append(depth)
        if place in children:
            waiting += [(depth + 1, child) for child in reversed(children[place])]
    return places, depths
