"""An agent that Slurm's prolog starts with the first job on a node, and that ends after the last.

The job files say which jobs there are. From `agent.pid` beside them the prolog of the next job knows that an
agent runs. A prolog writes its job's file and then checks for an agent; the agent removes `agent.pid` and
then checks for files. So one of the two always sees the other.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import Callable, Container, Optional

from joblens.core.files import write_quickly
from joblens.core.procfs import read_stat

_LOCK_TIMEOUT = 10.0  # seconds for an agent that is about to end and sends its last batches


class JobLifetime:
    def __init__(self, job_files: str, linger: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.linger, self.clock = job_files, linger, clock
        self.beside = os.path.dirname(job_files.rstrip("/"))
        self._pid = os.path.join(self.beside, "agent.pid")
        self._lock = -1
        self._idle_since: Optional[float] = None

    def begin(self) -> bool:
        """Return False if another agent serves the same jobs. Raises OSError."""
        os.makedirs(self.folder, 0o755, exist_ok=True)
        path = os.path.join(self.beside, "agent.lock")
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        end = self.clock() + _LOCK_TIMEOUT
        while not self._take_lock():
            if os.path.exists(self._pid) or self.clock() > end:
                os.close(self._lock)
                return False
            time.sleep(0.05)
        self._write_pid()
        return True

    def _take_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_over(self, forgotten: Container[str] = ()) -> bool:
        """Whether there has been no job for `linger` seconds, except `forgotten` ones that left only a file.

        Called at each tick.
        """
        if self._has_jobs(forgotten):
            self._idle_since = None
            return False
        if self._idle_since is None:
            self._idle_since = self.clock()
        if self.clock() - self._idle_since < self.linger:
            return False
        self._remove_pid()
        if not self._has_jobs(forgotten):
            return True
        self._write_pid()  # a job began meanwhile
        return False

    def end(self) -> None:
        """Release the lock last, after the spool is closed: the next agent uses the same spool."""
        self._remove_pid()
        os.close(self._lock)

    def _write_pid(self) -> None:
        pid = os.getpid()
        write_quickly(self._pid, f"{pid} {read_stat(pid).start}\n".encode())

    def _remove_pid(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._pid)

    def _has_jobs(self, forgotten: Container[str]) -> bool:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return False
        files = (name for name in names if name.startswith("slurm-") and name.endswith(".json"))
        return any(name[6:-5].partition(".")[0] not in forgotten for name in files)
