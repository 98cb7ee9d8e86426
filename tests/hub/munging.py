"""A munged of a test's own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from programs import need
from waiting import wait_for


def write_secret(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    path.chmod(0o600)
    return path


class Munged:
    """A daemon with a key and a socket of its own."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "socket")
        write_secret(folder / "key", os.urandom(64))
        names = [f"--{name}-file={folder}/{name}" for name in ("key", "pid", "log", "seed")]
        command = ["munged", "--foreground", "--force", f"--socket={self.socket}", *names]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def encode(self, payload: bytes, *words: str) -> str:
        command = ["munge", f"--socket={self.socket}", *words]
        done = subprocess.run(command, input=payload, capture_output=True, check=True)
        return done.stdout.decode().strip()


@contextmanager
def running_munged(top: Path) -> Iterator[Munged]:
    need("munged")
    folder = top / "munge"
    folder.mkdir(0o755)
    munged = Munged(folder)
    try:
        wait_for("munged", lambda: os.path.exists(munged.socket))
        yield munged
    finally:
        munged.process.terminate()
        munged.process.wait()
