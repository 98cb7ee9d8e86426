"""`external_NAME`: output of a site's own script, as `name value` lines or as Prometheus text.

The only collector that runs commands, and only those in the settings. The agent never waits for one: a
script is started at one tick, and its output is taken at a later one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Optional, Tuple

from joblens.collectors.external.text import parse_output
from joblens.collectors.external.trust import Identity, check_command, find_identity
from joblens.core.config import ExternalSettings
from joblens.core.errors import OutsideError, PrivilegeError, sentence
from joblens.core.host import Host
from joblens.core.model import Rows

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/", "LC_ALL": "C"}
_NICE = 10
_LARGEST = 1 << 20  # bytes of output, and of the pipe, which unprivileged users may make as large
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ; Python has its name since 3.10


class Script:
    """One script, run repeatedly."""

    def __init__(self, host: Host, name: str, settings: ExternalSettings) -> None:
        self.host, self.settings = host, settings
        self.set = "external_" + name
        self._run: Optional[Run] = None
        self._due = time.monotonic()
        self._rows: Optional[Rows] = None
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # the kernel would discard exit statuses
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def read(self) -> Optional[Tuple[Rows, ...]]:
        """Return rows once per successful run, raise OutsideError once per failed one; else None."""
        if self._run is not None:
            return self._poll(self._run)
        now = time.monotonic()
        if now >= self._due:
            self._due = max(self._due + self.settings.interval, now)  # missed runs are skipped
            self._run = self._start()
        return None

    def _start(self) -> Run:
        command = self.settings.command
        try:
            check_command(self.host, command[0])
            return Run(command, find_identity(self.host, self.settings.user))
        except (OSError, PrivilegeError) as error:
            raise OutsideError(f"{command[0]} cannot be run: {sentence(error)}") from None

    def _poll(self, run: Run) -> Optional[Tuple[Rows, ...]]:
        run.take()
        ended = run.has_ended()
        if ended:
            run.take()  # the rest of its output
        reported = run.killed
        why = "" if reported else self._why_wrong(run, ended)
        if why or ended:
            run.kill()  # with all processes that it left behind
        if ended:
            run.close()
            self._run = None
        if why:
            raise OutsideError(f"{self.settings.command[0]} {why}")
        return (self._same(parse_output(self.set, bytes(run.output))),) if ended and not reported else None

    def _why_wrong(self, run: Run, ended: bool) -> str:
        if run.is_too_large():
            return f"printed more than {_LARGEST} bytes and was killed"
        if ended:
            return run.how_it_ended()
        late = run.seconds() >= self.settings.timeout
        return f"timed out after {self.settings.timeout:g} s and was killed" if late else ""

    def _same(self, rows: Rows) -> Rows:
        """Keep schema and keys as the same objects while they are equal."""
        before, self._rows = self._rows, rows
        if before is not None:
            schema = before.schema if before.schema == rows.schema else rows.schema
            keys = before.keys if before.keys == rows.keys else rows.keys
            self._rows = Rows(schema, keys, rows.values)
        return self._rows

    def close(self) -> None:
        if self._run is not None:
            self._run.kill()
            self._run.close()
            self._run = None


class Run:
    """A process in its own session, so that all that it starts can be killed with it."""

    def __init__(self, command: Tuple[str, ...], identity: Optional[Identity]) -> None:
        self.began = time.monotonic()
        self.output, self.complaint = bytearray(), bytearray()
        self.killed = False
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
            user=identity.uid if identity else None,
            group=identity.gid if identity else None,
            # One group, not none: Python 3.12.0 ignores an empty list (CVE-2023-6507).
            extra_groups=[identity.gid] if identity else None,
        )
        with suppress(OSError):
            os.setpriority(os.PRIO_PGRP, self.process.pid, _NICE)
        both = ((self.process.stdout, self.output), (self.process.stderr, self.complaint))
        self._streams = [(stream, kept) for stream, kept in both if stream]
        for stream, _ in self._streams:
            os.set_blocking(stream.fileno(), False)
            _enlarge(stream.fileno())

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def take(self) -> None:
        """Read what it has printed since the last call."""
        for stream, kept in self._streams:
            while len(kept) <= _LARGEST:
                try:
                    data = os.read(stream.fileno(), _LARGEST)
                except BlockingIOError:
                    break
                if not data:
                    break
                kept.extend(data)

    def is_too_large(self) -> bool:
        return max(len(self.output), len(self.complaint)) > _LARGEST

    def has_ended(self) -> bool:
        """It stays a zombie until `close`, so that its pid is not reused before its group is killed."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> None:
        """Kill its process group, including what it left behind."""
        self.killed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def how_it_ended(self) -> str:
        """Return "" if it succeeded."""
        found = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None or (found.si_code == os.CLD_EXITED and found.si_status == 0):
            return ""
        lines = bytes(self.complaint[:1000]).decode("utf-8", "replace").split("\n")
        message = next((": " + line.strip()[:200] for line in lines if line.strip()), "")
        if found.si_code == os.CLD_EXITED:
            return f"failed with exit code {found.si_status}{message}"
        return f"was killed by signal {found.si_status}{message}"

    def close(self) -> None:
        """Reap it after it was killed. One that hangs in the kernel is left behind."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1.0)
        for stream, _ in self._streams:
            stream.close()


def _enlarge(fd: int) -> None:
    """Enlarge the pipe, so that a script can print its whole output between two ticks."""
    import fcntl

    with suppress(OSError):
        fcntl.fcntl(fd, _SET_PIPE_SIZE, _LARGEST)
