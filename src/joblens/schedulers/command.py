"""Running a scheduler's command: without a shell, with a timeout and bounded output."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from joblens.core.errors import OutsideError

if TYPE_CHECKING:  # they need msgspec, which nodes may lack
    from joblens.schedulers.facts import BatchJob
    from joblens.schedulers.parse_result import ParseResult

TIMEOUT_SECONDS = 60.0
MOST_BYTES = 256 << 20
_MOST_ERRORS = 4096  # bytes of stderr that are kept
_PASSED_ON = ("PATH", "SLURM_CONF", "TZ", "FLUX_URI", "PBS_CONF_FILE")


class CommandScheduler:
    """A scheduler that is queried through its commands."""

    accounting_apart = False
    by_samples = False

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self.timeout = timeout
        self.skipped = 0  # rows so far that are not jobs

    def counted(self, result: ParseResult) -> list[BatchJob]:
        self.skipped += result.skipped
        return result.jobs


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Pass on few variables: a user's `SQUEUE_FORMAT` would change the output."""
    found = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"PATH": os.defpath, **found, "LC_ALL": "C.UTF-8", **more}


def run_command(
    command: Sequence[str],
    more: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT_SECONDS,
    most: int = MOST_BYTES,
) -> str:
    """Return its output. Raises OutsideError if it is missing, fails, times out or prints too much."""
    env = environment(more or {})
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        raise OutsideError(f"{command[0]} cannot be run: {error.strerror}") from None
    with process:
        try:
            output, errors = _collect_output(process, command[0], timeout, most)
        finally:
            if process.returncode is None:
                _kill(process)
    if process.returncode:
        raise OutsideError(f"{command[0]} failed ({process.returncode}): {_first_line(errors)}")
    return output.decode("utf-8", "replace")


def _collect_output(
    process: subprocess.Popen[bytes], name: str, timeout: float, most: int
) -> tuple[bytes, bytes]:
    """Read stdout and stderr until both are closed and the command has ended."""
    if not process.stdout or not process.stderr:  # they are pipes
        raise OutsideError(f"{name} has no output")
    until = time.monotonic() + timeout
    output, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(process.stderr, selectors.EVENT_READ, errors)
        while selector.get_map():
            ready = selector.select(max(until - time.monotonic(), 0.0))
            if not ready:
                raise OutsideError(f"{name} timed out after {timeout:g} s")
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.data is output or len(errors) < _MOST_ERRORS:
                    key.data.extend(data)
            if len(output) > most:
                raise OutsideError(f"{name} printed more than {most >> 20} MiB")
    try:
        process.wait(max(until - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        raise OutsideError(f"{name} timed out after {timeout:g} s") from None
    return bytes(output), bytes(errors)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill it and its children: it has its own session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _first_line(errors: bytes) -> str:
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines()]
    return next((line[:200] for line in lines if line), "no error message")
