"""The process that the user started: runs the command as its child and is as good as invisible.

It waits, passes signals on, stops when the command stops, and ends as the command ended. It does
nothing else, so that what the kernel adds up for it (CPU time, I/O) is the command's and its
descendants'; looking on is another process's work (`watch`).
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from joblens.collectors.processes import parse_io
from joblens.errors import sentence
from joblens.run.watch import GROUP_SIGNALS, Pipes, watch

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_SI_KERNEL = 0x80  # sigaction(2): the terminal sent it, to the whole foreground group
_WITNESS_SECONDS = 0.05
_LAST_WORDS_SECONDS = 10.0
_WAITED = (signal.SIGCHLD, signal.SIGCONT, signal.SIGWINCH, signal.SIGALRM, *GROUP_SIGNALS)
# The terminal's stop signals are left to the command: if it stops, so do we.
_HELD = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


class Totals(NamedTuple):
    """What the kernel accounts to the children that were waited for, and to theirs."""

    user_seconds: float
    system_seconds: float
    largest_rss_bytes: Optional[int]  # of the one process that had most, pages of files included
    minor_faults: int
    major_faults: int
    voluntary_switches: int
    involuntary_switches: int
    reaped: int  # our own children: the command, and orphans that were handed to us
    io: Optional[Dict[str, int]]


class Ended(NamedTuple):
    status: int  # as waitpid(2) has it
    start: float
    end: float
    totals: Totals
    problems: List[str]


def supervise(command: List[str], facts: Dict[str, Any], folder: str) -> Ended:
    """Raises OSError if the command cannot be started."""
    return _Supervisor(command, facts, folder).run()


class _Supervisor:
    def __init__(self, command: List[str], facts: Dict[str, Any], folder: str) -> None:
        self.command, self.facts, self.folder = command, facts, folder
        self.watcher = 0
        self.child = 0
        self.status: Optional[int] = None
        self.usages: List[resource.struct_rusage] = []
        self.problems: List[str] = []
        self._of_watcher: Dict[str, int] = {}

    def run(self) -> Ended:
        _adopt_orphans()
        before_mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*_WAITED, *_HELD))
        stop_reader, self.stop = os.pipe()
        self.heard, heard_writer = os.pipe()
        words_reader, words_writer = os.pipe()
        parent = os.getpid()
        self.watcher = os.fork()
        if self.watcher == 0:
            for end in (self.stop, self.heard, words_reader):
                os.close(end)
            _be_the_watcher(Pipes(stop_reader, heard_writer), words_writer, parent, self.facts, self.folder)
        for end in (stop_reader, heard_writer, words_writer):
            os.close(end)
        io_before = _read_io()
        start = time.time()
        try:
            self.child = _start(self.command, before_mask)
        except OSError:
            self._end_watcher(words_reader)
            signal.pthread_sigmask(signal.SIG_SETMASK, before_mask)
            raise
        self._say_begun()
        _let_go_of_streams()
        self._wait()
        end_time = time.time()
        io = _difference(_read_io(), io_before, self._of_watcher)
        self._end_watcher(words_reader)
        return Ended(self.status or 0, start, end_time, _add(self.usages, io), self.problems)

    def _say_begun(self) -> None:
        try:
            os.write(self.stop, b"+")
        except BrokenPipeError:  # it has ended already, which _reap will tell
            return

    def _wait(self) -> None:
        while self.status is None:
            info = signal.sigwaitinfo(_WAITED)
            if info.si_signo == signal.SIGCHLD:
                self._reap()
            elif info.si_signo in (signal.SIGCONT, signal.SIGWINCH):
                self._send(info.si_signo)  # twice does no harm
            elif info.si_code != _SI_KERNEL and not self._went_to_all(info.si_signo):
                self._send(info.si_signo)
        self._reap()

    def _reap(self) -> None:
        while True:
            # Looked at before it is taken away, since the kernel adds its I/O to ours when it is.
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if seen is None:
                return
            before = _read_io() if seen.si_pid == self.watcher else None
            pid, status, usage = os.wait4(seen.si_pid, os.WUNTRACED | os.WNOHANG)
            if pid == 0:
                continue
            if os.WIFSTOPPED(status):
                if pid == self.child:
                    os.kill(os.getpid(), signal.SIGSTOP)  # so that the shell sees the job stop
            elif pid == self.watcher:
                self.problems.append("the process that looks on has ended early")
                self._of_watcher = _difference(_read_io(), before, {}) or {}
                self.watcher = 0
            else:
                self.usages.append(usage)
                if pid == self.child:
                    self.status = status

    def _send(self, number: int) -> None:
        try:
            os.kill(self.child, number)
        except ProcessLookupError:  # it has just ended; the next SIGCHLD says so
            return

    def _went_to_all(self, number: int) -> bool:
        """Whether the watcher got it too: then it was for the whole group, and the command has it already."""
        until = time.monotonic() + _WITNESS_SECONDS
        while time.monotonic() < until:
            if not select.select([self.heard], [], [], max(until - time.monotonic(), 0))[0]:
                return False
            heard = os.read(self.heard, 512)
            if not heard or number in heard:
                return bool(heard)
        return False

    def _end_watcher(self, words: int) -> None:
        os.close(self.stop)
        if self.watcher:
            if select.select([words], [], [], _LAST_WORDS_SECONDS)[0]:
                said = b"".join(iter(lambda: os.read(words, 65536), b""))
                self.problems += said.decode("utf-8", "replace").splitlines()
            else:
                os.kill(self.watcher, signal.SIGKILL)
                self.problems.append("the process that looks on did not end, and was ended")
            os.waitpid(self.watcher, 0)
        os.close(words)
        os.close(self.heard)


def _adopt_orphans() -> None:
    """A process whose parent ends becomes ours and not init's, so that it stays the job's."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _be_the_watcher(pipes: Pipes, words: int, parent: int, facts: Dict[str, Any], folder: str) -> None:
    """Never returns, and never writes to the command's streams."""
    try:
        _let_go_of_streams(stderr=True)
        problems = watch(pipes, parent, facts, folder)
    except BaseException as error:  # whatever it is, the command must not see it
        problems = [f"looking on failed: {type(error).__name__}: {sentence(error)}"]
    try:
        os.write(words, "\n".join(problems).encode("utf-8", "replace")[:60_000])
    finally:
        os._exit(0)


