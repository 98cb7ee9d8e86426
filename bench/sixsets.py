"""The six sets in a tight loop, in comparison with reading the same files and with psutil.

`python -m bench.sixsets` is the loop itself, run once by each interpreter; it prints its figures as JSON.
"""

from __future__ import annotations

import json
import os
import time
from typing import Dict, List

from bench import with_psutil
from bench.timing import Work, interleave
from joblens.collectors.table import COLLECTORS, Read
from joblens.core.host import Host, read_all
from joblens.core.model import Sample
from joblens.wire.batch import Batch

SIX = ("cpu", "memory", "vmstat", "interrupts", "load", "disk")
FILES = ("stat", "meminfo", "vmstat", "interrupts", "loadavg", "diskstats")
TICKS_PER_BATCH = 10
_PREAD = 1 << 16
_GROWTH = 64  # bytes that a text can be longer a moment later
_ROUNDS, _TURNS = 60, 50  # turns: a multiple of the ticks per batch


def open_sets(host: Host, *without: str) -> List[Read]:
    return [c.open(host) for c in COLLECTORS if c.name in SIX and c.name not in without]


def round_encoded(reads: List[Read]) -> Work:
    """Run one tick of an agent that pushes: collect, add to the batch, encode it at times."""
    batch = Batch()
    tick = 0

    def turn() -> int:
        nonlocal tick
        now = time.time_ns()
        batch.add([Sample(now, rows) for read in reads for rows in read()])
        tick += 1
        if tick % TICKS_PER_BATCH == 0:
            batch.encode({"node": "bench", "boot": "0", "sequence": tick})
        return 1

    return turn


def round_values(reads: List[Read]) -> Work:
    def turn() -> int:
        for read in reads:
            read()
        return 1

    return turn


def floor_to_end() -> Work:
    files = open_files()

    def turn() -> int:
        for file in files:
            read_all(file)
        return 1

    return turn


def floor_one_read() -> Work:
    """Read each file once, or to its end if one read does not return it all."""
    files = open_files()
    if any(len(os.pread(file, _PREAD, 0)) < len(read_all(file)) - _GROWTH for file in files):
        return floor_to_end()

    def turn() -> int:
        for file in files:
            os.pread(file, _PREAD, 0)
        return 1

    return turn


def open_files() -> List[int]:
    return [os.open("/proc/" + name, os.O_RDONLY | os.O_CLOEXEC) for name in FILES]


def main() -> None:
    host = Host("/")
    contenders: Dict[str, Work] = {
        "encoded": round_encoded(open_sets(host)),
        "values": round_values(open_sets(host)),
        "five": round_values(open_sets(host, "interrupts")),
        "four": round_values(open_sets(host, "interrupts", "vmstat")),
        "to_end": floor_to_end(),
        "one_read": floor_one_read(),
    }
    if with_psutil.AVAILABLE:
        contenders["psutil"] = with_psutil.read_sets
        contenders["psutil_four"] = with_psutil.read_sets_without_vmstat
    print(json.dumps(interleave(contenders, _ROUNDS, _TURNS)))


if __name__ == "__main__":
    main()
