"""The process scan against psutil, on sleeping processes that are made for it.

`python -m bench.scan` is the loop itself, as in sixsets.py.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, List, Set

from bench import with_psutil
from bench.timing import interleave
from joblens.collectors.processes import processes
from joblens.host import Host

_SLEEPERS = 300
_ROUNDS, _TURNS = 30, 2


@contextmanager
def sleepers() -> Iterator[None]:
    """They end by themselves too, should the bench be killed in a way that leaves it no last word."""
    children: List[subprocess.Popen[bytes]] = []
    try:
        while len(children) < _SLEEPERS:
            children.append(subprocess.Popen(["sleep", "120"]))
        yield
    finally:
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def _pids(host: Host) -> Set[int]:
    (rows, *_) = processes(host)()
    return {int(key[0]) for key in rows.keys}


def main() -> None:
    host = Host("/")
    with sleepers():
        wanted = _pids(host)
        contenders: Dict[str, Callable[[], object]] = {"scan": processes(host)}
        if with_psutil.AVAILABLE:
            contenders["psutil"] = with_psutil.scan(wanted)
        seconds = interleave(contenders, _ROUNDS, _TURNS)
    count = len(wanted)
    print(json.dumps({"count": count, **{k: [s / count for s in v] for k, v in seconds.items()}}))


if __name__ == "__main__":
    main()
