"""`process_end` and `thread_end`: processes and threads at their end, by capture or the kernel's events."""

from __future__ import annotations

from typing import Tuple

from joblens.core.model import COUNTER, GAUGE, Column, Schema

_NS, _US = 1_000_000_000, 1_000_000
KERNEL = "kernel"  # the source of rows from the kernel's events; "" is capture


def _seconds(name: str, what: str, divisor: int) -> Column:
    return Column(name + "_seconds", COUNTER, what, divisor=divisor)


def _amount(name: str, what: str) -> Column:
    return Column(name, COUNTER, what)


_TIMES = (
    Column("began_seconds", GAUGE, "start, since 1970", divisor=_NS),
    Column("ended_seconds", GAUGE, "end, since 1970", divisor=_NS),
)
_CHOSEN = ", if chosen with JOBLENS_COUNTERS"
EVENTS = 6
_CHILDREN = ", with capture waited-for children included"


def _common(of_io: str) -> Tuple[Column, ...]:
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
        _seconds("perf_task_clock", "time on a core by the event task-clock" + _CHOSEN, _NS),
        _amount("perf_context_switches", "event context-switches" + _CHOSEN),
        _amount("perf_page_faults", "event page-faults" + _CHOSEN),
        _amount("perf_instructions", "event instructions" + _CHOSEN),
        _amount("perf_cycles", "event cycles" + _CHOSEN),
        _amount("perf_cache_misses", "event cache-misses" + _CHOSEN),
    )


PROCESS_END = Schema(
    "process_end",
    (
        "cluster", "jobid", "step", "node", "pid", "start", "parent", "group", "session", "uid", "name",
        "command", "executable", "folder", "tags", "rank", "source",
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
    ("cluster", "jobid", "node", "pid", "start", "tid", "name", "source"),
    (
        *_TIMES,
        Column("running", GAUGE, "1 if it ran until the end of its process"),
        _seconds("cpu", "time on a core", _NS),
        *_common(""),
    ),
)
# What a job has lost on a node. Jobs that have lost nothing have no row.
JOB_END = Schema(
    "job_end",
    ("cluster", "jobid", "node"),
    (Column("dropped", COUNTER, "ended processes of the job above the limit of rows per second"),),
)
END_EVENT = Schema(
    "end_event",
    (),
    (
        Column("ends", COUNTER, "ends of threads and processes that the kernel has reported"),
        Column("events", COUNTER, "forks, execs, exits and other events of processes that it has reported"),
        Column(
            "lost", COUNTER, "events of processes that were lost, by the numbers that each core gives them"
        ),
        Column(
            "overruns", COUNTER, "times that the kernel has dropped messages, an unknown number of ends each"
        ),
        Column("recorded", COUNTER, "rows of processes and threads of jobs"),
        Column(
            "dropped",
            COUNTER,
            "ended processes and threads of jobs without a row, above the limit per second",
        ),
        Column("unattributed", COUNTER, "ended processes that are of no job, or whose job is unknown"),
        Column("malformed", COUNTER, "messages that are none of the kernel's known formats"),
    ),
)


def how_ended(status: int, unknown: int) -> Tuple[int, int]:
    """Return exit code and signal from a status of waitpid(2)."""
    signal = status & 0x7F
    return (unknown, signal) if signal else ((status >> 8) & 0xFF, unknown)
