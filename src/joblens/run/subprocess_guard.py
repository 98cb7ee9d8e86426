"""Work in a process of its own: whatever happens to it, a crash in a library too, harms nobody else."""

from __future__ import annotations

import os
import resource
import signal
from typing import Callable, Optional, Set

from joblens.run.streams import let_go

_LOWEST_PRIORITY = 19
_CPU_SECONDS = 60  # after which work in the background is ended
_END_IT = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def run_guarded(work: Callable[[], None]) -> Optional[int]:
    """The signal that ended it, if one did. Signals that end us at other times end the work."""
    waited = {signal.SIGCHLD, *_END_IT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    _forget_pending(waited)
    try:
        pid = os.fork()
    except OSError:  # no room for another process
        work()
        return None
    if pid == 0:
        _work(work)
    status = _wait(pid, waited)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


def do_in_background(work: Callable[[], None]) -> None:
    """Returns at once. The work has low priority, little time, and no hold on the terminal or any pipe.

    It can be killed at any moment.
    """
    try:
        pid = os.fork()
    except OSError:  # no room for another process: another time
        return
    if pid == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                let_go((0, 1, 2), ())
                os.chdir("/")
                os.nice(_LOWEST_PRIORITY)
                resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
                work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _work(work: Callable[[], None]) -> None:
    """Never returns."""
    try:
        for number in _END_IT:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _END_IT)
        work()
    finally:
        os._exit(0)


def _wait(pid: int, waited: Set[signal.Signals]) -> int:
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        number = signal.sigwaitinfo(waited).si_signo
        if number != signal.SIGCHLD:
            os.kill(pid, number)


def _forget_pending(waited: Set[signal.Signals]) -> None:
    """They came while the command ran, and were its."""
    while signal.sigtimedwait(waited, 0) is not None:
        continue
