"""A load to sample: `python -m bench.load FOLDER SECONDS` builds the project there repeatedly.

Meanwhile eight processes compute and write, as ranks of a long job do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from bench.project import clean_project, make_project

_WORKERS = 8
_WORKER = """
import os, sys, time
end, kept = time.time() + float(sys.argv[1]), []
with open(f"data{os.getpid()}", "wb") as file:
    while time.time() < end:
        kept.append(b"x" * 100_000)
        file.write(os.urandom(100_000))
        if len(kept) > 100:
            kept.clear()
            file.seek(0)
        sum(range(200_000))
        time.sleep(0.1)
"""


def main(folder: str, seconds: float) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what it has started is ended
    command = make_project(Path(folder), files=40)[:-1]  # one file after the other
    end = time.time() + seconds
    with ExitStack() as stack:
        for _ in range(_WORKERS):
            _start(stack, [sys.executable, "-c", _WORKER, str(seconds)], folder)
        while time.time() < end:
            clean_project(Path(folder))
            with ExitStack() as once:
                _start(once, command, folder).wait()


def _start(stack: ExitStack, command: list[str], folder: str) -> subprocess.Popen[bytes]:
    """Stop it with the stack; make stops its own children on SIGTERM."""
    child = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    stack.callback(child.wait)
    stack.callback(child.terminate)
    return child


if __name__ == "__main__":
    os.nice(5)
    main(sys.argv[1], float(sys.argv[2]))
