"""Run-queue delay of a process: time that its threads were runnable and waited for a core.

The second number of /proc/PID/task/TID/schedstat, in nanoseconds (Documentation/scheduler/sched-stats.rst).
/proc/PID/schedstat is that of the first thread only, so the threads are read one by one. Unlike CPU time, a
parent does not accumulate it from its children.
"""

from __future__ import annotations

import os

from joblens.core.host import Host
from joblens.core.model import ABSENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List

_RECORD = 256
_MOST_THREADS = 256  # read per process; with more, the total is extrapolated


class RunDelay:
    """Delay of one process. Threads that have ended keep their last value."""

    __slots__ = ("_ended", "_files", "_highest", "_last", "_threads")

    def __init__(self) -> None:
        self._files: Dict[str, int] = {}
        self._last: Dict[str, int] = {}
        self._ended = 0
        self._highest = 0  # a counter must not decrease, even if part of it is extrapolated
        self._threads = 0

    def read(self, host: Host, path: str, threads: int, keep: bool, only: bytes = b"") -> int:
        """`keep`: files stay open. `only`: that of the only thread, if it was read just now.

        ABSENT if the kernel does not provide it.
        """
        if threads != self._threads or (threads > 1 and not keep):
            self._list(host, path, threads)
        for name in list(self._last):
            try:
                self._last[name] = _parse(only) if only else self._read_one(host, path, name, keep)
            except (FileNotFoundError, ProcessLookupError):
                self._end(name)
                self._threads = 0  # another may have started: list them again
            except (PermissionError, IndexError, ValueError):
                return ABSENT
        read = len(self._last)
        if not read and not self._ended:
            return ABSENT
        known = sum(self._last.values())
        if read and threads > _MOST_THREADS:
            known = known * threads // read
        self._highest = max(self._highest, self._ended + known)
        return self._highest

    def _list(self, host: Host, path: str, threads: int) -> None:
        self._threads = threads
        tids = [path.rpartition("/")[2]]  # the first thread's tid is the pid
        if threads > 1:
            try:
                tids = host.list(path + "/task")[:_MOST_THREADS]
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                return
        names = {f"task/{tid}/schedstat" for tid in tids}
        for gone in self._last.keys() - names:
            self._end(gone)
        for name in names - self._last.keys():
            self._last[name] = 0

    def _end(self, name: str) -> None:
        self._ended += self._last.pop(name)
        fd = self._files.pop(name, None)
        if fd is not None:
            os.close(fd)

    def _read_one(self, host: Host, path: str, name: str, keep: bool) -> int:
        fd = self._files.get(name)
        if fd is None:
            fd = host.open(f"{path}/{name}")
        try:
            return _parse(os.pread(fd, _RECORD, 0))
        finally:
            if keep:
                self._files[name] = fd
            else:
                os.close(fd)
                self._files.pop(name, None)

    @property
    def ended(self) -> int:
        return self._ended

    def kept(self, without_files: bool) -> List[int]:
        """Return file and delay of each thread, one after the other; nothing if a file is not open."""
        if not self._threads or (self._files.keys() != self._last.keys() and not without_files):
            return []
        return [number for name, delay in self._last.items() for number in (self._files.get(name, -1), delay)]

    def restore(self, delays: Iterable[int], highest: int) -> None:
        """Set what was read elsewhere, in the order of `kept`."""
        self._last.update(zip(list(self._last), delays))
        self._highest = highest

    @property
    def open_files(self) -> int:
        return len(self._files)

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()


def _parse(schedstat: bytes) -> int:
    return int(schedstat.split(None, 2)[1])
