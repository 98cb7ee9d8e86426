"""Work that affects its caller neither by a failure nor by signals, and not even by a crash in a library."""

from __future__ import annotations

import os
import resource

from joblens.collectors.process.filter import REPORTING
from joblens.run.plain_signal import signal
from joblens.run.streams import pipe, release, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Set

_LOWEST_PRIORITY = 19
_CPU_SECONDS = 60  # limit for work in the background
_ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


class Guarded:
    """Work in a child, which prepares it while this process is busy and starts when it gets the input.

    Signals to this process end the work, not the process.
    """

    def __init__(self, work: Callable[[bytes], None], prepare: Callable[[], None] = lambda: None) -> None:
        self._work, self._prepare = work, prepare
        self._pid = self._input = 0

    def start(self) -> None:
        """Fork before much is loaded: every page that the child writes to is copied."""
        _rename()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            reader, self._input = pipe()
            self._pid = os.fork()
            if self._pid == 0:
                self._run(reader)
            os.close(reader)
        except OSError:  # no further process can be created: this one does it
            self._pid = 0
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def finish(self, data: bytes) -> Optional[int]:
        """Return the signal that ended the work, if one did."""
        if not self._pid:
            self._work(data)
            return None
        waited = {signal.SIGCHLD, *_ENDING}
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
        _forget_pending(waited)
        write_all(self._input, data)
        os.close(self._input)
        status = _wait(self._pid, waited)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None

    def _run(self, reader: int) -> None:
        """Never returns."""
        try:
            os.close(self._input)
            self._prepare()
            data = b"".join(iter(lambda: os.read(reader, 65536), b""))
            _forget_pending(_ENDING)
            for number in _ENDING:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            if data:  # else the process that started it was killed
                self._work(data)
        finally:
            os._exit(0)


class InterruptedBySignal(BaseException):
    """One of the signals that end work."""


def run_interruptible(work: Callable[[], None]) -> Optional[int]:
    """As `Guarded`, but in this process: for work that loads no library."""
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


def _rename() -> None:
    """Give this process and its next children the name by which the sampler leaves them out."""
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(REPORTING)
    except OSError:  # without /proc nothing is sampled
        return


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
