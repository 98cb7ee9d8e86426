"""A hub, its lake sink and compaction under the agents of a cluster, all with default settings."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.children import BenchError, environment, memory
from bench.fleet import Fleet
from bench.hub_process import cpu_by_process, running_hub, wait_until_stored
from bench.messages import AgentMessages

_CYCLE = 20  # segments: a cycle of compaction comes every ten minutes
_SEGMENT_SECONDS = 30.0
_SETTLE = 5.0  # seconds that the sinks have to start
_NAME = re.compile(r"(hub~[0-9a-f]+)\.([0-9]+)-([0-9]+)\.parquet")


class Ordinary(NamedTuple):
    """Parts of a core, in per cent."""

    hub: float
    sink: float
    compaction: float
    peak: int  # of the largest process, in bytes

    @property
    def percent(self) -> float:
        return self.hub + self.sink + self.compaction


def ordinary_load(python: str, nodes: int, seconds: float, cycles: int) -> Ordinary:
    """`cycles` of compaction, each of ten minutes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_hub(python, folder) as (pid, port):
            time.sleep(_SETTLE)
            before = cpu_by_process(pid)
            begin = time.monotonic()
            _, refused = Fleet(AgentMessages(), nodes, port, 0.1).send(seconds)
            if refused:
                raise BenchError(f"{refused} batches were refused")
            wait_until_stored(folder)
            passed = time.monotonic() - begin
            after = cpu_by_process(pid)
            peak = max(memory(child).peak for child in after)
        used = {child: 100 * (after[child] - before.get(child, 0.0)) / passed for child in after}
        hub = used.pop(pid)
        cpu, largest = _compact(python, folder / "store", cycles)
        return Ordinary(
            hub, sum(used.values()), 100 * cpu / (cycles * _CYCLE * _SEGMENT_SECONDS), max(peak, largest)
        )


def _compact(python: str, store: Path, cycles: int) -> tuple[float, int]:
    """CPU and highest memory, of segments that are like those that were stored."""
    made = [(path, match) for path in (store / "lake").rglob("hub~*.parquet") if (match := _match(path))]
    extents = sorted({(int(match[2]), int(match[3])) for _, match in made})
    first, last = extents[len(extents) // 2]  # the first and the last may have less in them
    files = _CYCLE // (last - first + 1)  # that come in the time of a cycle, of each set
    kept = store.with_name("kept")
    kept.mkdir()
    whole = []
    for number, (path, match) in enumerate(made):
        path.rename(kept / str(number))
        if (int(match[2]), int(match[3])) == (first, last):
            whole.append((kept / str(number), path.parent, match[1]))
    cpu, peak = 0.0, 0
    for cycle in range(cycles):
        for number in range(files):
            segment = 1000 + cycle * _CYCLE + number
            for path, folder, hub in whole:
                os.link(path, folder / f"{hub}.{segment}-{segment}.parquet")
        used, largest = _one_cycle(python, store)
        cpu, peak = cpu + used, max(peak, largest)
    left = len([*(store / "lake").rglob("hub~*.parquet")])
    if left > cycles * files * len(whole) // 2:
        raise BenchError(f"{left} of {cycles * files * len(whole)} files were not compacted")
    return cpu, peak


def _match(path: Path) -> re.Match[str] | None:
    return _NAME.fullmatch(path.name)


def _one_cycle(python: str, store: Path) -> tuple[float, int]:
    command = [python, "-m", "joblens.hub.compaction", str(store)]
    child = subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if child.stdin is not None:
            child.stdin.close()
    if child.returncode:
        raise BenchError(f"compaction ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
