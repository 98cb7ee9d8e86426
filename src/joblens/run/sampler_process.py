"""The supervisor's side of the sampling process: starts it, reads the signals that it got, ends it.

It is in the command's process group, so a signal that it got too was sent to the whole group, and the command
has it already.
"""

from __future__ import annotations

import gc
import os
import time

from joblens.core.errors import sentence
from joblens.core.named_tuple import NamedTuple
from joblens.run.clock import Clock
from joblens.run.plain_signal import signal
from joblens.run.prctl import set_title
from joblens.run.streams import pipe, release, wait_readable, write_all
from joblens.run.usage import Inherited, read_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Set

    from joblens.collectors.cgroup_limits import Limiting
    from joblens.run.facts import RunFacts


# Signals about the supervisor itself: its faults, its children, its terminal.
_OWN_SIGNALS = {
    int(getattr(signal, name))
    for name in (
        "SIGKILL SIGSTOP SIGCHLD SIGTTIN SIGTTOU SIGPIPE SIGXFSZ SIGSEGV SIGBUS SIGFPE SIGILL SIGTRAP "
        "SIGSYS".split()
    )
}
# Between the first and the last process of a group that are signalled one by one.
_GROUP_SECONDS = 0.05
_END_SECONDS = 10.0
_GARBAGE = (700, 10, 10)  # Python's defaults, which `joblens run` raises for a quick start
_MOST_BYTES = 60_000  # that a pipe takes without a reader


def passed_signals() -> Set[int]:
    """Return the signals that the supervisor passes on to the command."""
    return set(map(int, signal.valid_signals())) - _OWN_SIGNALS


class SupervisorPipes(NamedTuple):
    """The supervisor's ends of the pipes."""

    control: int  # takes the pid of the command at its start; closed at its end
    signals: int  # brings the number of each signal that the sampler got, as a byte
    problems: int  # brings the problems at the end, as lines


class SamplerProcess:
    def __init__(self, pid: int, pipes: SupervisorPipes) -> None:
        self.pid, self.pipes = pid, pipes
        self.lost = False
        self._received: Set[int] = set()
        self._expected: Set[int] = set()  # seen as pending: counted before the sampler reports them

    def note_start(self, command: int) -> None:
        try:
            os.write(self.pipes.control, b"%d\n" % command)
        except BrokenPipeError:  # it has ended, which the supervisor reports when it reaps it
            return

    def has_received(self, number: int) -> bool:
        """Whether the sampler got the signal too, or has it pending because it has not run yet."""
        until = time.monotonic() + _GROUP_SECONDS
        while not self.lost:
            self._read_signals()
            if number in self._received:
                self._received.discard(number)
                return True
            if _is_pending(self.pid, number):
                self._expected.add(number)
                return True
            if time.monotonic() > until:
                return False
            wait_readable([self.pipes.signals], 0.005)
        return False

    def _read_signals(self) -> None:
        """A set: the supervisor, too, gets two signals of a kind once if they arrive while it is stopped."""
        while wait_readable([self.pipes.signals], 0):
            received = set(os.read(self.pipes.signals, 512))
            if not received:
                self.lost = True
                return
            self._received |= received - self._expected
            self._expected -= received

    def note_end(self, inherited: Optional[Inherited]) -> None:
        """Let it take its last sample. Usage of the supervisor from now on is not the job's.

        `inherited` is None for a command that could not be started.
        """
        if inherited:
            write_all(self.pipes.control, inherited.stat + b"\0" + inherited.io)
        os.close(self.pipes.control)
        if not self.lost:
            os.kill(self.pid, signal.SIGCONT)  # it may be stopped

    def end(self) -> List[str]:
        """After `note_end`: wait until it has finished. Return its problems."""
        problems = self._read_problems() if not self.lost else []
        os.close(self.pipes.problems)
        os.close(self.pipes.signals)
        return problems

    def _read_problems(self) -> List[str]:
        if wait_readable([self.pipes.problems], _END_SECONDS):
            data = b"".join(iter(lambda: os.read(self.pipes.problems, 65536), b""))
            problems = data.decode("utf-8", "replace").splitlines()
        else:
            os.kill(self.pid, signal.SIGKILL)
            problems = [f"the sampling process did not end within {_END_SECONDS:g} s and was killed"]
        os.waitpid(self.pid, 0)
        return problems


def _is_pending(pid: int, number: int) -> bool:
    """Whether a signal is pending (proc(5))."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def start_sampler(facts: RunFacts, folder: str, clock: Clock, limiting: Limiting) -> SamplerProcess:
    # Loaded before the fork: pages that a child writes to are copied, which takes half as long again.
    from joblens.run.sampler import SamplerPipes, run_sampler

    parent, before = os.getpid(), read_before(limiting)
    control, control_writer = pipe()
    signals, signals_writer = pipe()
    problems, problems_writer = pipe()
    pid = os.fork()
    if pid == 0:
        release((0, 1, 2), keep=(control, signals_writer, problems_writer))
        ends = SamplerPipes(control, signals_writer)
        passed = passed_signals()
        _run(
            problems_writer,
            f"jl-watch {facts.id}",
            lambda: run_sampler(ends, passed, parent, facts, folder, clock, before),
        )
    for end in (control, signals_writer, problems_writer):
        os.close(end)
    return SamplerProcess(pid, SupervisorPipes(control_writer, signals, problems))


def _run(output: int, title: str, work: Callable[[], List[str]]) -> None:
    """Never returns."""
    try:
        set_title(title)  # a signal to processes named `joblens run` is for the supervisor alone
        gc.freeze()  # modules stay
        gc.set_threshold(*_GARBAGE)
        problems = work()
    except BaseException as error:  # no failure may reach the command
        problems = [f"sampling failed: {type(error).__name__}: {sentence(error)}"]
    try:
        write_all(output, "\n".join(problems).encode("utf-8", "replace")[:_MOST_BYTES])
    finally:
        os._exit(0)


def try_to_sample(
    facts: RunFacts, folder: str, clock: Clock, limiting: Limiting, problems: List[str]
) -> Optional[SamplerProcess]:
    """Return None if no further process or pipe can be created: the command then runs without samples."""
    try:
        return start_sampler(facts, folder, clock, limiting)
    except Exception as error:  # the command runs in any case
        problems.append(f"nothing was sampled: {sentence(error)}")
        return None
