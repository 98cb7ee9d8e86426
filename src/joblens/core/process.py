"""Child processes: started, given input, read line by line, watched and ended.

A program of ours that is started with `--ready-fd N` writes one line of JSON there once it accepts
connections: {"ready": "hub", "address": "http://127.0.0.1:9478", "pid": 4711}.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import IO, Callable, Mapping, NamedTuple, Optional, Sequence, Union

from joblens.core.json_file import parse_json
from joblens.core.procfs import Stat, find_stat

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LONGEST_LINE = 4096


class ProcessId(NamedTuple):
    """A process for as long as it runs: the kernel reuses a pid, but not together with the start time."""

    pid: int
    start: int  # clock ticks since boot; 0 if there was no such process

    def is_alive(self) -> bool:
        return self.start != 0 and identify(self.pid) == self


def identify(pid: int) -> ProcessId:
    stat = find_live(pid)
    return ProcessId(pid, stat.start if stat else 0)


def find_live(pid: int) -> Optional[Stat]:
    """Return None if there is no such process, or it is a zombie."""
    stat = find_stat(pid)
    return None if stat is None or stat.has_ended else stat


class Ready(NamedTuple):
    """The announcement of a daemon that is ready."""

    name: str  # agent, hub, up
    address: str
    pid: int


def parse_ready(line: str) -> Optional[Ready]:
    """Return None for any other line."""
    if not line.startswith('{"ready"'):
        return None
    try:
        found = parse_json(line)
        return Ready(str(found["ready"]), str(found["address"]), int(found["pid"]))
    except (ValueError, KeyError, TypeError):
        return None


class Child:
    """A child process in a session of its own. Its pipes are non-blocking and served by a selector."""

    def __init__(
        self,
        command: Sequence[str],
        on_line: Optional[Callable[[str], None]] = None,
        selector: Optional[selectors.BaseSelector] = None,
        *,
        log: Union[IO[bytes], int, None] = None,  # takes the output instead of `on_line`
        given: Optional[bytes] = None,  # input, which then stays open until `close_input`
        announces: bool = False,  # it understands --ready-fd
        with_parent: bool = False,  # SIGTERM when this process, which has no threads, ends in any way
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = "/",  # None: inherited
        umask: int = -1,
    ) -> None:
        self.ready: Optional[Ready] = None
        self.selector = selector or selectors.DefaultSelector()
        self._owns_selector = selector is None
        self._on_line, self._given, self._line = on_line, memoryview(given or b""), b""
        output = subprocess.PIPE if on_line else subprocess.DEVNULL
        self._announcement, announcer = os.pipe() if announces else (-1, -1)
        try:
            self.process = subprocess.Popen(
                [*command, *(["--ready-fd", str(announcer)] if announces else [])],
                bufsize=0,
                stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
                stdout=output if log is None else log,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd,
                umask=umask,
                start_new_session=True,
                pass_fds=(announcer,) if announces else (),
                preexec_fn=die_with(os.getpid()) if with_parent else None,  # noqa: PLW1509
            )
        except BaseException:
            self._close_announcement()
            raise
        finally:
            if announces:
                os.close(announcer)
        self._register()

    def _register(self) -> None:
        output, input_ = self.process.stdout, self.process.stdin
        if output is not None:
            os.set_blocking(output.fileno(), False)
            self.selector.register(output, selectors.EVENT_READ, self.read)
        if input_ is not None:
            os.set_blocking(input_.fileno(), False)
            if self._given:
                self.selector.register(input_, selectors.EVENT_WRITE, self._write)
        if self._announcement >= 0:
            self.selector.register(self._announcement, selectors.EVENT_READ, self._read_announcement)

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def read(self) -> None:
        """Pass on the lines of output that are there."""
        output = self.process.stdout
        if output is None or output.closed:
            return
        try:
            data = os.read(output.fileno(), 65_536)
        except BlockingIOError:
            return
        *lines, self._line = (self._line + data).split(b"\n")
        if (self._line and not data) or len(self._line) > _LONGEST_LINE:
            lines, self._line = [*lines, self._line], b""
        if not data:
            self._close(output)
        for line in lines:
            text = line.decode("utf-8", "replace").expandtabs().rstrip()
            if self._on_line is not None:
                self._on_line("".join(letter if letter.isprintable() else "?" for letter in text))

    def read_rest(self) -> None:
        """Read what is in the pipe. Its end may never come: another process can have inherited it."""
        for _ in range(64):
            output = self.process.stdout
            if output is None or output.closed or not select.select([output], [], [], 0)[0]:
                return
            self.read()

    def _read_announcement(self) -> None:
        """A line this short is written, and so read, as a whole (PIPE_BUF)."""
        self.ready = parse_ready(os.read(self._announcement, select.PIPE_BUF).decode("utf-8", "replace"))
        self._close_announcement()

    def wait_until_ready(self, seconds: float) -> Optional[Ready]:
        """Return None if it has ended, or `seconds` have passed."""
        until = time.monotonic() + seconds
        while self.ready is None and self.runs and time.monotonic() < until:
            dispatch(self.selector, 0.1)
        return self.ready

    def _write(self) -> None:
        input_ = self.process.stdin
        if input_ is None:
            return
        try:
            done = os.write(input_.fileno(), self._given[:65_536])
        except BlockingIOError:
            return
        except OSError:  # it has ended, which `runs` shows
            done = len(self._given)
        self._given = self._given[done:]
        if not self._given:
            self.selector.unregister(input_)

    def send(self, message: bytes) -> bool:
        """Write a message, at most PIPE_BUF bytes, to its input; False if it does not read, or has ended."""
        input_ = self.process.stdin
        if input_ is None or input_.closed or self._given:
            return False
        try:
            os.write(input_.fileno(), message)  # as a whole or not at all
        except OSError:
            return False
        return True

    def close_input(self) -> None:
        self._close(self.process.stdin)

    def signal(self, number: int) -> None:
        """To its whole process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self, seconds: float) -> None:
        """Send SIGTERM, and SIGKILL to its process group if it still runs after `seconds`."""
        self.process.terminate()
        until = time.monotonic() + seconds
        while self.runs and time.monotonic() < until:
            dispatch(self.selector, 0.05)
        self.signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        """Wait for its end, pass on the rest of its output and close the pipes."""
        self.process.wait()
        self.read_rest()
        self._close(self.process.stdin)
        self._close(self.process.stdout)
        self._close_announcement()
        if self._owns_selector:
            self.selector.close()

    def _close(self, pipe: Optional[IO[bytes]]) -> None:
        if pipe is not None and not pipe.closed:
            with suppress(KeyError):
                self.selector.unregister(pipe)
            pipe.close()

    def _close_announcement(self) -> None:
        if self._announcement >= 0:
            with suppress(KeyError):
                self.selector.unregister(self._announcement)
            os.close(self._announcement)
            self._announcement = -1


def dispatch(selector: selectors.BaseSelector, seconds: float) -> None:
    """Call the handlers of all pipes that have something, waiting `seconds` at most."""
    for key, _ in selector.select(seconds):
        key.data()


def how_ended(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:  # most real-time signals have no name
        return f"was ended by signal {-code}"


def die_with(parent: int) -> Callable[[], None]:
    """Return what a child calls, to get SIGTERM when the thread that has started it ends in any way."""
    import ctypes

    libc = ctypes.CDLL(None)

    def set_up() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it has ended in between
            os._exit(1)

    return set_up


def prefer_for_oom_kill(score: int = 1000) -> None:
    """Where memory runs out, the kernel kills this process and its children, and not the job (choom(1))."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))
