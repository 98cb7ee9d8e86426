"""The process that the user started: runs the command as its child and behaves like it.

It waits, passes signals on, stops when the command stops, and ends as the command ended. It does nothing
else, so that the usage that the kernel accumulates for it (CPU time, I/O) is that of the command and its
descendants. Sampling is another process's task (`sampler`).
"""

from __future__ import annotations

import os
import resource

from joblens.core.errors import sentence
from joblens.core.named_tuple import NamedTuple
from joblens.run.clock import Clock, start_clock
from joblens.run.plain_signal import signal
from joblens.run.prctl import set_option
from joblens.run.sampler_process import SamplerProcess, passed_signals, try_to_sample
from joblens.run.spawn import VARIABLE, spawn
from joblens.run.streams import foreground, release, set_foreground
from joblens.run.usage import Inherited, Totals, difference, parse_own_io, read_inherited, read_io

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Dict, List, Optional, Set

    from joblens.capture.session import Capture
    from joblens.collectors.cgroup_limits import Limiting
    from joblens.run.facts import RunFacts


_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36  # prctl(2)
_SI_KERNEL = 0x80  # sigaction(2)
_TYPED = frozenset((signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH))
# A write to the terminal from the background must not stop the supervisor.
_HELD = (signal.SIGTTIN, signal.SIGTTOU)


class Ended(NamedTuple):
    status: int  # of waitpid(2)
    start: float
    end: float
    totals: Totals
    problems: List[str]


def supervise(
    command: List[str],
    facts: RunFacts,
    folder: str,
    limiting: Limiting,
    meanwhile: Callable[[], None] = lambda: None,
    capture: Optional[Capture] = None,
) -> Ended:
    """Raises NotStartedError if the command cannot be run, and NoRoomError if not as a child of this process.

    `meanwhile` is called when the command has ended, while the last sample is taken.
    """
    return _Supervisor(facts, folder, limiting, meanwhile, capture).run(command)


class _Supervisor:
    def __init__(
        self,
        facts: RunFacts,
        folder: str,
        limiting: Limiting,
        meanwhile: Callable[[], None],
        capture: Optional[Capture],
    ) -> None:
        self.facts, self.folder, self.limiting = facts, folder, limiting
        self.meanwhile, self.capture = meanwhile, capture
        self.waited: Set[int] = {signal.SIGCHLD, *passed_signals()}
        self.child = 0
        self.status: Optional[int] = None
        self.totals = Totals()
        self.problems: List[str] = []
        self._sampler_io: Dict[str, int] = {}
        self.sampler: Optional[SamplerProcess] = None

    def run(self, command: List[str]) -> Ended:
        # Where it is ignored, as a parent may have left it, the end of a child cannot be waited for.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        set_option(_PR_SET_CHILD_SUBREAPER, 1)  # orphans are reparented to this process, and stay the job's
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*self.waited, *_HELD})
        clock = start_clock()
        self.sampler = try_to_sample(self.facts, self.folder, clock, self.limiting, self.problems)
        io_before = read_io()
        start = clock.now()
        try:
            self.child = spawn(command, mask, self._variables(command[0]))
        except OSError:
            self._end_sampler(None)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise
        if self.sampler:
            self.sampler.note_start(self.child)
        release((0, 1), keep=self.sampler.pipes if self.sampler else ())
        try:
            self._wait()
        except Exception as error:  # the command's end is waited for in any case
            self.problems.append(f"{type(error).__name__} in joblens: {sentence(error)}")
            self._wait_only()
        end, inherited = clock.now(), read_inherited()
        io = difference(parse_own_io(inherited.io), io_before, self._sampler_io)
        self._end_sampler(inherited, self.meanwhile)
        return Ended(
            self.status or 0, start, end, self.totals._replace(io=io), self.problems + _clock_problem(clock)
        )

    def _variables(self, program: str) -> Dict[bytes, bytes]:
        captured = self.capture.environment(program, os.environb) if self.capture else {}
        return {VARIABLE.encode(): os.fsencode(self.folder), **captured}

    def _wait(self) -> None:
        while self.status is None:
            info = signal.sigwaitinfo(self.waited)
            if info.si_signo == signal.SIGCHLD:
                self._reap()
            elif not self._command_has(info):
                self._send(info.si_signo)
        self._reap()

    def _wait_only(self) -> None:
        if self.status is None:
            _, self.status, usage = os.wait4(self.child, 0)
            self.totals = self.totals.plus(usage)

    def _command_has(self, info: signal.struct_siginfo) -> bool:
        """Whether the command got the signal, too, because it went to the whole process group.

        The terminal sends its signals to the group. Of the kernel's only SIGHUP for a closed terminal, and an
        alarm that was set before exec, go to this process alone.
        """
        number = info.si_signo
        if info.si_code == _SI_KERNEL and number in _TYPED:
            return True
        received = self.sampler is not None and self.sampler.has_received(number)
        return received and self._shares_group()

    def _shares_group(self) -> bool:
        try:
            return os.getpgid(self.child) == os.getpgid(0)
        except ProcessLookupError:
            return True

    def _reap(self) -> None:
        while True:
            # WNOWAIT first: the kernel adds its I/O to ours when it is reaped.
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            before = read_io() if self.sampler and found.si_pid == self.sampler.pid else None
            clocks = self.capture.read_clocks(found.si_pid) if self.capture else None
            pid, status, usage = os.wait4(found.si_pid, os.WUNTRACED | os.WNOHANG)
            if pid == 0:
                continue
            if os.WIFSTOPPED(status):
                if pid == self.child:
                    self._stop_as(os.WSTOPSIG(status))
            elif self.sampler and pid == self.sampler.pid:
                self._sampler_io = difference(read_io(), before, {}) or {}
                self._lose_sampler(status)
            else:
                self.totals = self.totals.plus(usage)
                if self.capture:
                    self.capture.note_reaped(pid, status, usage, clocks)
                if pid == self.child:
                    self.status = status

    def _stop_as(self, number: int) -> None:
        """Stop by the signal that stopped the command, so that the shell reports the same."""
        group = os.getpgid(self.child)
        had_terminal = group != os.getpgid(0) and group == foreground()
        os.kill(os.getpid(), number)
        if number != signal.SIGSTOP:
            signal.signal(number, signal.SIG_DFL)
            before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # `fg` has given the terminal to our group, the only one that the shell knows.
        if had_terminal and foreground() == os.getpgid(0):
            set_foreground(group)

    def _lose_sampler(self, status: int) -> None:
        if self.sampler:
            how = f"was killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "ended early"
            self.problems.append(f"the sampling process {how}: no samples from then on")
            self.sampler.lost = True

    def _send(self, number: int) -> None:
        try:
            os.kill(self.child, number)
        except ProcessLookupError:  # it has just ended; SIGCHLD follows
            return
        except PermissionError as error:  # it runs as another user now
            self.problems.append(f"signal {number} could not be passed on: {sentence(error)}")

    def _end_sampler(
        self, inherited: Optional[Inherited], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        if self.sampler:
            self.sampler.note_end(inherited)
            meanwhile()
            self.problems += self.sampler.end()


def _clock_problem(clock: Clock) -> List[str]:
    jump = clock.jump()
    if jump is None:
        return []
    return [f"the machine's clock was set by {jump:+.0f} s: times are by the clock as it was at the start"]


def end_as(status: int) -> int:
    """Return the exit code, or die by the same signal, so that the parent sees the command's status."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    set_option(_PR_SET_DUMPABLE, 0)  # core files are the command's; a core_pattern program ignores the limit
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    return 128 + number
