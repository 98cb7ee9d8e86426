"""The records of capture as rows of `process_end` and `thread_end`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from joblens.capture.processes import ProcessEnd, ThreadEnd
from joblens.capture.records import EVENTS, MOST
from joblens.collectors.ends.sets import PROCESS_END, THREAD_END, how_ended
from joblens.core.model import ABSENT, Rows

KEYS = (
    "user", "system", "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches",
    "read_chars", "written_chars", "read_calls", "write_calls", "read_bytes", "written_bytes",
    "cancelled_bytes", "run_delay", "slices", *(f"perf_{name}" for name in EVENTS),
)  # fmt: skip
JobKey = tuple[str, str, str]  # cluster, job, node


def process_rows(job: JobKey, ends: Iterable[ProcessEnd]) -> Rows:
    cluster, id, node = job
    keys, values = [], list[int]()
    for end in ends:
        keys.append(
            (cluster, id, end.step, node, end.pid, end.start, end.parent, end.group, end.session, end.uid,
             end.name, end.command, end.executable, end.folder, end.tags, end.rank, "")
        )  # fmt: skip
        values += _process_values(end)
    return Rows(PROCESS_END, tuple(keys), values)


def _process_values(end: ProcessEnd) -> list[int]:
    usage = end.usage
    status = usage.get("status")
    code, signal = (ABSENT, ABSENT) if status is None else how_ended(status, ABSENT)
    began, ended, *rest = _values(usage, ("began", "ended", "threads", "peak_kib", *KEYS))
    return [began, ended, int(end.exact), code, signal, end.images, *rest]


def thread_rows(job: JobKey, ends: Iterable[ThreadEnd]) -> Rows:
    cluster, id, node = job
    keys, values = [], list[int]()
    for end in ends:
        keys.append((cluster, id, node, end.pid, end.start, end.thread, end.name, ""))
        values += _values(end.usage, ("thread_start", "time", "running", "cpu", *KEYS))
    return Rows(THREAD_END, tuple(keys), values)


def _values(usage: Mapping[str, int], names: Iterable[str]) -> list[int]:
    found = [usage.get(name, ABSENT) for name in names]
    return found if max(found) < MOST else [value if value < MOST else ABSENT for value in found]
