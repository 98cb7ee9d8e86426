"""The processes of a job: what each of them used, and which are worth showing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from joblens.core.named_tuple import NamedTuple
from joblens.record.report import ProcessUse
from joblens.store.reader import SPAN_MARGIN, Reader, Span

MOST_LISTED = 200
_LATE = 0.25  # seconds after the end of a command in which its last helpers end
_DAEMON = "slurmstepd"  # which ends after the job
# As the program or its module, and as the step that brings agents to nodes (joblens.usermode.bootstrap).
_OWN = re.compile(r"(?:^|[\s/=])joblens(?:\.[\w.]+)?(?:\s|$)|-c import json, os, select, signal, socket")
_ADDED_UP = ("user_seconds", "system_seconds", "read_bytes", "written_bytes", "run_delay_seconds")


class Alike(NamedTuple):
    """Processes of a listed one's program that are not listed."""

    processes: int = 0
    cpu_seconds: float | None = 0.0  # of those of which it is known
    unknown: int = 0  # processes of which it is not


def used_between(reader: Reader, span: Span, job_start: float) -> list[ProcessUse]:
    """Return the processes sampled in a part of a job, without their usage in the job before that part."""
    before = reader.processes(_exactly(span._replace(start=job_start, end=span.start)))
    return _without(reader.processes(_exactly(span)), before)


def used_since_seen(reader: Reader, span: Span, first_looks: Sequence[float]) -> list[ProcessUse]:
    """For a job that started around running processes: subtract their usage at the first samples."""
    found = reader.processes(span)
    if not first_looks:
        return found
    return _without(found, reader.processes(_exactly(span._replace(end=max(first_looks) + 0.001))))


def _exactly(span: Span) -> Span:
    """Undo the margin that readers add before and after."""
    return span._replace(start=span.start + SPAN_MARGIN, end=span.end - SPAN_MARGIN)


def _without(found: list[ProcessUse], before: list[ProcessUse]) -> list[ProcessUse]:
    known = {(it.pid, it.start, it.node): it for it in before}
    return [_less(it, known.get((it.pid, it.start, it.node))) for it in found]


def _less(process: ProcessUse, before: ProcessUse | None) -> ProcessUse:
    if before is None:
        return process
    used = {name: (getattr(process, name), getattr(before, name)) for name in _ADDED_UP}
    return process.replace(
        **{name: max(now - then, 0) for name, (now, then) in used.items() if None not in (now, then)}
    )


def choose_processes(processes: list[ProcessUse], end: float | None) -> list[ProcessUse]:
    """Return the processes that used most and their parents, in order of their start.

    A process sampled after the job's end was left behind, except for those of the batch system and joblens.
    """
    by_pid = {process.pid: process for process in processes}
    chosen: dict[tuple[int, int], ProcessUse] = {}
    for process in sorted(processes, key=_weight, reverse=True):
        current: ProcessUse | None = process
        while current is not None and (current.pid, current.start) not in chosen:
            if len(chosen) >= MOST_LISTED:
                break
            chosen[(current.pid, current.start)] = current
            current = by_pid.get(current.parent)
    alike = _others_alike(processes, chosen)
    return [
        describe_process(process, end, _count(alike.get(identity, [])))
        for process in processes
        if (identity := (process.pid, process.start)) in chosen
    ]


def _others_alike(
    processes: list[ProcessUse], chosen: dict[tuple[int, int], ProcessUse]
) -> dict[tuple[int, int], list[ProcessUse]]:
    """Group processes that are not listed by a listed one of the same program, so that all are counted."""
    shown = {process.name: identity for identity, process in reversed(chosen.items())}
    found: dict[tuple[int, int], list[ProcessUse]] = {}
    if len(chosen) < len(processes):
        for process in processes:
            if (process.pid, process.start) not in chosen and process.name in shown:
                found.setdefault(shown[process.name], []).append(process)
    return found


def _weight(process: ProcessUse) -> tuple[float, float]:
    return cpu_of(process) or 0.0, process.memory_peak_bytes or 0


def cpu_of(process: ProcessUse) -> float | None:
    """Return its CPU seconds; None if unknown, as of a killed process whose parent ended before it."""
    known = [it for it in (process.user_seconds, process.system_seconds) if it is not None]
    return sum(known) if known else None


def is_own(command: str) -> bool:
    """Whether it is joblens itself, that user mode runs inside of the job."""
    return _OWN.search(command) is not None


def _count(alike: list[ProcessUse]) -> Alike:
    known = [cpu for cpu in map(cpu_of, alike) if cpu is not None]
    return Alike(len(alike), sum(known) if known or not alike else None, len(alike) - len(known))


def describe_process(process: ProcessUse, end: float | None, alike: Alike) -> ProcessUse:
    """Return it as the record of a job lists it."""
    if end is not None and end == int(end):  # as batch systems report it, without its fraction
        end += 1.0
    late = _LATE if process.exact else 0.0
    left = end is not None and process.last > end + late and not process.name.startswith(_DAEMON)
    left = left and not is_own(process.command)
    return process.replace(
        cpu_seconds=cpu_of(process),
        exact=bool(process.exact),
        memory_exact=bool(process.memory_exact),
        left_behind=left,
        alike=alike.processes,
        alike_cpu_seconds=alike.cpu_seconds,
        alike_unknown=alike.unknown,
    )
