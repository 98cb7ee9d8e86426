"""Processes and threads at their end, as capture records them; fields are columns of the lake."""

from __future__ import annotations

from joblens.core.named_tuple import NamedTuple

TEXTS = frozenset("node name command executable folder tags rank step".split())


class EndedThread(NamedTuple):
    """A thread at its end."""

    node: str = ""
    pid: int = 0
    start: int = 0  # start of the process, in clock ticks after boot; 0 if unknown
    tid: int = 0
    name: str = ""
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

    @property
    def cpu_seconds(self) -> float | None:
        """CPU time in both modes."""
        if self.user_seconds is None or self.system_seconds is None:
            return None
        return self.user_seconds + self.system_seconds


SETS: dict[type, str] = {EndedProcess: "process_end", EndedThread: "thread_end"}
