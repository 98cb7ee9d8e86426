"""Processes that capture recorded at their end, together with those that were sampled."""

from __future__ import annotations

from collections.abc import Iterable

from joblens.record.ends import EndedProcess
from joblens.record.report import ProcessCounts, ProcessUse

_Key = tuple[str, int, int]  # node, pid, start


def merge_ended(sampled: list[ProcessUse], ended: list[EndedProcess]) -> list[ProcessUse]:
    """Return each process once, with exact usage where that is known, in order of their start."""
    found = {_key(process): process for process in sampled}
    reported = {_key(end) for end in ended}
    unreported: dict[tuple[str, int], list[_Key]] = {}
    for key in found.keys() - reported:
        unreported.setdefault(key[:2], []).append(key)
    for number, end in enumerate(ended, 1):
        key = _key(end) if end.start else _find(end, found, unreported) or (end.node, end.pid, -number)
        known = found.get(key)
        found[key] = _use(end) if known is None else _more_exact(known, end)
    return sorted(found.values(), key=lambda process: (process.first, process.pid))


def count_processes(merged: Iterable[ProcessUse], finish: float) -> ProcessCounts:
    """Count processes that ended, `merge_ended` having merged them. One without an exact end that was still
    sampled after the job's end has not ended."""
    counts = ProcessCounts()
    for process in merged:
        if process.exact:
            counts.exact += 1
        elif process.looks and process.last <= finish:
            counts.sampled += 1
        elif not process.looks:
            counts.counted += 1
    counts.ended = counts.exact + counts.sampled + counts.counted
    return counts


def _key(process: ProcessUse | EndedProcess) -> _Key:
    return process.node, process.pid, process.start


def _find(
    end: EndedProcess, found: dict[_Key, ProcessUse], unreported: dict[tuple[str, int], list[_Key]]
) -> _Key | None:
    """Find a sampled process that ended then: a program without the library does not report its start."""
    alike = unreported.get((end.node, end.pid), [])
    before = [key for key in alike if found[key].first <= (end.ended_seconds or 0.0)]
    if not before:
        return None
    chosen = max(before, key=lambda key: key[2])
    alike.remove(chosen)
    return chosen


def _more_exact(process: ProcessUse, end: EndedProcess) -> ProcessUse:
    if not end.exact:
        return process
    changes = {"user_seconds": end.user_seconds, "system_seconds": end.system_seconds}
    if end.run_delay_seconds is not None:
        changes["run_delay_seconds"] = end.run_delay_seconds
    return process.replace(exact=True, **changes)


def _use(end: EndedProcess) -> ProcessUse:
    began = end.began_seconds or end.ended_seconds or 0.0
    return ProcessUse(
        pid=end.pid,
        start=end.start,
        parent=end.parent,
        name=end.name,
        command=end.command,
        node=end.node,
        first=began,
        last=end.ended_seconds or began,
        user_seconds=end.user_seconds,
        system_seconds=end.system_seconds,
        memory_peak_bytes=end.memory_peak_bytes,
        threads=None if end.threads is None else end.threads + 1,
        read_bytes=end.read_bytes,
        written_bytes=end.written_bytes,
        run_delay_seconds=end.run_delay_seconds,
        exact=bool(end.exact),
    )
