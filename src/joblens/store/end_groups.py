"""Usage of the processes of a job that are alike: with the same tags, program or command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from joblens.core.named_tuple import NamedTuple
from joblens.record.ends import EndedProcess
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import LakeReader, Span

BY = ("tags", "name", "command")  # what processes can be grouped by


class GroupUse(NamedTuple):
    """Processes that are alike."""

    key: tuple[str, ...]
    processes: int = 0
    began_seconds: float | None = None  # of the first
    cpu_seconds: float = 0.0
    elapsed_seconds: float = 0.0  # from start to end, of all processes
    run_delay_seconds: float = 0.0
    memory_peak_bytes: int = 0  # of the largest
    ended_seconds: float | None = None  # of the last

    @property
    def span_seconds(self) -> float:
        """From the first start to the last end."""
        if self.began_seconds is None or self.ended_seconds is None:
            return 0.0
        return self.ended_seconds - self.began_seconds


def group_ends(reader: LakeReader | SamplesReader, span: Span, by: Sequence[str]) -> list[GroupUse]:
    """Return the groups in order of their first start. In the lake they are added up without being loaded."""
    if isinstance(reader, LakeReader):
        rows = reader.end_groups(span, by)
        return [GroupUse(tuple(row[: len(by)]), *row[len(by) :]) for row in rows]
    return _group(reader.ends(span, EndedProcess), by)


def _group(processes: Iterable[EndedProcess], by: Sequence[str]) -> list[GroupUse]:
    found: dict[tuple[str, ...], GroupUse] = {}
    for it in processes:
        key = tuple(str(getattr(it, name)) for name in by)
        before = found.get(key, GroupUse(key))
        began = [time for time in (before.began_seconds, it.began_seconds) if time is not None]
        ended = [time for time in (before.ended_seconds, it.ended_seconds) if time is not None]
        elapsed = 0.0
        if it.began_seconds is not None and it.ended_seconds is not None:
            elapsed = it.ended_seconds - it.began_seconds
        found[key] = GroupUse(
            key,
            before.processes + 1,
            min(began, default=None),
            before.cpu_seconds + (it.cpu_seconds or 0.0),
            before.elapsed_seconds + elapsed,
            before.run_delay_seconds + (it.run_delay_seconds or 0.0),
            max(before.memory_peak_bytes, it.memory_peak_bytes or 0),
            max(ended, default=None),
        )
    return sorted(found.values(), key=lambda group: (group.began_seconds or 0.0, group.key))
