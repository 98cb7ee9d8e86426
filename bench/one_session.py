"""A job script with user mode, as one process.

`python -m bench.one_session HOME PROCESSES THREADS COMPUTING OPTION…`. It prints a line of JSON when the job
runs and another when user mode has stopped; in between it waits for a line of input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

_JOBLENS = [sys.executable, "-m", "joblens", "usermode"]
_PACE = 0.005


class FirstBatch(threading.Thread):
    """The time at which the first batch was in the hub's journal, which is synced within 10 ms."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.home, self.time = home, 0.0
        self.start()

    def run(self) -> None:
        while not self.time:
            time.sleep(_PACE)
            if any(path.stat().st_size for path in self.home.glob("usermode/*/hub/journal/*")):
                self.time = time.time()


def _work(threads: int, computes: bool) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for _ in range(threads - 1):
        threading.Thread(target=_wait, daemon=True).start()
    while computes:
        sum(range(100_000))
    _wait()


def _wait() -> None:
    while True:
        time.sleep(0.5)


def start_job(processes: int, threads: int, computing: int = 1) -> list[int]:
    """Start processes: that many compute, the others mostly wait."""
    found = []
    for number in range(processes):
        pid = os.fork()
        if not pid:
            _work(threads, computes=number < computing)
        found.append(pid)
    return found


def _run(*words: str) -> str:
    """Return its standard output; forward its standard error."""
    return subprocess.run([*_JOBLENS, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def main(home: str, processes: int, threads: int, computing: int, *options: str) -> None:
    first = FirstBatch(Path(home))
    pids: list[int] = []
    begin = time.time()
    _run("start", "--interval", "1", "--home", home, *options)
    up = time.time()
    try:
        first.join(30.0)
        pids += start_job(processes, threads, computing)
        _tell({"begin": begin, "up": up, "stored": first.time})
        sys.stdin.readline()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
        begin = time.time()
        report = _run("stop", "--home", home)
        _tell({"begin": begin, "end": time.time(), "report": report})


def _tell(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:])
