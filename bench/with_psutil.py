"""Read the same data through psutil, as its users would query it."""

from __future__ import annotations

from typing import Set

from bench.timing import Work

try:
    import psutil  # type: ignore[import-untyped, unused-ignore]
except ImportError:  # the bench goes on without it
    psutil = None

AVAILABLE = psutil is not None


def read_sets() -> int:
    psutil.swap_memory()  # two of its figures are from /proc/vmstat
    return read_sets_without_vmstat()


def read_sets_without_vmstat() -> int:
    psutil.cpu_times(percpu=True)
    psutil.cpu_times()
    psutil.cpu_stats()
    psutil.virtual_memory()
    psutil.getloadavg()
    psutil.disk_io_counters(perdisk=True)
    return 1


def scan(wanted: Set[int]) -> Work:
    """Read only those processes; skip kernel threads before reading anything of them."""

    def turn() -> int:
        return sum(_read_process(process) for process in psutil.process_iter() if process.pid in wanted)

    return turn


def _read_process(process: psutil.Process) -> bool:
    """Return False for a process that has ended."""
    try:
        with process.oneshot():
            process.cpu_times()
            process.memory_info()
            process.num_threads()
            process.num_ctx_switches()
            process.status()
            process.create_time()
            process.name()
            process.cmdline()
            process.ppid()
            process.uids()
            process.io_counters()  # last: of some, not even root may see it
    except psutil.AccessDenied:
        return True
    except psutil.NoSuchProcess:
        return False
    return True
