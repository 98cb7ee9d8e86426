"""An agent that Slurm's prolog starts with the first job on a node, and that ends after the last.

Which jobs are there is told by their files. `agent.pid` beside them tells the prolog of the next job that it
need not start another agent. A prolog writes its job's file first and looks for an agent then; the agent
removes `agent.pid` first and looks for files then: so one of the two sees the other.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import Callable, Container, Optional

from joblens.core.files import write_quickly
from joblens.core.procfs import read_stat

_PATIENCE = 10.0  # seconds for an agent that is about to end, and sends what it has left


class JobLifetime:
    def __init__(self, job_files: str, linger: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.linger, self.clock = job_files, linger, clock
        self.beside = os.path.dirname(job_files.rstrip("/"))
        self._pid = os.path.join(self.beside, "agent.pid")
        self._lock = -1
        self._idle_since: Optional[float] = None

    def begin(self) -> bool:
        """False if another agent is here for the same jobs. Raises OSError."""
        os.makedirs(self.folder, 0o755, exist_ok=True)
        path = os.path.join(self.beside, "agent.lock")
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        end = self.clock() + _PATIENCE
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
        """Whether there has been no job for a while but for those of which only a file is left.

        It is asked at each tick.
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
        self._write_pid()  # one came at the last moment
        return False

    def end(self) -> None:
        """The lock last, when all is sent or in the spool: the next agent has the same spool."""
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
