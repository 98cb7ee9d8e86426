"""The process scan and psutil, on processes created for it.

`python -m bench.scan [FILES [SLEEPERS [WAKERS]]]` is the loop itself, as in sixsets.py; at most FILES are
open. WAKERS have run between two scans; then the other contender reads three of their files without parsing.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import Dict, Iterator, List, Set

from bench import with_psutil
from bench.timing import Work, interleave
from joblens.collectors.process.collector import PROCESS, processes
from joblens.core.host import Host
from joblens.core.model import Rows

_SLEEPERS = 300
_ROUNDS, _TURNS = 30, 2
_STATE = PROCESS.position("state")
_TIMEOUT = 30.0
_ASLEEP, _PAUSE = 0.05, 0.06
_OF_A_WAKER = ("schedstat", "stat", "io")  # what a scan reads at least of a process that has run


@contextmanager
def sleepers(count: int) -> Iterator[None]:
    """Start sleepers that also exit by themselves if the bench is killed."""
    children: List[subprocess.Popen[bytes]] = []
    try:
        while len(children) < count:
            children.append(subprocess.Popen(["sleep", "120"]))
        yield
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


@contextmanager
def wakers(count: int) -> Iterator[None]:
    """Fork processes that wake up twenty times a second until this one ends."""
    parent, pids = os.getpid(), list[int]()
    try:
        while len(pids) < count:
            pid = os.fork()
            if pid == 0:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                while os.getppid() == parent:
                    time.sleep(_ASLEEP)
                os._exit(0)
            pids.append(pid)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def after_a_pause(work: Work) -> Work:
    def turn() -> int:
        time.sleep(_PAUSE)
        return work()

    return turn


def floor(pids: Set[int]) -> Work:
    files: List[int] = []
    for path in [f"/proc/{pid}/{name}" for pid in pids for name in _OF_A_WAKER]:
        with suppress(OSError):
            files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def turn() -> int:
        for file in files:
            with suppress(OSError):
                os.pread(file, 8192, 0)
        return len(files) // len(_OF_A_WAKER)

    return turn


def scan(host: Host) -> Work:
    """Return a scan that counts the processes it has seen: others start and end meanwhile."""
    read = processes(host)
    return lambda: len(read()[0].keys)


def _zombies(rows: Rows) -> int:
    return rows.values[_STATE :: len(PROCESS.columns)].count(ord("Z"))


def read_pids(host: Host) -> Set[int]:
    """Return the pids when few of them are zombies, which are cheap to read."""
    read = processes(host)
    deadline = time.monotonic() + _TIMEOUT
    (rows, *_) = read()
    while _zombies(rows) > len(rows.keys) // 20:
        if time.monotonic() > deadline:
            sys.exit(f"{_zombies(rows)} of {len(rows.keys)} processes are zombies: not a fair tree to scan")
        time.sleep(1)
        (rows, *_) = read()
    return {int(key[0]) for key in rows.keys}


def main() -> None:
    if len(sys.argv) > 1:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), hard))
    count = int(sys.argv[2]) if len(sys.argv) > 2 else _SLEEPERS
    awake = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the sleepers are ended
    host = Host("/")
    with sleepers(count), wakers(awake):
        wanted = read_pids(host)
        contenders: Dict[str, Work] = {"scan": scan(host)}
        if awake:
            contenders["floor"] = floor(wanted)
            contenders = {name: after_a_pause(work) for name, work in contenders.items()}
        elif with_psutil.AVAILABLE:
            contenders["psutil"] = with_psutil.scan(wanted)
        seconds = interleave(contenders, _ROUNDS, _TURNS)
    print(json.dumps({"count": len(wanted), **seconds}))


if __name__ == "__main__":
    main()
