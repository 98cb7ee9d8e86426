"""`flux exec` for PBS: runs one command on several hosts of a job, with its input and output.

`pbs_tmrsh` starts it there as a task of the job, without ssh. But a task's input is empty, and its output
goes into the job's. So each task connects back, with an address and a secret from a file that only the job's
user can read, and the connection becomes its input and output. Lines start with `HOST: `; the last one may be
`Exit CODE`.

`python -m joblens.usermode.pbs_tasks FILE ADDRESS PBS_TMRSH HUB HOST…`. Its own input goes to all of them.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import IO

from joblens.agent.event_loop import READ, Events
from joblens.core.errors import OutsideError
from joblens.core.files import write_quickly
from joblens.usermode.bootstrap import BOOTSTRAP, NO_FILE, PYTHON_FINDER

_LONGEST_LINE = 4096
_POLL_SECONDS = 1.0
_MESSAGES = {
    127: "no Python 3.9 or newer on this host",
    NO_FILE: "the session's folder is not visible: put the store (--home) on a shared one or set JOBLENS_SSH",
}
_SILENT = "exec </dev/null >/dev/null 2>&1\n"  # its output would be in the job's
_CALL = f"""\
import os, socket, sys
try:
    with open(sys.argv[3]) as file:
        address, port, secret, answer = file.read().split()
    line = socket.create_connection((address, int(port)), 30)
    line.sendall((sys.argv[2] + " " + secret + "\\n").encode())
    received = b""
    while len(received) < len(answer):
        more = line.recv(len(answer) - len(received))
        if not more:
            sys.exit({NO_FILE})
        received += more
except OSError:
    sys.exit({NO_FILE})
if received != answer.encode():
    sys.exit({NO_FILE})
line.settimeout(None)
for number in (0, 1, 2):
    os.dup2(line.fileno(), number)
"""


class Task:
    def __init__(self, host: str, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is None:  # it is a pipe
            raise OutsideError("a process without pipes")
        self.host, self.process, self.output = host, process, process.stdout
        self.connection: socket.socket | None = None
        self.sent, self.over = 0, False  # bytes of the input, and whether its end is sent
        self.rest = b""  # output after the last newline

    def is_behind(self, length: int) -> bool:
        return self.connection is not None and not self.over and self.sent < length

    def write(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        if self.rest and (not data or len(self.rest) > _LONGEST_LINE):
            lines, self.rest = [*lines, self.rest], b""
        for line in lines:
            os.write(1, self.host.encode() + b": " + line + b"\n")


class Tasks:
    def __init__(self, program: str, file: str, address: str, hub: str, hosts: Sequence[str]) -> None:
        self.events = Events(_log)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.listener = socket.create_server((address.strip("[]"), 0), family=family, backlog=128)
        self.secret, self.answer = secrets.token_hex(32), secrets.token_hex(32)
        self.given, self.is_whole = bytearray(), False
        place = self.listener.getsockname()
        write_quickly(file, f"{place[0]} {place[1]} {self.secret} {self.answer}\n".encode())
        self.unknown: list[socket.socket] = []
        self.tasks = {host: Task(host, self._start(program, file, hub, host)) for host in hosts}
        for task in self.tasks.values():
            close = partial(self._close, task.output)
            self.events.add(task.output, READ, partial(self._read_command, task), close)
        self.events.add(self.listener, READ, self._accept, _pause)
        self.events.add(0, READ, self._read_input, partial(self.events.remove, 0))

    @staticmethod
    def _start(program: str, file: str, hub: str, host: str) -> subprocess.Popen[bytes]:
        words = ("/bin/sh", "-c", _SILENT + PYTHON_FINDER, "sh", sys.executable, _CALL + BOOTSTRAP)
        # Output of pbs_tmrsh itself is about this host.
        return subprocess.Popen(
            [program, host, *words, hub, host, file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self) -> None:
        """Return when the last task has ended."""
        while self.tasks:
            behind = any(task.is_behind(len(self.given)) for task in self.tasks.values())
            self.events.wait(0.05 if behind else _POLL_SECONDS)
            for task in self.tasks.values():
                self._send(task)
            self.tasks = {host: task for host, task in self.tasks.items() if not self._has_ended(task)}

    def _read_input(self, events: int) -> None:
        data = os.read(0, 1 << 16)
        self.given += data
        if not data:
            self.is_whole = True
            self.events.remove(0)

    def _accept(self, events: int) -> None:
        line, _ = self.listener.accept()
        line.setblocking(False)
        self.unknown.append(line)
        self.events.add(line, READ, partial(self._authenticate, line), partial(self._dismiss, line))
        for old in self.unknown[: -len(self.tasks) - 64]:
            self._dismiss(old)

    def _authenticate(self, line: socket.socket, events: int) -> None:
        """Take a connection that sends the secret as the task of its host, and answer with the other
        secret."""
        try:
            host, _, secret = line.recv(1024).decode("utf-8", "replace").rstrip("\n").partition(" ")
        except OSError:
            host = secret = ""
        task = self.tasks.get(host)
        if (
            task is None
            or task.connection
            or not secrets.compare_digest(secret.encode(), self.secret.encode())
        ):
            self._dismiss(line)
            return
        line.send(self.answer.encode())
        self.unknown.remove(line)
        task.connection = line
        self.events.remove(line)
        self.events.add(line, READ, partial(self._read, task, line), partial(self._close, line))

    def _dismiss(self, line: socket.socket) -> None:
        with suppress(ValueError):
            self.unknown.remove(line)
        self._close(line)

    def _close(self, file: socket.socket | IO[bytes]) -> None:
        self.events.remove(file)
        file.close()

    def _read(self, task: Task, line: socket.socket, events: int) -> None:
        try:
            data = line.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:  # it was killed
            data = b""
        task.write(data)
        if not data:
            self._close(line)

    def _send(self, task: Task) -> None:
        """Send as much of the input as the task takes now, and then its end."""
        if task.connection is None or task.connection.fileno() < 0 or task.over:
            return
        try:
            while task.sent < len(self.given):
                task.sent += task.connection.send(memoryview(self.given)[task.sent : task.sent + (1 << 16)])
            if self.is_whole:
                task.connection.shutdown(socket.SHUT_WR)
                task.over = True
        except BlockingIOError:
            return
        except OSError:
            task.over = True

    def _read_command(self, task: Task, events: int) -> None:
        data = os.read(task.output.fileno(), 1 << 16)
        task.write(data)
        if not data:
            self._close(task.output)

    def _has_ended(self, task: Task) -> bool:
        """Whether command and connection have ended: output can arrive after the end of the command."""
        code = task.process.poll()
        if (
            code is None
            or not task.output.closed
            or (task.connection is not None and task.connection.fileno() >= 0)
        ):
            return False
        if task.connection is None and code in _MESSAGES:
            task.write(f"joblens: {_MESSAGES[code]}\n".encode())
        if code:
            task.write(f"Exit {code}\n".encode())
        return True


def _pause() -> None:
    """Wait if a connection cannot be accepted because no descriptor is left."""
    time.sleep(0.05)


def _log(message: str) -> None:
    os.write(1, f"joblens: {message}\n".encode())


def main() -> int:
    file, address, program, hub, *hosts = sys.argv[1:]
    Tasks(program, file, address, hub, hosts).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
