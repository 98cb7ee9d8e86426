"""Programs of ours that run together: started in order, heard, started again if they die, ended in order."""

from __future__ import annotations

import ctypes
import os
import re
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType

from joblens.core.errors import OutsideError

_PR_SET_PDEATHSIG = 1  # prctl(2)
_SHORTEST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_LIVED = 30.0  # seconds after which a part that dies has not died at once
_START = 60.0  # seconds until it must be ready
_END = 15.0  # seconds until it is killed
_LONGEST_LINE = 10_000

Words = Callable[[], list[str]]  # of its command line, asked for at each start
Say = Callable[[str], None]


class Part:
    """One program. It is ready once it has said where it listens."""

    def __init__(self, name: str, words: Words, ready: str, more: Mapping[str, str]) -> None:
        self.name, self._words, self._ready, self._more = name, words, re.compile(ready), more
        self.address = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.since = self.not_before = 0.0
        self.wait = _SHORTEST_WAIT / 2
        self.code = 0
        self._line = b""

    def start(self) -> None:
        parent, libc = os.getpid(), ctypes.CDLL(None)

        def end_with_parent() -> None:
            """Nothing is left behind, even if we are killed."""
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        # A group of its own: Ctrl-C is for us, and we end the parts in order.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "joblens", *self._words()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._more},
            process_group=0,
            preexec_fn=end_with_parent,  # noqa: PLW1509 (we have no threads)
        )
        os.set_blocking(self.output, False)
        self.since = time.monotonic()
        self._line = b""

    @property
    def output(self) -> int:
        if self.process is None or self.process.stdout is None:
            raise OutsideError(f"the {self.name} does not run")
        return self.process.stdout.fileno()

    def hear(self, say: Say) -> bool:
        """Passes on what it says, whole lines. False when it has closed its mouth."""
        try:
            data = os.read(self.output, 65_536)
        except BlockingIOError:
            return True
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > _LONGEST_LINE or (not data and self._line):
            lines, self._line = [*lines, self._line], b""
        for line in lines:
            text = line.decode("utf-8", "replace")
            found = self._ready.search(text)
            if found:
                self.address = found[1]
            else:
                say(text)
        return bool(data)

    def has_spoken(self) -> bool:
        return bool(select.select([self.output], [], [], 0)[0])

    def close(self) -> None:
        """Once it has died."""
        if self.process is not None:
            self.code = self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
        self.process = None

    def starts_again(self, say: Say) -> None:
        """Later each time, if it never lives long."""
        now = time.monotonic()
        self.wait = _SHORTEST_WAIT if now - self.since > _LIVED else min(2 * self.wait, _LONGEST_WAIT)
        self.not_before = now + self.wait
        code = self.code
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        say(f"joblens up: the {self.name} {how}; it is started again in {self.wait:g} s")

    def ask_to_end(self) -> None:
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


class Parts:
    """A context: at its end none of them runs any more."""

    def __init__(self, parts: list[Part], say: Say) -> None:
        self.parts, self._say = parts, say
        self.asked = 0  # how often somebody wanted the end
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._reader, selectors.EVENT_READ)
        self._before = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *error: object) -> None:
        """The last one first: it may have something to give to those before it."""
        for part in reversed(self.parts):
            self._end(part)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._selector.close()
        os.close(self._reader)
        os.close(self._writer)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked += 1
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def start(self) -> None:
        """One after the other, each when the one before is ready. Raises OutsideError if one is not."""
        for part in self.parts:
            self._start(part)
            end, held = time.monotonic() + _START, list[str]()
            while not part.address and not self.asked:
                self._turn(0.2, held.append)
                self._bury(part, held.append)
                if part.process is None or time.monotonic() > end:
                    raise OutsideError(f"the {part.name} did not start: {_last_words(held)}")
            for line in held:
                self._say(line)

    def watch(self) -> None:
        """Until somebody wants the end."""
        while not self.asked:
            for part in self.parts:
                if self._bury(part, self._say):
                    part.starts_again(self._say)
                if part.process is None and time.monotonic() >= part.not_before:
                    self._start(part)
            waiting = [part.not_before for part in self.parts if part.process is None]
            pause = min([*waiting, time.monotonic() + 1.0]) - time.monotonic()
            self._turn(max(pause, 0.01), self._say)

    def _start(self, part: Part) -> None:
        part.start()
        self._selector.register(part.output, selectors.EVENT_READ, part)

    def _turn(self, seconds: float, say: Say) -> None:
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                os.read(self._reader, 4096)
            elif not key.data.hear(say):
                self._selector.unregister(key.fd)

    def _bury(self, part: Part, say: Say) -> bool:
        """Whether it has died."""
        if part.process is None or part.process.poll() is None:
            return False
        self._hear_out(part, say)
        part.close()
        return True

    def _hear_out(self, part: Part, say: Say) -> None:
        """Its last words. A child of its own may still hold the other end of the pipe."""
        with suppress(KeyError):
            self._selector.get_key(part.output)
            while part.has_spoken() and part.hear(say):
                pass
            self._selector.unregister(part.output)

    def _end(self, part: Part) -> None:
        part.ask_to_end()
        end, asked = time.monotonic() + _END, self.asked
        while part.process is not None and part.process.poll() is None:
            if time.monotonic() > end or self.asked > max(asked, 1):
                part.kill()
                part.process.wait()
            else:
                self._turn(0.1, self._say)
        self._bury(part, self._say)


def _last_words(lines: list[str]) -> str:
    return lines[-1].removeprefix("joblens: ") if lines else "it does not say why"
