"""Processes and threads at their end, as capture records them; fields are columns of the lake."""

from __future__ import annotations

from typing import TypeVar

from joblens.core.named_tuple import NamedTuple

TEXTS = frozenset("node name command executable folder tags rank step source".split())
KERNEL = "kernel"  # the source of the agent's rows; "" is capture
_SAME_TICKS = 2  # clock ticks between two notes of the same start
_SAME_SECONDS = 1.0  # between two notes of the same end, where a start is unknown


class EndedThread(NamedTuple):
    """A thread at its end."""

    node: str = ""
    pid: int = 0
    start: int = 0  # start of the process, in clock ticks after boot; 0 if unknown
    tid: int = 0
    name: str = ""
    source: str = ""  # "" if by capture, "kernel" if by the agent
    began_seconds: float | None = None
    ended_seconds: float | None = None
    running: int | None = None  # 1 if it ran until the end of its process
    cpu_seconds: float | None = None  # time on a core
    user_seconds: float | None = None
    system_seconds: float | None = None
    run_delay_seconds: float | None = None  # time in which it was ready and had no core
    time_slices: int | None = None  # number of times that it got a core
    minor_faults: int | None = None
    major_faults: int | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    read_chars_bytes: int | None = None
    written_chars_bytes: int | None = None
    read_calls: int | None = None
    write_calls: int | None = None
    perf_task_clock_seconds: float | None = (
        None  # events of perf_event_open(2), if JOBLENS_COUNTERS chose them
    )
    perf_context_switches: int | None = None
    perf_page_faults: int | None = None
    perf_instructions: int | None = None
    perf_cycles: int | None = None
    perf_cache_misses: int | None = None


class EndedProcess(NamedTuple):
    """A process at its end, or as far as it is known."""

    node: str = ""
    pid: int = 0
    start: int = 0  # start, in clock ticks after boot; 0 if unknown
    parent: int = 0  # parent process; 0 if unknown
    group: int = 0
    session: int = 0
    uid: int = -1  # numeric user id; -1 if unknown
    name: str = ""
    command: str = ""  # command line; values of passwords, tokens and keys are masked
    executable: str = ""
    folder: str = ""  # working directory at its start
    tags: str = ""  # JOBLENS_PROCESS_TAGS at its start
    rank: str = ""
    step: str = ""
    source: str = ""  # "" if by capture or by both, "kernel" if by the agent
    exact: int = 0  # 1 if its usage is the kernel's at its end, 0 if it is unknown
    began_seconds: float | None = None
    ended_seconds: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    programs: int | None = None  # programs that it executed one after the other
    threads: int | None = None  # threads that it created
    memory_peak_bytes: int | None = None  # resident memory at most
    user_seconds: float | None = None  # CPU time in user mode, without children
    system_seconds: float | None = None  # CPU time in the kernel, without children
    run_delay_seconds: float | None = None  # time in which it was ready and had no core
    time_slices: int | None = None  # number of times that it got a core
    minor_faults: int | None = None
    major_faults: int | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    read_bytes: int | None = None  # bytes from storage, waited-for children included
    written_bytes: int | None = None  # bytes to storage, waited-for children included
    read_chars_bytes: int | None = None  # bytes that system calls read, waited-for children included
    written_chars_bytes: int | None = None  # bytes that system calls wrote, waited-for children included
    read_calls: int | None = None  # system calls that read, the same
    write_calls: int | None = None  # system calls that wrote, the same
    perf_task_clock_seconds: float | None = (
        None  # events of perf_event_open(2), if JOBLENS_COUNTERS chose them
    )
    perf_context_switches: int | None = None
    perf_page_faults: int | None = None
    perf_instructions: int | None = None
    perf_cycles: int | None = None
    perf_cache_misses: int | None = None

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time in both modes."""
        if self.user_seconds is None or self.system_seconds is None:
            return None
        return self.user_seconds + self.system_seconds


_End = TypeVar("_End", EndedProcess, EndedThread)


def merge_sources(ends: list[_End]) -> list[_End]:
    """Return each once: both capture and the agent may have recorded it."""
    of_kernel: dict[tuple[str, int, int], list[_End]] = {}
    for end in ends:
        if end.source == KERNEL:
            of_kernel.setdefault(_place(end), []).append(end)
    if not of_kernel:
        return ends
    merged = [
        end if end.source == KERNEL else _take_same(end, of_kernel.get(_place(end), [])) for end in ends
    ]
    left = {id(end) for some in of_kernel.values() for end in some}
    return [end for end in merged if end.source != KERNEL or id(end) in left]


def _place(end: _End) -> tuple[str, int, int]:
    return end.node, end.pid, end.tid if isinstance(end, EndedThread) else 0


def _take_same(end: _End, alike: list[_End]) -> _End:
    found = [other for other in alike if _may_be_same(end, other)]
    if not found:
        return end
    same = max(found, key=lambda other: other.ended_seconds or 0.0)
    alike[:] = [other for other in alike if other is not same]
    return _combine(end, same)


def _may_be_same(end: _End, other: _End) -> bool:
    """Without a start: it ended before its parent waited for it, and until then its pid is not reused."""
    if end.start and other.start:
        return abs(end.start - other.start) <= _SAME_TICKS
    return (other.ended_seconds or 0.0) <= (end.ended_seconds or 0.0) + _SAME_SECONDS


def _combine(end: _End, other: _End) -> _End:
    """Usage as capture has it, if the process itself has written its end, or who waited for it has. What is
    unknown there is the agent's."""
    is_other = isinstance(end, EndedProcess) and isinstance(other, EndedProcess) and other.exact > end.exact

    def choose(name: str, own: object, found: object, default: object) -> object:
        is_taken = own == default or (is_other and _is_usage(name))
        return found if is_taken and found != default and name != "source" else own

    return type(end)._make(map(choose, end._fields, end, other, end._field_defaults.values()))


def _is_usage(name: str) -> bool:
    return name not in TEXTS and name not in ("pid", "start", "parent", "group", "session", "uid", "programs")


SETS: dict[type, str] = {EndedProcess: "process_end", EndedThread: "thread_end"}
NOUNS: dict[type, str] = {EndedProcess: "processes", EndedThread: "threads"}
