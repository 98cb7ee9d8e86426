"""What `flux exec` is in Flux, for PBS: one command on several hosts of a job, with its input and its words.

`pbs_tmrsh` starts it there as a task of the job, without ssh. But a task's input is empty, and its output is
the job's own. So each calls us back, by an address and a secret in a file that only the job's user can read,
and that connection is its input and output from then on. Lines have `HOST: ` in front; `Exit CODE` is a last
one.

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
_LOOK_SECONDS = 1.0
_WORDS = {
    127: "there is no Python 3.9 or newer there",
    NO_FILE: "the session's folder is not seen there: put the store (--home) where it is, or set JOBLENS_SSH",
}
_SILENT = "exec </dev/null >/dev/null 2>&1\n"  # what it said would be in the output of the job
_CALL = f"""\
import os, socket, sys
try:
    with open(sys.argv[3]) as file:
        address, port, secret, answer = file.read().split()
    line = socket.create_connection((address, int(port)), 30)
    line.sendall((sys.argv[2] + " " + secret + "\\n").encode())
    heard = b""
    while len(heard) < len(answer):
        more = line.recv(len(answer) - len(heard))
        if not more:
            sys.exit({NO_FILE})
        heard += more
except OSError:
    sys.exit({NO_FILE})
if heard != answer.encode():
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
        self.line: socket.socket | None = None
        self.sent, self.over = 0, False  # of what is given, and that it knows of its end
        self.said = b""

    def is_behind(self, length: int) -> bool:
        return self.line is not None and not self.over and self.sent < length

    def say(self, data: bytes) -> None:
        *lines, self.said = (self.said + data).split(b"\n")
        if self.said and (not data or len(self.said) > _LONGEST_LINE):
            lines, self.said = [*lines, self.said], b""
        for line in lines:
            os.write(1, self.host.encode() + b": " + line + b"\n")


class Tasks:
    def __init__(self, program: str, file: str, address: str, hub: str, hosts: Sequence[str]) -> None:
        self.events = Events(_log)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.door = socket.create_server((address.strip("[]"), 0), family=family, backlog=128)
        self.secret, self.answer = secrets.token_hex(32), secrets.token_hex(32)
        self.given, self.is_whole = bytearray(), False
        place = self.door.getsockname()
        write_quickly(file, f"{place[0]} {place[1]} {self.secret} {self.answer}\n".encode())
        self.strangers: list[socket.socket] = []
        self.tasks = {host: Task(host, self._start(program, file, hub, host)) for host in hosts}
        for task in self.tasks.values():
            close = partial(self._close, task.output)
            self.events.add(task.output, READ, partial(self._hear_command, task), close)
        self.events.add(self.door, READ, self._call, _pause)
        self.events.add(0, READ, self._give, partial(self.events.remove, 0))

    @staticmethod
    def _start(program: str, file: str, hub: str, host: str) -> subprocess.Popen[bytes]:
        words = ("/bin/sh", "-c", _SILENT + PYTHON_FINDER, "sh", sys.executable, _CALL + BOOTSTRAP)
        # What pbs_tmrsh itself has to say is about this host.
        return subprocess.Popen(
            [program, host, *words, hub, host, file],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self) -> None:
        """Until the last has ended."""
        while self.tasks:
            waits = any(task.is_behind(len(self.given)) for task in self.tasks.values())
            self.events.wait(0.05 if waits else _LOOK_SECONDS)
            for task in self.tasks.values():
                self._send(task)
            self.tasks = {host: task for host, task in self.tasks.items() if not self._has_ended(task)}

    def _give(self, events: int) -> None:
        data = os.read(0, 1 << 16)
        self.given += data
        if not data:
            self.is_whole = True
            self.events.remove(0)

    def _call(self, events: int) -> None:
        line, _ = self.door.accept()
        line.setblocking(False)
        self.strangers.append(line)
        self.events.add(line, READ, partial(self._greet, line), partial(self._dismiss, line))
        for old in self.strangers[: -len(self.tasks) - 64]:
            self._dismiss(old)

    def _greet(self, line: socket.socket, events: int) -> None:
        """Who knows the secret is the task of a host, and is told that we know ours."""
        try:
            host, _, secret = line.recv(1024).decode("utf-8", "replace").rstrip("\n").partition(" ")
        except OSError:
            host = secret = ""
        task = self.tasks.get(host)
        if task is None or task.line or not secrets.compare_digest(secret.encode(), self.secret.encode()):
            self._dismiss(line)
            return
        line.send(self.answer.encode())
        self.strangers.remove(line)
        task.line = line
        self.events.remove(line)
        self.events.add(line, READ, partial(self._hear, task, line), partial(self._close, line))

    def _dismiss(self, line: socket.socket) -> None:
        with suppress(ValueError):
            self.strangers.remove(line)
        self._close(line)

    def _close(self, file: socket.socket | IO[bytes]) -> None:
        self.events.remove(file)
        file.close()

    def _hear(self, task: Task, line: socket.socket, events: int) -> None:
        try:
            data = line.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:  # it was killed
            data = b""
        task.say(data)
        if not data:
            self._close(line)

    def _send(self, task: Task) -> None:
        """As much as it takes now; then, if there is no more to come, that this was all."""
        if task.line is None or task.line.fileno() < 0 or task.over:
            return
        try:
            while task.sent < len(self.given):
                task.sent += task.line.send(memoryview(self.given)[task.sent : task.sent + (1 << 16)])
            if self.is_whole:
                task.line.shutdown(socket.SHUT_WR)
                task.over = True
        except BlockingIOError:
            return
        except OSError:
            task.over = True

    def _hear_command(self, task: Task, events: int) -> None:
        data = os.read(task.output.fileno(), 1 << 16)
        task.say(data)
        if not data:
            self._close(task.output)

    def _has_ended(self, task: Task) -> bool:
        """With all of its words: the last may come after the end of the command."""
        code = task.process.poll()
        if code is None or not task.output.closed or (task.line is not None and task.line.fileno() >= 0):
            return False
        if task.line is None and code in _WORDS:
            task.say(f"joblens: {_WORDS[code]}\n".encode())
        if code:
            task.say(f"Exit {code}\n".encode())
        return True


def _pause() -> None:
    """Where a connection cannot be accepted, as no descriptor is left: not to try it without end."""
    time.sleep(0.05)


def _log(message: str) -> None:
    os.write(1, f"joblens: {message}\n".encode())


def main() -> int:
    file, address, program, hub, *hosts = sys.argv[1:]
    Tasks(program, file, address, hub, hosts).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
