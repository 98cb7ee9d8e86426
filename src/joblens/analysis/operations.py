"""Views of the processes that capture recorded: operations, and the tree of parents and children."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from joblens.record.ends import EndedProcess

if TYPE_CHECKING:
    from joblens.store.end_table import Column, EndTable


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


def find_operations(table: EndTable[EndedProcess]) -> list[Operation]:
    """Return them in order of the first process of each."""
    import numpy

    tags, began, ended, user, system, memory = table.columns(
        "tags", "began_seconds", "ended_seconds", "user_seconds", "system_seconds", "memory_peak_bytes"
    )
    numbers: dict[str, int] = {}
    group = numpy.array([numbers.setdefault(it, len(numbers)) for it in tags.tolist()], dtype=numpy.int64)
    order, by_start = numpy.argsort(group, kind="stable"), numpy.lexsort((ended, began, group))
    limits = numpy.searchsorted(group[order], numpy.arange(len(numbers) + 1))
    columns = [began[by_start], ended[by_start], (user + system)[order], memory[order]]
    return [
        _operation(text, *(it[first:last] for it in columns))
        for text, first, last in zip(numbers, limits.tolist(), limits[1:].tolist())
    ]


def _operation(tags: str, began: Column, ended: Column, cpu: Column, memory: Column) -> Operation:
    """Times are in order."""
    import numpy

    known = ~(numpy.isnan(began) | numpy.isnan(ended))
    times = list(zip(began[known].tolist(), ended[known].tolist()))
    used, sizes = cpu[~numpy.isnan(cpu)].tolist(), memory[~numpy.isnan(memory)]
    return Operation(
        tags,
        len(began),
        times[0][0] if times else None,
        sum(end - begin for begin, end in times),
        _union(times),
        max((end for _, end in times), default=0.0) - times[0][0] if times else 0.0,
        sum(used) if used else None,
        int(sizes.max()) if len(sizes) else None,
    )


def _union(times: list[tuple[float, float]]) -> float:
    """Return the length of all intervals together, in order of their start."""
    total, reached = 0.0, float("-inf")
    for begin, end in times:
        total += max(end - max(begin, reached), 0.0)
        reached = max(reached, end)
    return total


def in_tree_order(table: EndTable[EndedProcess]) -> tuple[list[int], list[int]]:
    """Return the places of processes, each after its parent, and their depths. A parent is the last owner of
    that pid before."""
    import numpy

    began, ended, start, pid, parent, node = table.columns(
        "began_seconds", "ended_seconds", "start", "pid", "parent", "node"
    )
    birth = numpy.nan_to_num(numpy.where(numpy.isnan(began), ended, began), nan=0.0)
    ordered = numpy.lexsort((pid, start, birth))
    children: dict[int, list[int]] = {}
    tops: list[int] = []
    owners: dict[tuple[str, int], int] = {}
    keys = zip(ordered.tolist(), *(it[ordered].tolist() for it in (node, pid, parent)))
    for place, host, own, above in keys:
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
