"""The six sets in a tight loop: against reading the same files, and against psutil.

`python -m bench.sixsets` is the loop itself, run once by each interpreter; it prints its figures as JSON.
"""

from __future__ import annotations

import json
import os
import time
from typing import Callable, Dict, List

from bench import with_psutil
from bench.timing import interleave
from joblens.agent.batch import Batch
from joblens.collectors import COLLECTORS, Read
from joblens.host import Host, read_all
from joblens.model import Sample

SIX = ("cpu", "memory", "vmstat", "interrupts", "load", "disk")
FILES = ("stat", "meminfo", "vmstat", "interrupts", "loadavg", "diskstats")
TICKS_PER_BATCH = 10
_PREAD = 1 << 16
_ROUNDS, _TURNS = 60, 50  # turns: a multiple of the ticks per batch


def open_sets(host: Host, without: str = "") -> List[Read]:
    return [c.open(host) for c in COLLECTORS if c.name in SIX and c.name != without]


def round_encoded(reads: List[Read]) -> Callable[[], None]:
    """One tick of an agent that ships: collect, add to the batch, now and then encode it."""
    batch = Batch()
    tick = 0

    def turn() -> None:
        nonlocal tick
        now = time.time_ns()
        batch.add([Sample(now, rows) for read in reads for rows in read()])
        tick += 1
        if tick % TICKS_PER_BATCH == 0:
            batch.encode({"node": "bench", "boot": "0", "sequence": tick})

    return turn


def round_values(reads: List[Read]) -> Callable[[], None]:
    def turn() -> None:
        for read in reads:
            read()

    return turn


def floor_to_end() -> Callable[[], object]:
    files = open_files()
    return lambda: [read_all(file) for file in files]


def floor_one_read() -> Callable[[], object]:
    files = open_files()
    return lambda: [os.pread(file, _PREAD, 0) for file in files]


def open_files() -> List[int]:
    return [os.open("/proc/" + name, os.O_RDONLY | os.O_CLOEXEC) for name in FILES]


def main() -> None:
    host = Host("/")
    contenders: Dict[str, Callable[[], object]] = {
        "encoded": round_encoded(open_sets(host)),
        "values": round_values(open_sets(host)),
        "five": round_values(open_sets(host, without="interrupts")),
        "to_end": floor_to_end(),
        "one_read": floor_one_read(),
    }
    if with_psutil.AVAILABLE:
        contenders["psutil"] = with_psutil.read_sets
    print(json.dumps(interleave(contenders, _ROUNDS, _TURNS)))


if __name__ == "__main__":
    main()
