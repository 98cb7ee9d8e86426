"""Which jobs are meant, and in which order: from a filter to SQL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from joblens.errors import MalformedError, UsageError
from joblens.schedulers.nodelist import compress
from joblens.store.columns import storable

COLUMNS = (
    "cluster", "id", "start", "end", "name", "user", "node", "source", "state", "exit_code",
    "duration_seconds", "cpu_seconds", "cores", "memory_peak_bytes", "processes", "verdict",
    "shown_id", "nodes", "partition", "account",
)  # fmt: skip
SORTS = {
    "start": "start", "duration": "duration_seconds", "cpu": "cpu_seconds", "memory": "memory_peak_bytes",
    "user": "user", "name": "name",
}  # fmt: skip


class JobFilter(NamedTuple):
    user: str | None = None
    name: str | None = None  # with * and ?
    state: str | None = None
    since: float | None = None
    until: float | None = None
    tags: tuple[tuple[str, str], ...] = ()
    sort: str = "start"
    reverse: bool = False
    limit: int = 20  # 0 for all
    cluster: str | None = None
    partition: str | None = None
    account: str | None = None
    node: str | None = None  # one of those that it ran on
    array: str | None = None  # whose tasks they are


def name_nodes(names: Iterable[str]) -> str:
    """`c[1-3]`; a record can have names that no scheduler would give to a node."""
    found = list(names)
    try:
        return compress(found)
    except MalformedError:
        return ",".join(found)


def shown_id(job: dict[str, Any]) -> str:
    """As people write it: 4242, 4200_7 of an array, 4300+1 of a job in parts that are not alike."""
    for whole, part, sign in (("array_job", "array_task", "_"), ("het_job", "het_offset", "+")):
        if job.get(whole) and job.get(part):
            return f"{job[whole]}{sign}{job[part]}"
    return str(job["id"])


def select(wanted: JobFilter) -> tuple[str, list[Any]]:
    """What follows FROM jobs, and the values that it needs."""
    if wanted.sort not in SORTS:
        raise UsageError(f"jobs can be sorted by {', '.join(SORTS)}, and not by {wanted.sort!r}")
    conditions: list[str] = []
    values: list[Any] = []
    for condition, value in (
        ("user = ?", wanted.user),
        ("name GLOB ?", None if wanted.name is None else wanted.name.replace("[", "[[]")),
        ("state = ?", wanted.state),
        ("start >= ?", wanted.since),
        ("start <= ?", wanted.until),
        ("cluster = ?", wanted.cluster),
        ("partition = ?", wanted.partition),
        ("account = ?", wanted.account),
        ("instr(on_nodes, char(10) || ? || char(10))", wanted.node),
        ("instr(shown_id, ?) = 1", None if wanted.array is None else f"{wanted.array}_"),
    ):
        if value is not None:
            conditions.append(condition)
            values.append(storable(value) if isinstance(value, str) else value)
    for name, value in wanted.tags:
        conditions.append(
            "(cluster, id, start) IN (SELECT cluster, id, start FROM tags WHERE name = ? AND value = ?)"
        )
        values += [storable(name), storable(value)]
    # The newest and the largest are what people look for, names are read from A to Z.
    upwards = (wanted.sort in ("user", "name")) != wanted.reverse
    order = f"{SORTS[wanted.sort]} {'ASC' if upwards else 'DESC'} NULLS LAST, start DESC, id DESC"
    values.append(wanted.limit if wanted.limit > 0 else -1)
    return f"WHERE {' AND '.join(conditions) or '1'} ORDER BY {order} LIMIT ?", values
