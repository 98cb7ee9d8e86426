"""The supervisor's hold on the process that looks on: starts it, asks it for signals, ends it.

It is the witness of signals: it shares the command's process group, so what it got too was sent to
the whole group, and the command has it already.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from joblens.core.errors import MalformedError, sentence
from joblens.core.procfs import read_stat
from joblens.run.before import Before, read_before
from joblens.run.clock import Clock
from joblens.run.streams import let_go, pipe, wait_readable, write_all
from joblens.run.totals import Inherited

# Those that say that we did something wrong ourselves, or that we have a child or a terminal.
_OWN_SIGNALS = frozenset(
    "SIGKILL SIGSTOP SIGCHLD SIGTTIN SIGTTOU SIGPIPE SIGXFSZ SIGSEGV SIGBUS SIGFPE SIGILL SIGTRAP "
    "SIGSYS".split()
)
# Between the first and the last process of a group that somebody signals one by one.
_ALL_SECONDS = 0.05
_LAST_WORDS_SECONDS = 10.0
_PR_SET_NAME = 15  # prctl(2)
_GARBAGE = (700, 10, 10)  # Python's own: it lives as long as the job, and what started it is impatient
_MOST_WORDS = 60_000  # what a pipe takes without a reader


def passed_signals() -> Set[int]:
    """Those that are meant for the command when we get them."""
    return {int(number) for number in signal.valid_signals() if _name(number) not in _OWN_SIGNALS}


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most of the real-time signals have none
        return ""


class Words(NamedTuple):
    """The supervisor's ends of the pipes."""

    tell: int  # the pid of the command says that it has begun; its end, that it has ended
    heard: int  # each signal that came, as a byte
    last: int  # what went wrong, as lines


class SamplerProcess:
    def __init__(self, pid: int, words: Words) -> None:
        self.pid, self.words = pid, words
        self.lost = False
        self._heard: Set[int] = set()
        self._owed: Set[int] = set()  # known to be sent to it: when it tells them, that is no news

    def say_begun(self, command: int) -> None:
        try:
            os.write(self.words.tell, b"%d\n" % command)
        except BrokenPipeError:  # it has ended already, and whoever waits for it will tell
            return

    def has_heard(self, number: int) -> bool:
        """Whether the signal came to it too; sent and not seen yet, because others have the cores, counts."""
        until = time.monotonic() + _ALL_SECONDS
        while not self.lost:
            self._listen()
            if number in self._heard:
                self._heard.discard(number)
                return True
            if _is_pending(self.pid, number):
                self._owed.add(number)
                return True
            if time.monotonic() > until:
                return False
            wait_readable([self.words.heard], 0.005)
        return False

    def _listen(self) -> None:
        """A set and no list: two of a kind that came while we were stopped are one for us as well."""
        while wait_readable([self.words.heard], 0):
            heard = set(os.read(self.words.heard, 512))
            if not heard:
                self.lost = True
                return
            self._heard |= heard - self._owed
            self._owed -= heard

    def say_ended(self, inherited: Optional[Inherited]) -> None:
        """It takes its last sample now, and writes what it has. What we do from now on is not the job's.

        Nothing is inherited from a command that could not be started.
        """
        if inherited:
            write_all(self.words.tell, inherited.stat + b"\0" + inherited.io)
        os.close(self.words.tell)
        if not self.lost:
            os.kill(self.pid, signal.SIGCONT)  # somebody may have stopped it

    def end(self) -> List[str]:
        """Behind `say_ended`: waits until it has finished. What it has to say."""
        said = self._last_words() if not self.lost else []
        os.close(self.words.last)
        os.close(self.words.heard)
        return said

    def _last_words(self) -> List[str]:
        if wait_readable([self.words.last], _LAST_WORDS_SECONDS):
            said = b"".join(iter(lambda: os.read(self.words.last, 65536), b""))
            problems = said.decode("utf-8", "replace").splitlines()
        else:
            os.kill(self.pid, signal.SIGKILL)
            problems = ["the process that looks on did not end, and was ended"]
        os.waitpid(self.pid, 0)
        return problems


def _is_pending(pid: int, number: int) -> bool:
    """Sent to it and not taken by it (proc(5))."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    masks = [int(line.split()[1], 16) for line in lines if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def start_sampler(facts: Dict[str, Any], folder: str, clock: Clock) -> SamplerProcess:
    parent, before = os.getpid(), read_before()
    told, tell = pipe()
    heard, hears = pipe()
    last, says = pipe()
    pid = os.fork()
    if pid == 0:
        let_go((0, 1, 2), keep=(told, hears, says))
        _be_the_watcher(says, (told, hears), parent, facts, folder, clock, before)
    for end in (told, hears, says):
        os.close(end)
    return SamplerProcess(pid, Words(tell, heard, last))


def _be_the_watcher(
    says: int,
    ends: Tuple[int, int],
    parent: int,
    facts: Dict[str, Any],
    folder: str,
    clock: Clock,
    before: Before,
) -> None:
    """Never returns."""
    try:
        _rename(f"jl-watch {facts['id']}")
        from joblens.run.sampler import Told, watch  # here: the command does not wait for it to load

        gc.freeze()  # what is loaded stays
        gc.set_threshold(*_GARBAGE)

        problems = watch(Told(*ends), passed_signals(), parent, facts, folder, clock, before)
    except BaseException as error:  # whatever it is, the command must not see it
        problems = [f"looking on failed: {type(error).__name__}: {sentence(error)}"]
    try:
        write_all(says, "\n".join(problems).encode("utf-8", "replace")[:_MOST_WORDS])
    finally:
        os._exit(0)


def _rename(title: str) -> None:
    """As ps and pkill see it: who ends the job by the name of `joblens run` means the supervisor alone."""
    try:
        import ctypes

        fields = read_stat("self").fields
    except (ImportError, OSError, MalformedError):
        return  # a Python without libffi, or no /proc: it keeps the supervisor's name
    name = title.encode("ascii", "replace")
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, proc(5)
    if begin and end > begin:
        ctypes.memmove(begin, name[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name[:15], 0, 0, 0)


def try_to_sample(
    facts: Dict[str, Any], folder: str, clock: Clock, problems: List[str]
) -> Optional[SamplerProcess]:
    """None where there is no room for a further process or pipe: then the command runs unseen."""
    try:
        return start_sampler(facts, folder, clock)
    except Exception as error:  # whatever is wrong with joblens is not the command's business
        problems.append(f"nothing was sampled: {sentence(error)}")
        return None
