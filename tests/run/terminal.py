"""A real bash at a real terminal, and somebody who types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import time
from types import TracebackType

from waiting import PATIENCE, is_readable

from .running import Stand

CTRL_C, CTRL_D, CTRL_Z, ESCAPE = "\x03", "\x04", "\x1a", "\x1b"


class Terminal:
    """`joblens` in it is `joblens run --quiet --`. The prompt is `$ `."""

    def __init__(self, stand: Stand, size: tuple[int, int] = (24, 80)) -> None:
        self.screen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            environment = {**stand.environment, "PS1": "$ ", "TERM": "vt100", "LC_ALL": "C.UTF-8"}
            environment.pop("PROMPT_COMMAND", None)
            os.chdir(stand.folder)
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)  # noqa: S606
        self.resize(*size)
        self.expect(r"\$ ")
        self.type(f"alias joblens='{' '.join(stand.words([], '--quiet'))}'\n")
        self.expect(r"\n\$ ")

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        os.close(self.fd)  # whoever is left at the terminal gets SIGHUP
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """Waits until this is on the screen; what comes before it is forgotten."""
        end = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self.screen)):
            left = end - time.monotonic()
            assert left > 0, f"{pattern!r} did not come: {self.screen!r}"
            if is_readable(self.fd, left):
                self.screen += os.read(self.fd, 4096).decode("utf-8", "replace").replace("\r", "")
        self.screen = self.screen[match.end() :]
        return match

    def run(self, line: str, pattern: str) -> re.Match[str]:
        self.type(line + "\n")
        return self.expect(pattern)

    def status(self) -> int:
        """The exit status of the last command, which shows too that the shell listens again."""
        return int(self.run("echo status=$?", r"status=(\d+)\n")[1])

    def is_sane(self) -> bool:
        """Whether lines are edited and shown by the terminal, as a shell leaves it to a command."""
        shown = self.run("stty -a; echo end.", r"(?s)speed(.*)\nend\.")[1].split()
        return {"icanon", "echo", "isig"} <= set(shown)
