"""The measured hub: its process, its settings, and its usage."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

from bench.children import BenchError, connect, cpu_seconds, free_port, started
from bench.messages import KEY

_DRAIN = 420.0  # seconds that the sinks may take for what is left, which waits for more at first
AS_FAST_AS_THEY_CAN = ("rate_bytes = 1000000000", "burst_bytes = 1000000000", "segment_seconds = 1.0")


@contextmanager
def running_hub(python: str, folder: Path, *settings: str) -> Iterator[tuple[int, int]]:
    """Yield pid and port when its sinks have started."""
    port = free_port()
    lines = [
        "[hub]",
        f'listen = "127.0.0.1:{port}"',
        f'home = "{folder / "hub"}"',
        f'key_file = "{folder / "key"}"',
        *settings,
    ]
    (folder / "key").touch(0o600)
    (folder / "key").write_bytes(KEY)
    (folder / "hub.toml").write_text("\n".join(lines) + "\n")
    os.environ["JOBLENS_HOME"] = str(folder / "store")
    with started([python, "-m", "joblens", "hub", "--config", str(folder / "hub.toml")]) as pid:
        connect(port).close()
        time.sleep(2.0)
        yield pid, port


def wait_until_stored(folder: Path, seconds: float = _DRAIN, most: int = 0) -> None:
    """Wait until the journal is empty except for that many segments."""
    deadline = time.monotonic() + seconds
    while len(list((folder / "hub" / "journal").iterdir())) > most:
        if time.monotonic() > deadline:
            raise BenchError("the sinks do not come to an end")
        time.sleep(0.1)


def cpu_by_process(pid: int) -> dict[int, float]:
    """Return the CPU time of the process and each descendant."""
    found = {pid: cpu_seconds(pid)}
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found.update(cpu_by_process(int(child)))
    return found
