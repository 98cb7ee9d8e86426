"""Usage of the processes of a job that are alike: with the same tags, program or command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from joblens.core.named_tuple import NamedTuple
from joblens.record.ends import EndedProcess, EndedThread
from joblens.store.catalog.listing import unknown
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import LakeReader, Span

if TYPE_CHECKING:
    from joblens.record.report import GroupSums, JobRecord

BY = ("tags", "name", "command")  # what processes can be grouped by
_SAME_START = 0.02  # seconds: starts of processes are in clock ticks
_End = TypeVar("_End", EndedProcess, EndedThread)


class GroupUse(NamedTuple):
    """Processes that are alike, or threads."""

    key: tuple[str, ...]
    processes: int = 0  # or threads
    began_seconds: float | None = None  # of the first
    cpu_seconds: float = 0.0
    summed_wall_seconds: float = 0.0  # from start to end of each, added up
    run_delay_seconds: float = 0.0
    memory_peak_bytes: int = 0  # of the largest
    ended_seconds: float | None = None  # of the last

    @property
    def span_seconds(self) -> float:
        """From the first start to the last end."""
        if self.began_seconds is None or self.ended_seconds is None:
            return 0.0
        return self.ended_seconds - self.began_seconds


_OF_ONE_JOB = ("op_instance:", "op_sequence:")  # tags of EPMT that number what runs in a job


def name_operation(tags: str) -> str:
    """Return the tags without the numbers that differ between jobs that do the same."""
    return ";".join(it for it in tags.split(";") if not it.strip().startswith(_OF_ONE_JOB))


def merge_operations(groups: Iterable[GroupUse]) -> list[GroupUse]:
    """Return groups by tags, those of one operation together, in order of their first start."""
    found: dict[tuple[str, ...], GroupUse] = {}
    for group in groups:
        key = tuple(map(name_operation, group.key))
        found[key] = _add(found.get(key, GroupUse(key)), group)
    return _in_order(found.values())


def _add(one: GroupUse, other: GroupUse) -> GroupUse:
    began = [it.began_seconds for it in (one, other) if it.began_seconds is not None]
    ended = [it.ended_seconds for it in (one, other) if it.ended_seconds is not None]
    return GroupUse(
        one.key,
        one.processes + other.processes,
        min(began, default=None),
        one.cpu_seconds + other.cpu_seconds,
        one.summed_wall_seconds + other.summed_wall_seconds,
        one.run_delay_seconds + other.run_delay_seconds,
        max(one.memory_peak_bytes, other.memory_peak_bytes),
        max(ended, default=None),
    )


def _in_order(groups: Iterable[GroupUse]) -> list[GroupUse]:
    return sorted(groups, key=lambda group: (group.began_seconds or 0.0, group.key))


def group_ends(reader: LakeReader | SamplesReader, span: Span, by: Sequence[str]) -> list[GroupUse]:
    """Return the groups in order of their first start. In the lake they are added up without being loaded."""
    if isinstance(reader, LakeReader):
        rows = reader.end_groups(span, by)
        return [GroupUse(tuple(row[: len(by)]), *row[len(by) :]) for row in rows]
    return group_processes(reader.ends(span, EndedProcess), by)


def stored_groups(record: JobRecord, by: Sequence[str]) -> list[GroupUse] | None:
    """Return the groups that the record of an imported job has, in order of their first start."""
    from joblens.record.report import Imported, Window

    imported = record.data.imported
    if not isinstance(imported, Imported) or isinstance(record.cut, Window):
        return None
    kinds: dict[tuple[str, ...], list[GroupSums] | None]
    kinds = {("tags",): imported.operations, ("name",): imported.programs}
    found = kinds.get(tuple(by))
    if found is None:
        return None
    return [GroupUse((it.key,), *(getattr(it, name) for name in GroupUse._fields[1:])) for it in found]


def check_groups(by: Iterable[str]) -> tuple[str, ...]:
    """Raises UsageError."""
    for column in (columns := tuple(by)):
        if column not in BY:
            raise unknown("group", str(column), BY)
    return columns


def group_processes(processes: Iterable[EndedProcess], by: Sequence[str]) -> list[GroupUse]:
    return _group((tuple(str(getattr(it, name)) for name in by), it) for it in processes)


def group_threads(processes: Iterable[EndedProcess], threads: Iterable[EndedThread]) -> list[GroupUse]:
    """Group threads by the program of their process and their own name."""
    owners: dict[tuple[str, int], list[EndedProcess]] = {}
    for process in processes:
        owners.setdefault((process.node, process.pid), []).append(process)
    return _group(((_program(it, owners.get((it.node, it.pid), [])), it.name), it) for it in threads)


def _program(thread: EndedThread, owners: Sequence[EndedProcess]) -> str:
    """Of several processes that had this pid, the last one that had begun when the thread began."""
    if not owners:
        return ""
    begun = [
        it for it in owners if (it.began_seconds or 0.0) <= (thread.began_seconds or math.inf) + _SAME_START
    ]
    return max(begun or owners[:1], key=lambda it: it.began_seconds or 0.0).name


def _group(ends: Iterable[tuple[tuple[str, ...], _End]]) -> list[GroupUse]:
    found: dict[tuple[str, ...], GroupUse] = {}
    for key, it in ends:
        elapsed = 0.0
        if it.began_seconds is not None and it.ended_seconds is not None:
            elapsed = it.ended_seconds - it.began_seconds
        own = GroupUse(
            key,
            1,
            it.began_seconds,
            it.cpu_seconds or 0.0,
            elapsed,
            it.run_delay_seconds or 0.0,
            getattr(it, "memory_peak_bytes", None) or 0,
            it.ended_seconds,
        )
        found[key] = _add(found.get(key, GroupUse(key)), own)
    return _in_order(found.values())