def _let_go_of_streams(stderr: bool = False) -> None:
    """A pipe that the command reads or writes must not be kept open by us."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2) if stderr else (0, 1):
        os.dup2(null, stream)
    if null > 2:
        os.close(null)


def _start(command: List[str], mask: Set[Any]) -> int:
    """The command's pid. The pipe closes when it has begun, or brings why it has not."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvp(command[0], command)  # noqa: S606 (a shell would change what the user typed)
        except OSError as error:
            os.write(writer, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(writer)
    said = os.read(reader, 16)
    os.close(reader)
    if said:
        os.waitpid(child, 0)
        raise OSError(int(said), os.strerror(int(said)), command[0])
    return child


def _read_io() -> Optional[Dict[str, int]]:
    try:
        with open("/proc/self/io", "rb") as file:
            read_chars, written_chars, _, _, read, written, _ = parse_io("proc/self/io", file.read())
    except OSError:
        return None
    return {"read_chars": read_chars, "written_chars": written_chars, "read": read, "written": written}


def _difference(
    after: Optional[Dict[str, int]], before: Optional[Dict[str, int]], others: Dict[str, int]
) -> Optional[Dict[str, int]]:
    if after is None or before is None:
        return None
    return {name: max(after[name] - before[name] - others.get(name, 0), 0) for name in after}


def _add(usages: List[resource.struct_rusage], io: Optional[Dict[str, int]]) -> Totals:
    def total(figure: Callable[[resource.struct_rusage], float]) -> float:
        return sum(figure(usage) for usage in usages)

    # A child begins as a copy of us, and the kernel counts that: what is not larger says nothing.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    largest = max((usage.ru_maxrss * 1024 for usage in usages), default=0)
    return Totals(
        user_seconds=total(lambda usage: usage.ru_utime),
        system_seconds=total(lambda usage: usage.ru_stime),
        largest_rss_bytes=largest if largest > own else None,
        minor_faults=int(total(lambda usage: usage.ru_minflt)),
        major_faults=int(total(lambda usage: usage.ru_majflt)),
        voluntary_switches=int(total(lambda usage: usage.ru_nvcsw)),
        involuntary_switches=int(total(lambda usage: usage.ru_nivcsw)),
        reaped=len(usages),
        io=io,
    )


def end_as(status: int) -> int:
    """The exit code, or the same death by signal: whoever waits for us sees what it would have seen."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    sys.stdout.flush()
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core file is the command's
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number
