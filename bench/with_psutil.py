"""The same facts by psutil, as its users would ask for them."""

from __future__ import annotations

from typing import Callable, Set

try:
    import psutil  # type: ignore[import-untyped, unused-ignore]
except ImportError:  # the bench goes on without it
    psutil = None

AVAILABLE = psutil is not None


def read_sets() -> None:
    psutil.cpu_times(percpu=True)
    psutil.cpu_times()
    psutil.cpu_stats()
    psutil.virtual_memory()
    psutil.swap_memory()
    psutil.getloadavg()
    psutil.disk_io_counters(perdisk=True)


def scan(wanted: Set[int]) -> Callable[[], None]:
    """Only those processes: kernel threads are passed over before anything of them is read."""

    def turn() -> None:
        for process in psutil.process_iter():
            if process.pid in wanted:
                _read_process(process)

    return turn


def _read_process(process: psutil.Process) -> None:
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
    except psutil.Error:
        return
