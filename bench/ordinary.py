"""A hub, its lake sink and compaction under the agents of a cluster, all with default settings."""

from __future__ import annotations

import math
import os
import re
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from bench.children import BenchError, environment, memory
from bench.fleet import Fleet
from bench.hub_process import cpu_by_process, running_hub, wait_until_stored
from bench.messages import AgentMessages
from joblens.hub.compaction import ENOUGH_FILES, ENOUGH_GROUPS

_SEGMENT_SECONDS = 30.0
_CYCLE = 20  # segments: a cycle of compaction comes after ten minutes at the earliest
_SETTLE = 5.0  # seconds that the sinks have to start
_FIRST = 5.0  # seconds of batches for the first segment, which is never stored together with others
_NAME = re.compile(r"(hub~[0-9a-f]+(?:~[0-9]+-[0-9]+)?)\.([0-9]+)-([0-9]+)\.parquet")


class Ordinary(NamedTuple):
    """Shares of a core in per cent."""

    hub: float
    sink: float
    compaction: float
    peak: int  # of the largest process, in bytes

    @property
    def percent(self) -> float:
        return self.hub + self.sink + self.compaction


def ordinary_load(python: str, nodes: int, seconds: float, cycles: int) -> Ordinary:
    """Measure that many cycles of compaction of ten minutes each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_hub(python, folder) as (pid, port):
            time.sleep(_SETTLE)
            messages = AgentMessages()
            sequences = _send(Fleet(messages, nodes, port, 0.1), _FIRST)
            wait_until_stored(folder)
            before = cpu_by_process(pid)
            _send(Fleet(messages, nodes, port, 0.1, sequences), seconds)
            wait_until_stored(folder)
            after = cpu_by_process(pid)
            peak = max(memory(child).peak for child in after)
        # By the time in which batches came, and not also that until they were stored.
        used = {child: 100 * (after[child] - before.get(child, 0.0)) / seconds for child in after}
        hub = used.pop(pid)
        compaction, largest = _compact(python, folder / "store", cycles)
        return Ordinary(hub, sum(used.values()), compaction, max(peak, largest))


def _send(fleet: Fleet, seconds: float) -> list[int]:
    """Return the sequence numbers of the next batches."""
    _, refused = fleet.send(seconds)
    if refused:
        raise BenchError(f"{refused} batches were refused")
    return fleet.sequences


def _compact(python: str, store: Path, cycles: int) -> tuple[float, int]:
    """Return per cent of a core and peak memory, for segments like those that were stored."""
    made = [(path, match) for path in (store / "lake").rglob("hub~*.parquet") if (match := _match(path))]
    extents = sorted({(int(match[2]), int(match[3])) for _, match in made})
    first, last = extents[len(extents) // 2]  # the first and the last may have less in them
    # Groups that come in the time of a cycle: it is started when there are enough of them, or of files.
    most = max(
        Counter(path.parent for path, it in made if (int(it[2]), int(it[3])) == (first, last)).values()
    )
    span = last - first + 1
    files = max(min(ENOUGH_GROUPS, math.ceil(ENOUGH_FILES / most)), math.ceil(_CYCLE / span))
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
            segment = 1000 + cycle * files + number
            for path, folder, hub in whole:
                os.link(path, folder / f"{hub}.{segment}-{segment}.parquet")
        used, largest = _one_cycle(python, store)
        cpu, peak = cpu + used, max(peak, largest)
    left = len([*(store / "lake").rglob("hub~*.parquet")])
    if left > cycles * files * len(whole) // 2:
        raise BenchError(f"{left} of {cycles * files * len(whole)} files were not compacted")
    return 100 * cpu / (cycles * files * span * _SEGMENT_SECONDS), peak


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
