"""Asking a scheduler's command: no shell, an end to all waiting, and only so much of an answer."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from joblens.core.errors import OutsideError

TIMEOUT_SECONDS = 60.0
MOST_BYTES = 256 << 20
_MOST_COMPLAINT = 4096
_PASSED_ON = ("PATH", "SLURM_CONF", "TZ", "FLUX_URI", "PBS_CONF_FILE")


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Little of ours: a user's `SQUEUE_FORMAT` would change what is answered."""
    found = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"PATH": os.defpath, **found, "LC_ALL": "C.UTF-8", **more}


def run_command(
    command: Sequence[str],
    more: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT_SECONDS,
    most: int = MOST_BYTES,
) -> str:
    """What it writes. Raises OutsideError if it is not there, fails, takes too long or says too much."""
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
            said, complaint = _both(process, command[0], time.monotonic() + timeout, most)
        finally:
            if process.returncode is None:
                _kill(process)
    if process.returncode:
        raise OutsideError(f"{command[0]} failed ({process.returncode}): {_first_line(complaint)}")
    return said.decode("utf-8", "replace")


def _both(process: subprocess.Popen[bytes], name: str, until: float, most: int) -> tuple[bytes, bytes]:
    """Output and complaints, until both have ended and the command too."""
    if not process.stdout or not process.stderr:  # they are pipes
        raise OutsideError(f"{name} has no output")
    said, complaint = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, said)
        selector.register(process.stderr, selectors.EVENT_READ, complaint)
        while selector.get_map():
            ready = selector.select(max(until - time.monotonic(), 0.0))
            if not ready:
                raise OutsideError(f"{name} does not answer")
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                elif key.data is said or len(complaint) < _MOST_COMPLAINT:
                    key.data.extend(data)
            if len(said) > most:
                raise OutsideError(f"{name} answers with more than {most >> 20} MiB")
    try:
        process.wait(max(until - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        raise OutsideError(f"{name} does not end") from None
    return bytes(said), bytes(complaint)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """It and what it started: it has a session of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _first_line(complaint: bytes) -> str:
    lines = [line.strip() for line in complaint.decode("utf-8", "replace").splitlines()]
    return next((line[:200] for line in lines if line), "it does not say why")
