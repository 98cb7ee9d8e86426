"""A sample job of 11 s: a serial phase, a parallel phase, memory allocation, and a file write."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10_000))


def fill_memory(mebibytes: int) -> list[bytearray]:
    kept = []
    for _ in range(mebibytes // 8):
        kept.append(bytearray(8 << 20))
        time.sleep(0.08)
    return kept


if __name__ == "__main__":
    compute(6)
    workers = [multiprocessing.Process(target=compute, args=(3,)) for _ in range(min(os.cpu_count() or 1, 4))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    data = fill_memory(160)
    with tempfile.TemporaryFile() as file:
        for block in data[:8]:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
