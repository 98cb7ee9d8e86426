"""Writing to the lake: `python -m bench.saving FOLDER` with the batches of a recording there.

Prints JSON: CPU time per value for a job that is saved at once, and per row for files of so many rows, with
their bytes per row.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import Any, Callable, Iterator

from bench.recording import JOB, NODE, load
from bench.timing import Work, interleave
from joblens.core.model import ABSENT, Sample
from joblens.store.lake.lake import Lake

_FLUSHES = (10, 100, 1000, 10_000)
_FLUSHED_SET = "process"  # most rows of a job are of this one
_ROUNDS = 5
_NUMBERS = count(1)  # of lakes and jobs, for each is made only once


def values_in(samples: list[Sample]) -> int:
    """Count the values that are known."""
    return sum(len(sample.rows.values) - sample.rows.values.count(ABSENT) for sample in samples)


def rows_in(samples: list[Sample]) -> int:
    return sum(len(sample.rows.keys) for sample in samples)


def save_at_once(top: Path, batches: Callable[[], dict[int, list[Sample]]], values: int) -> Work:
    def turn() -> int:
        path = top / f"lake{next(_NUMBERS)}"
        Lake(path).save(JOB, NODE, batches())
        shutil.rmtree(path)
        return values

    return turn


def flush(lake: Lake, samples: list[Sample]) -> Work:
    rows = rows_in(samples)

    def turn() -> int:
        lake.save(f"job{next(_NUMBERS)}", NODE, {1: samples})
        return rows

    return turn


def some_rows(samples: list[Sample], wanted: int) -> list[Sample]:
    """Return the first samples that have at least so many rows."""
    chosen: list[Sample] = []
    for sample in samples:
        if rows_in(chosen) >= wanted:
            break
        chosen.append(sample)
    return chosen


def _of_flush_sizes(top: Path, samples: list[Sample]) -> Iterator[dict[str, Any]]:
    contenders: dict[str, Work] = {}
    lakes: dict[str, tuple[int, Lake]] = {}
    for wanted in _FLUSHES:
        chosen = some_rows(samples, wanted)
        lakes[str(wanted)] = rows_in(chosen), Lake(top / f"flush{wanted}")
        contenders[str(wanted)] = flush(lakes[str(wanted)][1], chosen)
    seconds = interleave(contenders, _ROUNDS, 2)
    for name, (rows, lake) in lakes.items():
        sizes = [path.stat().st_size for path in lake.path.glob("*/*/*.parquet")]
        yield {"rows": rows, "seconds": seconds[name], "bytes": sum(sizes) / len(sizes) / rows}


def main(folder: str) -> None:
    batches = load(Path(folder))
    samples = [sample for number in sorted(batches) for sample in batches[number]]
    values = values_in(samples)
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as name:
        top = Path(name)
        contenders = {
            "samples": save_at_once(top, lambda: batches, values),
            "batches": save_at_once(top, lambda: load(Path(folder)), values),
        }
        found: dict[str, Any] = {"values": values, "rows": rows_in(samples)}
        found["per_value"] = interleave(contenders, _ROUNDS, 1)
        process = [sample for sample in samples if sample.rows.schema.set == _FLUSHED_SET]
        found["flushes"] = list(_of_flush_sizes(top, process))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
