"""`process_end` and `thread_end`: the exact records of a job as rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from joblens.capture.processes import ProcessEnd, ThreadEnd
from joblens.core.model import ABSENT, COUNTER, GAUGE, Column, Rows, Schema

_NS, _US = 1_000_000_000, 1_000_000
_MOST = 1 << 62


def _seconds(name: str, what: str, divisor: int) -> Column:
    return Column(name + "_seconds", COUNTER, what, divisor=divisor)


def _amount(name: str, what: str) -> Column:
    return Column(name, COUNTER, what)


_TIMES = (
    Column("began_seconds", GAUGE, "start, since 1970", divisor=_NS),
    Column("ended_seconds", GAUGE, "end, since 1970", divisor=_NS),
)
_CHILDREN = ", waited-for children included"


def _common(of_io: str) -> tuple[Column, ...]:
    return (
        _seconds("user", "user CPU time, without children", _US),
        _seconds("system", "system CPU time, without children", _US),
        _amount("minor_faults", "page faults without disk access"),
        _amount("major_faults", "page faults with disk access"),
        _amount("voluntary_switches", "voluntary context switches"),
        _amount("involuntary_switches", "involuntary context switches"),
        _amount("read_chars_bytes", "bytes read by system calls" + of_io),
        _amount("written_chars_bytes", "bytes written by system calls" + of_io),
        _amount("read_calls", "read system calls" + of_io),
        _amount("write_calls", "write system calls" + of_io),
        _amount("read_bytes", "bytes read from storage" + of_io),
        _amount("written_bytes", "bytes written to storage" + of_io),
        _amount("cancelled_write_bytes", "bytes whose write to storage was cancelled by truncation" + of_io),
        _seconds("run_delay", "time runnable and waiting for a core", _NS),
        _amount("time_slices", "number of times that it got a core"),
    )


_KEYS = (
    "user", "system", "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches",
    "read_chars", "written_chars", "read_calls", "write_calls", "read_bytes", "written_bytes",
    "cancelled_bytes", "run_delay", "slices",
)  # fmt: skip
PROCESS_END = Schema(
    "process_end",
    (
        "cluster", "jobid", "step", "node", "pid", "start", "parent", "group", "session", "uid", "name",
        "command", "executable", "folder", "tags", "rank",
    ),
    (
        *_TIMES,
        Column("exact", GAUGE, "1 if the kernel's figures at its end are known"),
        Column("exit_code", GAUGE, "exit code"),
        Column("signal", GAUGE, "signal that ended it"),
        Column("programs", GAUGE, "programs that it has executed one after the other"),
        Column("threads", GAUGE, "threads that it has created"),
        Column("memory_peak_bytes", GAUGE, "resident memory at most", factor=1024),
        *_common(_CHILDREN),
    ),
)  # fmt: skip
THREAD_END = Schema(
    "thread_end",
    ("cluster", "jobid", "node", "pid", "start", "tid", "name"),
    (
        *_TIMES,
        Column("running", GAUGE, "1 if it ran until the end of its process"),
        _seconds("cpu", "time on a core", _NS),
        *_common(""),
    ),
)
JobKey = tuple[str, str, str]  # cluster, job, node


def process_rows(job: JobKey, ends: Iterable[ProcessEnd]) -> Rows:
    cluster, id, node = job
    keys, values = [], list[int]()
    for end in ends:
        keys.append(
            (cluster, id, end.step, node, end.pid, end.start, end.parent, end.group, end.session, end.uid,
             end.name, end.command, end.executable, end.folder, end.tags, end.rank)
        )  # fmt: skip
        values += _process_values(end)
    return Rows(PROCESS_END, tuple(keys), values)


def _process_values(end: ProcessEnd) -> list[int]:
    usage = end.usage
    code, signal = _how_ended(usage.get("status"))
    began, ended, *rest = _values(usage, ("began", "ended", "threads", "peak_kib", *_KEYS))
    return [began, ended, int(end.exact), code, signal, end.images, *rest]


def thread_rows(job: JobKey, ends: Iterable[ThreadEnd]) -> Rows:
    cluster, id, node = job
    keys, values = [], list[int]()
    for end in ends:
        keys.append((cluster, id, node, end.pid, end.start, end.thread, end.name))
        values += _values(end.usage, ("thread_start", "time", "running", "cpu", *_KEYS))
    return Rows(THREAD_END, tuple(keys), values)


def _how_ended(status: int | None) -> tuple[int, int]:
    """Return exit code and signal from a status of waitpid(2)."""
    if status is None:
        return ABSENT, ABSENT
    status &= 0xFFFF
    if os.WIFSIGNALED(status):
        return ABSENT, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), ABSENT


def _values(usage: Mapping[str, int], names: Iterable[str]) -> list[int]:
    found = [usage.get(name, ABSENT) for name in names]
    return found if max(found) < _MOST else [value if value < _MOST else ABSENT for value in found]
