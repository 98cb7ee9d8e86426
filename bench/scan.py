"""The process scan and psutil, on sleeping processes created for it.

`python -m bench.scan [FILES [SLEEPERS]]` is the loop itself, as in sixsets.py; at most FILES are open.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the sleepers are ended
    host = Host("/")
    with sleepers(count):
        wanted = read_pids(host)
        contenders: Dict[str, Work] = {"scan": scan(host)}
        if with_psutil.AVAILABLE:
            contenders["psutil"] = with_psutil.scan(wanted)
        seconds = interleave(contenders, _ROUNDS, _TURNS)
    print(json.dumps({"count": len(wanted), **seconds}))


if __name__ == "__main__":
    main()
