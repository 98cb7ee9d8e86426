"""A process that a session has started: what it is given, what it says, how it ends."""

from __future__ import annotations

import ctypes
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from joblens.core.errors import OutsideError

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LONGEST_LINE = 4096


class Child:
    """Neither what it is given nor what it says, line by line, makes us wait."""

    def __init__(
        self,
        words: Sequence[str],
        env: dict[str, str],
        hears: Callable[[str], None],
        selector: selectors.BaseSelector,
        given: bytes = b"",
        ends_with_us: bool = False,
    ) -> None:
        self._hears, self._selector, self._given, self._line = hears, selector, memoryview(given), b""
        self.process = subprocess.Popen(
            words,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd="/",
            start_new_session=True,
            preexec_fn=_end_with(os.getpid()) if ends_with_us else None,  # noqa: PLW1509 (we have no threads)
        )
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        selector.register(self._pipe(self.process.stdout), selectors.EVENT_READ, self.hear)
        if given:
            selector.register(self._pipe(self.process.stdin), selectors.EVENT_WRITE, self._give)

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        if pipe is None:
            raise OutsideError("a process without pipes")
        return pipe

    @property
    def runs(self) -> bool:
        return self.process.poll() is None

    def hear(self) -> None:
        output = self._pipe(self.process.stdout)
        try:
            data = os.read(output.fileno(), 65_536)
        except BlockingIOError:
            return
        *lines, self._line = (self._line + data).split(b"\n")
        if (self._line and not data) or len(self._line) > _LONGEST_LINE:
            lines, self._line = [*lines, self._line], b""
        if not data:
            self._selector.unregister(output)
            output.close()
        for line in lines:
            text = line.decode("utf-8", "replace").expandtabs().rstrip()
            self._hears("".join(letter if letter.isprintable() else "?" for letter in text))  # for a terminal

    def hear_out(self) -> None:
        """What there is of its last words: others may hold the other end of the pipe."""
        output = self._pipe(self.process.stdout)
        for _ in range(64):
            if output.closed or not select.select([output], [], [], 0)[0]:
                return
            self.hear()

    def _give(self) -> None:
        try:
            done = os.write(self._pipe(self.process.stdin).fileno(), self._given[:65_536])
        except BlockingIOError:
            return
        except OSError:  # it has ended, which is seen elsewhere
            done = len(self._given)
        self._given = self._given[done:]
        if not self._given:
            self._selector.unregister(self._pipe(self.process.stdin))

    def close_input(self) -> None:
        """What an agent takes for its end."""
        pipe = self._pipe(self.process.stdin)
        if not pipe.closed:
            with suppress(KeyError):
                self._selector.unregister(pipe)
            pipe.close()

    def end(self, seconds: float) -> None:
        """Asked to, and killed if it takes longer."""
        self.process.terminate()
        until = time.monotonic() + seconds
        while self.runs and time.monotonic() < until:
            for key, _ in self._selector.select(0.05):
                key.data()
        self.signal(signal.SIGKILL)
        self.close()

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Once it has ended."""
        self.process.wait()
        self.hear_out()
        self.close_input()
        output = self._pipe(self.process.stdout)
        if not output.closed:
            self._selector.unregister(output)
            output.close()


def go_first(how_soon: int = 1000) -> None:
    """Where memory runs out, the kernel ends this and what it starts, and not the job (choom(1))."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(how_soon))


def _end_with(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None)

    def set_up() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return set_up
