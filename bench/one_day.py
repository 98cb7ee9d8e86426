"""Compaction over a simulated day: `python -m bench.one_day day` or `… memory NODES`. Prints JSON.

A day has 144 cycles of 10 segments each, of one set with 60 counters per node, most of which do not change.
For `day` nodes and merge sizes are divided by the same number: there are as many merges, and each is smaller.
For `memory` segments and merges have full size, and `joblens db compact` follows.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy

from joblens.store.lake import compact as compaction
from joblens.store.lake.columns import Table
from joblens.store.lake.compact import compact, compact_small
from joblens.store.lake.folder import HUB, JobFile
from joblens.store.lake.lake import Lake

NODES, SCALE, COUNTERS = 1000, 25, 60
CYCLES, SEGMENTS, SECONDS = 144, 10, 60  # a day; of a cycle; of a segment
_SPEEDS = (*[0] * 17, 1, 10, 1000)  # of counters; most of a node stand still, so the data compresses well
_MOST_VALUES = 3 << 20  # in one file: what the lake sink has in memory of a set
_SET = "bench"


class Fleet:
    """Counters of the nodes, and the segments that a hub makes of them."""

    def __init__(self, nodes: int) -> None:
        self.chance = numpy.random.default_rng(1)
        self.names = numpy.array(sorted(f"n{number}" for number in range(nodes)), dtype=object)
        self.values = self.chance.integers(0, 10**9, (nodes, COUNTERS))
        self.speeds = numpy.array(_SPEEDS)[self.chance.integers(0, len(_SPEEDS), (nodes, COUNTERS))]
        self.begin = int(time.time()) // 86_400 * 86_400
        self.segments = 0

    def store(self, lake: Lake) -> None:
        """Write the next segment."""
        times = (self.begin + self.segments * SECONDS + numpy.arange(SECONDS)) * 10**9
        self.segments += 1
        at_once = max(_MOST_VALUES // COUNTERS // SECONDS, 1)
        for part, first in enumerate(range(0, len(self.names), at_once)):
            chosen = slice(first, first + at_once)
            further = f"~{part}-0" if part else ""
            name = JobFile(f"{HUB}bench{further}", self.segments, self.segments).name
            date = time.strftime("%Y-%m-%d", time.gmtime(self.begin))
            lake.save_tables(_SET, date, name, [self._table(times, chosen)], ordered=True)

    def _table(self, times: Any, chosen: slice) -> Table:
        names, speeds = self.names[chosen], self.speeds[chosen]
        grown = (self.chance.random((len(names), SECONDS, COUNTERS)) * (speeds[:, None, :] + 1)).astype(int)
        values = self.values[chosen][:, None, :] + numpy.cumsum(grown, axis=1)
        self.values[chosen] = values[:, -1, :]
        columns: dict[str, Any] = {
            "time": numpy.tile(times, len(names)),
            "cluster": numpy.full(len(names) * SECONDS, "bench", dtype=object),
            "jobid": numpy.full(len(names) * SECONDS, "", dtype=object),
            "node": numpy.repeat(names, SECONDS),
        }
        by_row = values.reshape(-1, COUNTERS)
        counters = {f"c{number}": numpy.ascontiguousarray(by_row[:, number]) for number in range(COUNTERS)}
        selected = ["make_timestamp_ns(time) AS time", "cluster", "jobid", "node", *counters]
        return Table(", ".join(selected), columns | counters, ())


class Counting(Lake):
    """A lake that counts written bytes, and the peak of disk usage in relation to live data."""

    written = 0
    most = 0.0
    seconds = 0.0  # that counting has taken

    def copy(self, source: str, columns: Iterable[str], path: Path, *more: Any, **values: Any) -> None:
        super().copy(source, columns, path, *more, **values)
        begin = time.process_time()
        self.written += path.stat().st_size
        if columns:  # of a segment there are none to sort by
            self.most = max(self.most, size(path.parent.iterdir()) / size(self.files(_SET)))
        self.seconds += time.process_time() - begin


def size(paths: Iterable[Path]) -> int:
    found = 0
    for path in paths:
        if path.exists():
            found += path.stat().st_size
    return found


def simulate_day(folder: Path, cycles: int) -> dict[str, Any]:
    fleet, sink, lake = Fleet(NODES // SCALE), Counting(folder), Counting(folder)
    limit = "MERGE_VALUES" if hasattr(compaction, "MERGE_VALUES") else "_SMALL_BYTES"  # before tiers
    setattr(compaction, limit, getattr(compaction, limit) // SCALE)
    seconds, files, ratios = [], [], []
    for _ in range(cycles):
        for _ in range(SEGMENTS):
            fleet.store(sink)
        begin, counting = time.process_time(), lake.seconds
        compact_small(lake)
        seconds.append(time.process_time() - begin - lake.seconds + counting)
        live = lake.files(_SET)
        files.append(len(live))
        ratios.append(size(next(folder.glob("set=*/date=*")).iterdir()) / size(live))
    return {
        "seconds": seconds, "files": files, "ratios": ratios, "most": lake.most,
        "stored": sink.written, "rewritten": lake.written,
    }  # fmt: skip


def measure_memory(folder: Path, nodes: int) -> dict[str, float]:
    """Measure peak memory and CPU of one cycle and of `joblens db compact` in a process of its own."""
    fleet, lake = Fleet(nodes), Lake(folder)
    for _ in range(SEGMENTS):
        fleet.store(lake)
    command = [sys.executable, "-m", "bench.one_day", "cycle", str(folder)]
    child = os.posix_spawn(sys.executable, command, os.environ)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit("compaction has failed")
    return {"bytes": usage.ru_maxrss << 10, "seconds": usage.ru_utime + usage.ru_stime}


def run_cycle(folder: Path) -> None:
    lake = Lake(folder, compaction.MEMORY) if hasattr(compaction, "MEMORY") else Lake(folder)
    compact_small(lake)
    compact(lake, set)
    if lake.problems:
        raise SystemExit("\n".join(lake.problems))


def main(what: str, *rest: str) -> None:
    if what == "cycle":
        run_cycle(Path(rest[0]))
        return
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        if what == "day":
            print(json.dumps(simulate_day(Path(name), int(rest[0]) if rest else CYCLES)))
        else:
            print(json.dumps(measure_memory(Path(name), int(rest[0]))))


if __name__ == "__main__":
    main(*sys.argv[1:])
