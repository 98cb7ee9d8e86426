"""A named pipe beside the job files, by which Slurm's hooks ask for a look at once.

A hook opens it for reading and writing, which never blocks, and closes it: to the agent that is a hang-up.
Everybody may do so, as TaskProlog and TaskEpilog run as the job's user, and may also write into it; the
kernel does not tell who it was. So what comes is not looked at, all looks together take a twentieth of a
core, and what they find is stored only where no tick shows it (joblens.agent.off_grid).
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

_PATIENCE = 20
_SAVED = 10.0  # seconds without a look whose share is kept for when many jobs end at once
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
        self._paid = -float("inf")  # the time by which the looks so far have had their patience

    def watch(self) -> None:
        """Also if the folder came only now, or somebody has taken the pipe away."""
        if self._fd < 0 or not self._is_there():
            self._open()

    def wait(self) -> float:
        """Seconds until a look may be; never, while nobody has knocked."""
        return max(self._paid - self._clock(), 0.0) if self.pending else float("inf")

    def may_look(self) -> bool:
        """Also without a knock: whether there is time left for looks."""
        return self._paid <= self._clock()

    def heed(self) -> None:
        """To be called before the look, so that who knocks meanwhile gets another one."""
        self.pending = False
        if self._fd >= 0:
            with suppress(OSError):
                os.read(self._fd, 1 << 16)
        self._open()  # a pipe that was hung up stays so until it is opened anew

    def has_taken(self, seconds: float) -> None:
        self._paid = max(self._paid, self._clock() - _SAVED) + seconds * _PATIENCE

    def close(self) -> None:
        if self._fd >= 0:
            self._events.remove(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _knocked(self, events: int) -> None:
        """Nothing further is heard until the look: whoever writes without end keeps nobody busy."""
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
        except OSError:  # no job files here, or not our folder: then nobody knocks
            self.close()
            return
        # The new one first: in between nobody is missed.
        self.close()
        self._fd = fd
        self._events.add(fd, READ, self._knocked, self.close)

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
            os.chmod(unfinished, _MODE)  # whatever the umask
            os.rename(unfinished, self.path)
        except OSError:
            with suppress(OSError):
                os.unlink(unfinished)
            raise


@lru_cache(maxsize=1)
def trigger_path(job_files: str) -> str:
    """Beside the folder of job files, and not in it."""
    return os.path.join(os.path.dirname(job_files.rstrip("/")), "look")
