"""A named pipe beside the job files, by which Slurm's hooks trigger a scan at once.

A hook opens it for reading and writing, which never blocks, and closes it: the agent sees a hang-up. Every
user may do so, as TaskProlog and TaskEpilog run as the job's user, and may also write into it; the kernel
does not report who it was. So the content is ignored, all such scans together take a twentieth of a core,
and their rows are stored only where no tick has the job (joblens.agent.off_grid).
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from functools import lru_cache
from typing import Callable

from joblens.agent.event_loop import READ, Events
from joblens.attribution.jobfiles import distrust

_REST_RATIO = 20  # rest for this many times the duration of a scan
_SAVED = 10.0  # seconds of unused budget that are kept for when many jobs end at once
_MODE = 0o666


class ScanTrigger:
    def __init__(
        self,
        events: Events,
        path: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.pending = False
        self._events, self._clock = events, clock
        self._fd = -1
        self._paid = -float("inf")  # the time from which another scan is within the budget

    def watch(self) -> None:
        """Open the pipe again if the folder was created or the pipe removed meanwhile."""
        if self._fd < 0 or not self._is_there():
            self._open()

    def wait(self) -> float:
        """Return the seconds until the next triggered scan, infinity if none is pending."""
        return max(self._paid - self._clock(), 0.0) if self.pending else float("inf")

    def may_scan(self) -> bool:
        """Whether a scan is within the budget, triggered or not."""
        return self._paid <= self._clock()

    def rearm(self) -> None:
        """Accept further triggers. Called before the scan, so that one during it causes another scan."""
        self.pending = False
        if self._fd >= 0:
            with suppress(OSError):
                os.read(self._fd, 1 << 16)
        self._open()  # after a hang-up a pipe has to be opened again

    def charge(self, seconds: float) -> None:
        self._paid = max(self._paid, self._clock() - _SAVED) + seconds * _REST_RATIO

    def close(self) -> None:
        if self._fd >= 0:
            self._events.remove(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _triggered(self, events: int) -> None:
        """Ignore the pipe until the scan: a process that writes without end costs nothing."""
        self.pending = True
        self._events.remove(self._fd)

    def _is_there(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    def _open(self) -> None:
        try:
            self._make()
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # no job files here, or not our folder: no triggers
            self.close()
            return
        # The new one first, so that no trigger is lost in between.
        self.close()
        self._fd = fd
        self._events.add(fd, READ, self._triggered, self.close)

    def _make(self) -> None:
        folder = os.lstat(os.path.dirname(self.path))
        if distrust(folder, os.geteuid(), stat.S_ISDIR):
            raise PermissionError(self.path)
        try:
            found = os.lstat(self.path)
            if stat.S_ISFIFO(found.st_mode) and stat.S_IMODE(found.st_mode) == _MODE:
                return
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        unfinished = f"{self.path}.{os.getpid()}"
        try:
            os.mkfifo(unfinished)
            os.chmod(unfinished, _MODE)  # regardless of the umask
            os.rename(unfinished, self.path)
        except OSError:
            with suppress(OSError):
                os.unlink(unfinished)
            raise


@lru_cache(maxsize=1)
def trigger_path(job_files: str) -> str:
    """The pipe is beside the folder of job files, not in it."""
    return os.path.join(os.path.dirname(job_files.rstrip("/")), "look")
