"""Real samples for the store: this machine under load, sampled fast, with its time stretched to 1 Hz."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Sequence

from bench.children import BenchError, started
from bench.timing import NS
from joblens.collectors.process.collector import processes
from joblens.collectors.table import COLLECTORS, Read
from joblens.core.host import Host
from joblens.core.model import Sample
from joblens.wire.batch import Batch, decode

_SETS = "cpu memory vmstat interrupts load disk network pressure".split()
_TICKS, _INTERVAL = 900, 0.05
_TICKS_PER_BATCH = 60
JOB, NODE = "bench1", "node1"


def record(folder: Path) -> None:
    """Write batches as an agent would send them, with the processes of the load only."""
    host = Host("/")
    reads = [collector.open(host) for collector in COLLECTORS if collector.name in _SETS]
    with ExitStack() as stack:
        busy = stack.enter_context(tempfile.TemporaryDirectory(prefix="joblens-bench-"))
        command = [sys.executable, "-m", "bench.load", busy, str(3 * _TICKS * _INTERVAL)]
        pid = stack.enter_context(started(command))
        time.sleep(1)
        _record([*reads, processes(host, below=pid)], folder)


def _record(reads: Sequence[Read], folder: Path) -> None:
    batch = Batch()
    begin = time.time()
    for tick in range(_TICKS):
        time.sleep(max(begin + tick * _INTERVAL - time.time(), 0))
        now = _stretch(begin, tick)
        batch.add([Sample(now, rows) for read in reads for rows in read()])
        if (tick + 1) % _TICKS_PER_BATCH == 0:
            number = (tick + 1) // _TICKS_PER_BATCH
            message = batch.encode({"node": NODE, "sequence": number})
            (folder / f"{number:08d}.batch").write_bytes(message)


def _stretch(begin: float, tick: int) -> int:
    """Set one second per tick from midnight on, so that all lies within one of Prometheus' blocks.

    The jitter of each tick is kept, because timestamps are stored too.
    """
    late = min(max(time.time() - begin - tick * _INTERVAL, 0.0), _INTERVAL / 2)
    midnight = begin // 86_400 * 86_400
    return (int(midnight) + tick + 1) * NS + int(late * NS)


def load(folder: Path) -> dict[int, list[Sample]]:
    """Return the samples by batch number."""
    paths = sorted(folder.glob("*.batch"))
    if not paths:
        raise BenchError(f"no batches in {folder}")
    return {int(path.stem): decode(path.read_bytes())[1] for path in paths}


def without_processes(batches: dict[int, list[Sample]]) -> dict[int, list[Sample]]:
    """Keep only series that last for the whole time, unlike those of processes."""
    return {
        number: [sample for sample in samples if sample.rows.schema.set != "process"]
        for number, samples in batches.items()
    }
