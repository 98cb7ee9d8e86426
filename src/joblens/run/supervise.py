"""The process that the user started: runs the command as its child and is as good as invisible.

It waits, passes signals on, stops when the command stops, and ends as the command ended. It does
nothing else, so that what the kernel adds up for it (CPU time, I/O) is the command's and its
descendants'; looking on is another process's work (`watch`).
"""

from __future__ import annotations

import os
import resource
import signal
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from joblens.core.errors import sentence
from joblens.run.clock import Clock, start_clock
from joblens.run.sampler_process import SamplerProcess, passed_signals, try_to_sample
from joblens.run.spawn import VARIABLE, spawn
from joblens.run.streams import let_go
from joblens.run.terminal import bring_to_front, foreground
from joblens.run.totals import Inherited, Totals, difference, parse_own_io, read_inherited, read_io

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36  # prctl(2)
_SI_KERNEL = 0x80  # sigaction(2)
_TYPED = frozenset((signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH))
# A write of ours may not stop us when the terminal is another's.
_HELD = (signal.SIGTTIN, signal.SIGTTOU)


class Ended(NamedTuple):
    status: int  # as waitpid(2) has it
    start: float
    end: float
    totals: Totals
    problems: List[str]


def supervise(
    command: List[str], facts: Dict[str, Any], folder: str, meanwhile: Callable[[], None] = lambda: None
) -> Ended:
    """Raises NotStartedError if the command cannot be run, and NoRoomError if it cannot be run beside us.

    `meanwhile` is called when the command has ended, while the last sample is taken.
    """
    return _Supervisor(facts, folder, meanwhile).run(command)


class _Supervisor:
    def __init__(self, facts: Dict[str, Any], folder: str, meanwhile: Callable[[], None]) -> None:
        self.facts, self.folder, self.meanwhile = facts, folder, meanwhile
        self.waited: Set[int] = {signal.SIGCHLD, *passed_signals()}
        self.child = 0
        self.status: Optional[int] = None
        self.totals = Totals()
        self.problems: List[str] = []
        self._of_watcher: Dict[str, int] = {}
        self.watcher: Optional[SamplerProcess] = None

    def run(self, command: List[str]) -> Ended:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans become ours and not init's, and so stay the job's
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*self.waited, *_HELD})
        clock = start_clock()
        self.watcher = try_to_sample(self.facts, self.folder, clock, self.problems)
        io_before = read_io()
        start = clock.now()
        try:
            self.child = spawn(command, mask, {VARIABLE.encode(): os.fsencode(self.folder)})
        except OSError:
            self._end_watcher(None)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise
        if self.watcher:
            self.watcher.say_begun(self.child)
        let_go((0, 1), keep=self.watcher.words if self.watcher else ())
        try:
            self._wait()
        except Exception as error:  # whatever is wrong with us, the command's end is waited for
            self.problems.append(f"{type(error).__name__} in joblens: {sentence(error)}")
            self._wait_plainly()
        end, inherited = clock.now(), read_inherited()
        io = difference(parse_own_io(inherited.io), io_before, self._of_watcher)
        self._end_watcher(inherited, self.meanwhile)
        return Ended(
            self.status or 0, start, end, self.totals._replace(io=io), self.problems + _clock_problem(clock)
        )

    def _wait(self) -> None:
        while self.status is None:
            info = signal.sigwaitinfo(self.waited)
            if info.si_signo == signal.SIGCHLD:
                self._reap()
            elif not self._has_already(info):
                self._send(info.si_signo)
        self._reap()

    def _wait_plainly(self) -> None:
        if self.status is None:
            _, self.status, usage = os.wait4(self.child, 0)
            self.totals = self.totals.plus(usage)

    def _has_already(self, info: signal.struct_siginfo) -> bool:
        """Whether the command got the signal without us, as one of its process group.

        Of what the terminal sends we need not ask: it goes to the whole group. Only that the terminal is
        gone (SIGHUP), and an alarm that was set before we began, come from the kernel to us alone.
        """
        number = info.si_signo
        if info.si_code == _SI_KERNEL and number in _TYPED:
            return True
        heard = self.watcher is not None and self.watcher.has_heard(number)
        return heard and self._shares_our_group()

    def _shares_our_group(self) -> bool:
        try:
            return os.getpgid(self.child) == os.getpgid(0)
        except ProcessLookupError:
            return True

    def _reap(self) -> None:
        while True:
            # Looked at before it is taken away, since the kernel adds its I/O to ours when it is.
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            before = read_io() if self.watcher and seen.si_pid == self.watcher.pid else None
            pid, status, usage = os.wait4(seen.si_pid, os.WUNTRACED | os.WNOHANG)
            if pid == 0:
                continue
            if os.WIFSTOPPED(status):
                if pid == self.child:
                    self._stop_as(os.WSTOPSIG(status))
            elif self.watcher and pid == self.watcher.pid:
                self._of_watcher = difference(read_io(), before, {}) or {}
                self._lose_watcher(status)
            else:
                self.totals = self.totals.plus(usage)
                if pid == self.child:
                    self.status = status

    def _stop_as(self, number: int) -> None:
        """By the signal that stopped the command, so that the shell says the same of us."""
        group = os.getpgid(self.child)
        had_terminal = group != os.getpgid(0) and group == foreground()
        os.kill(os.getpid(), number)
        if number != signal.SIGSTOP:
            signal.signal(number, signal.SIG_DFL)
            before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # A shell that goes on in front has given the terminal to our group, as it knows no other.
        if had_terminal and foreground() == os.getpgid(0):
            bring_to_front(group)

    def _lose_watcher(self, status: int) -> None:
        if self.watcher:
            how = f"by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "early"
            self.problems.append(f"the process that looks on ended {how}: no samples from then on")
            self.watcher.lost = True

    def _send(self, number: int) -> None:
        try:
            os.kill(self.child, number)
        except ProcessLookupError:  # it has just ended; the next SIGCHLD says so
            return
        except PermissionError as error:  # it has become another user's
            self.problems.append(f"signal {number} could not be passed on: {sentence(error)}")

    def _end_watcher(
        self, inherited: Optional[Inherited], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        if self.watcher:
            self.watcher.say_ended(inherited)
            meanwhile()
            self.problems += self.watcher.end()


def _prctl(option: int, value: int) -> None:
    try:
        import ctypes
    except ImportError:  # a Python without libffi: orphans are then followed as far as samples see them
        return
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _clock_problem(clock: Clock) -> List[str]:
    jump = clock.jump()
    if jump is None:
        return []
    return [f"the clock was set by {jump:+.0f} s meanwhile: times are by the clock as it was at the start"]


def end_as(status: int) -> int:
    """The exit code, or the same death by signal: whoever waits for us sees what it would have seen."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _prctl(_PR_SET_DUMPABLE, 0)  # the core file is the command's; a program that takes cores knows no limit
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    return 128 + number
