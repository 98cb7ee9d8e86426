"""A full-screen terminal: raw keys, drawing, and restoring its state."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

_ENTER = b"\x1b[?1049h\x1b[?25l\x1b[?7l"  # alternate screen, no cursor, no wrapping
_LEAVE = b"\x1b[?7h\x1b[?25h\x1b[?1049l"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KEYS = {
    b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down", b"\x1b[5~": "page up",
    b"\x1b[6~": "page down", b"\x1b[H": "home", b"\x1bOH": "home", b"\x1b[1~": "home", b"\t": "tab",
    b"\r": "enter", b"\n": "enter", b"\x7f": "back", b"\x08": "back", b"\x1b": "escape",
}  # fmt: skip


class Screen:
    """A context manager that restores the terminal in any case."""

    def __init__(self) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._reader, self._writer = -1, -1
        self.ended_by = 0  # the signal

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(self._in)
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (*_ENDING, signal.SIGWINCH, signal.SIGTSTP):
            self._handlers[number] = signal.signal(number, self._note)
        self._take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _take(self) -> None:
        mode = termios.tcgetattr(self._in)
        mode[3] &= ~(termios.ICANON | termios.ECHO)  # Ctrl-C and Ctrl-Z still send signals
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._in, termios.TCSADRAIN, mode)
        self._write(_ENTER)

    def _give_back(self) -> None:
        with suppress(OSError, termios.error):  # the terminal has been closed
            self._write(_LEAVE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number in _ENDING:
            self.ended_by = number
        self.wake(bytes([number]))

    def wake(self, what: bytes = b"\0") -> None:
        """Make `listen` return. Can be called from any thread."""
        with suppress(BlockingIOError):
            os.write(self._writer, what)

    def size(self) -> tuple[int, int]:
        with suppress(OSError):
            found = os.get_terminal_size(self._out)
            if found.columns > 0 and found.lines > 0:
                return found.columns, found.lines
        return shutil.get_terminal_size()

    def draw(self, lines: list[str]) -> None:
        """Draw in a single write, over the old content, to avoid flicker.

        Each line is erased before it is written: after one as wide as the screen the cursor stays on its last
        character.
        """
        text = "\x1b[H\x1b[K" + "\r\n\x1b[K".join(lines[:-1]) + "\r\n\x1b[J" + "".join(lines[-1:])
        self._write(text.encode(sys.stdout.encoding or "ascii", "replace"))

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._out, data) :]

    def listen(self, seconds: float) -> list[str] | None:
        """Wait for keys or a call of `wake`. Return None at the end of input or after a signal."""
        ready, _, _ = select.select([self._in, self._reader], [], [], seconds)
        if self._reader in ready:
            woken = os.read(self._reader, 4096)
            if signal.SIGTSTP in woken:
                self._stop()
        if self.ended_by:
            return None
        if self._in not in ready:
            return []
        try:
            data = os.read(self._in, 1024)
        except OSError:  # the terminal has been closed
            return None
        return split_keys(data) if data else None

    def _stop(self) -> None:
        """Stop as on Ctrl-Z. `fg` continues here."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()


def split_keys(data: bytes) -> list[str]:
    """Return characters as they are and other keys by name, without unknown sequences."""
    keys: list[str] = []
    while data:
        found = next((code for code in sorted(_KEYS, key=len, reverse=True) if data.startswith(code)), b"")
        if found == b"\x1b" and data[1:2] in (b"[", b"O"):
            end = next((at for at, byte in enumerate(data[2:], 2) if 0x40 <= byte < 0x7F), len(data))
            data = data[end + 1 :]
        elif found:
            keys.append(_KEYS[found])
            data = data[len(found) :]
        else:
            size = next((size for size in (1, 2, 3, 4) if _is_letter(data[:size])), 0)
            if size:
                keys.append(data[:size].decode())
            data = data[size or 1 :]
    return keys


def _is_letter(data: bytes) -> bool:
    try:
        return data.decode().isprintable()
    except UnicodeDecodeError:
        return False
