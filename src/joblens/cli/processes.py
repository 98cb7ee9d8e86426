"""Daemons of joblens that run together: started in order, restarted if they die, ended in reverse order."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType

from joblens.core.errors import OutsideError
from joblens.core.process import Child, dispatch, how_ended
from joblens.core.python import python_command

_SHORTEST_WAIT, _LONGEST_WAIT = 0.5, 30.0
_LIVED = 30.0  # seconds after which the backoff starts again
_START = 60.0  # seconds until it must be ready
_END = 15.0  # seconds until it is killed

Words = Callable[[], list[str]]  # of its command line, called at each start
Say = Callable[[str], None]


class Daemon:
    """One daemon. Its address is known once it is ready."""

    def __init__(self, name: str, words: Words, env: Mapping[str, str]) -> None:
        self.name, self._words, self._env = name, words, env
        self.address = ""
        self.child: Child | None = None
        self.since = self.not_before = 0.0
        self.wait = _SHORTEST_WAIT / 2

    def start(self, selector: selectors.BaseSelector, say: Say) -> None:
        command, env = python_command("joblens", *self._words()), {**os.environ, **self._env}
        self.child = Child(command, say, selector, announces=True, with_parent=True, env=env, cwd=None)
        self.since = time.monotonic()

    def note_ready(self) -> None:
        if self.child is not None and self.child.ready is not None:
            self.address = self.child.ready.address

    def note_end(self) -> str:
        """Return how it has ended, if it has just now; else ""."""
        if self.child is None or self.child.runs:
            return ""
        child, self.child = self.child, None
        child.close()
        return how_ended(child.process.returncode)

    def back_off(self) -> None:
        """Wait twice as long before each start, unless it has run for a while."""
        now = time.monotonic()
        self.wait = _SHORTEST_WAIT if now - self.since > _LIVED else min(2 * self.wait, _LONGEST_WAIT)
        self.not_before = now + self.wait


class Daemons:
    """A context; on exit none of them runs any more."""

    def __init__(self, daemons: list[Daemon], say: Say) -> None:
        self.daemons, self._say = daemons, say
        self._held: list[str] | None = None  # output of a daemon that starts
        self.signals = 0  # how often the user has asked for the end
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector.register(self._reader, selectors.EVENT_READ, lambda: os.read(self._reader, 4096))
        self._before = {
            number: signal.signal(number, self._note)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }

    def __enter__(self) -> Daemons:
        return self

    def __exit__(self, *error: object) -> None:
        """The last one first: the agent has batches for the hub."""
        for daemon in reversed(self.daemons):
            self._end(daemon)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._selector.close()
        os.close(self._reader)
        os.close(self._writer)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals += 1
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def _hear(self, line: str) -> None:
        (self._say if self._held is None else self._held.append)(line)

    def start(self) -> None:
        """Start each when the one before is ready. Raises OutsideError if one is not."""
        for daemon in self.daemons:
            self._held = held = list[str]()
            try:
                self._start(daemon, held)
            finally:
                self._held = None
            for line in held:
                self._say(line)

    def _start(self, daemon: Daemon, held: list[str]) -> None:
        daemon.start(self._selector, self._hear)
        end = time.monotonic() + _START
        while not daemon.address and not self.signals:
            dispatch(self._selector, 0.2)
            daemon.note_ready()
            if (not daemon.address and daemon.note_end()) or time.monotonic() > end:
                raise OutsideError(f"the {daemon.name} did not start: {_last(held)}")

    def watch(self) -> None:
        """Restart daemons that die, until a signal arrives."""
        while not self.signals:
            for daemon in self.daemons:
                ended = daemon.note_end()
                if ended:
                    daemon.back_off()
                    self._say(f"joblens up: the {daemon.name} {ended}; it is restarted in {daemon.wait:g} s")
                if daemon.child is None and time.monotonic() >= daemon.not_before:
                    daemon.start(self._selector, self._hear)
            waiting = [daemon.not_before for daemon in self.daemons if daemon.child is None]
            pause = min([*waiting, time.monotonic() + 1.0]) - time.monotonic()
            dispatch(self._selector, max(pause, 0.01))

    def _end(self, daemon: Daemon) -> None:
        if daemon.child is None:
            return
        daemon.child.process.terminate()
        end, signals = time.monotonic() + _END, self.signals
        while daemon.child.runs and time.monotonic() < end and self.signals <= max(signals, 1):
            dispatch(self._selector, 0.1)
        daemon.child.process.kill()
        daemon.child.close()


def _last(lines: list[str]) -> str:
    return lines[-1].removeprefix("joblens: ") if lines else "no output"
