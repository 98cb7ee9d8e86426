"""Disk usage of the store: `python -m bench.sizes FOLDER` with the batches of a recording there.

Prints JSON, for all sets and for those of the node only: bytes before and after compaction, by set, and the
CPU time in seconds.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import joblens
from bench.peers import size_of
from bench.recording import JOB, NODE, load, without_processes
from joblens.core.model import Sample
from joblens.store.lake.lake import Lake


def fill(batches: dict[int, list[Sample]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        at_once, home = Path(name, "once"), Path(name, "home")
        Lake(at_once).save(JOB, NODE, batches)
        store = joblens.open(home)
        begin = time.process_time()
        lake = Lake(home / "lake")
        for number, samples in batches.items():
            lake.save(JOB, NODE, {number: samples})
        before = size_of(lake.path)
        store.compact()
        seconds = time.process_time() - begin
        names = {sample.rows.schema.set for samples in batches.values() for sample in samples}
        sets = {name: sum(path.stat().st_size for path in lake.files(name)) for name in sorted(names)}
        store.close()
        return {
            "at_once": size_of(at_once),
            "before": before,
            "compacted": sum(sets.values()),
            "sets": sets,
            "seconds": seconds,
        }


def main(folder: str) -> None:
    batches = load(Path(folder))
    print(json.dumps({"all": fill(batches), "node": fill(without_processes(batches))}))


if __name__ == "__main__":
    main(sys.argv[1])
