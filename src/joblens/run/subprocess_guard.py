"""Work that affects its caller neither by a failure nor by signals, and not even by a crash in a library."""

from __future__ import annotations

import os
import resource

from joblens.run.plain_signal import signal
from joblens.run.streams import release

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Set

_LOWEST_PRIORITY = 19
_CPU_SECONDS = 60  # limit for work in the background
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


def run_guarded(work: Callable[[], None]) -> Optional[int]:
    """Return the signal that ended it, if one did. Signals to this process end the work, not the process."""
    waited = {signal.SIGCHLD, *_ENDING}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    _forget_pending(waited)
    try:
        pid = os.fork()
    except OSError:  # no further process can be created
        work()
        return None
    if pid == 0:
        _work(work)
    status = _wait(pid, waited)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None


class InterruptedBySignal(BaseException):
    """One of the signals that end work."""


def run_interruptible(work: Callable[[], None]) -> Optional[int]:
    """As `run_guarded`, but in this process: for work that loads no library."""
    received: List[int] = []

    def interrupt(number: int, frame: object) -> None:
        received.append(number)
        if len(received) == 1:
            raise InterruptedBySignal

    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    _forget_pending(_ENDING)
    handlers = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        work()
        received.clear()  # too late to end anything
    except InterruptedBySignal:
        pass
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return received[0] if received else None


def do_in_background(work: Callable[[], None]) -> None:
    """Return at once. The work has low priority, limited CPU time, and neither the terminal nor any pipe.

    It must tolerate being killed at any moment.
    """
    try:
        pid = os.fork()
    except OSError:  # no further process can be created: another time
        return
    if pid == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                release((0, 1, 2), ())
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
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
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
    """Discard signals that arrived while the command ran: they were for the command."""
    while signal.sigtimedwait(waited, 0) is not None:
        continue
