"""The lake: bytes per value next to Prometheus and VictoriaMetrics, values per second, and file sizes."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Callable

from bench.children import BenchError, run_json
from bench.interpreters import Interpreter
from bench.peers import Filled, fill_prometheus, fill_victoria
from bench.recording import load, record, without_processes
from bench.saving import values_in
from bench.table import Line, Section, at_most
from joblens.core.model import Sample

_PER_VALUE = 0.6
_LONGEST = 120.0
_PEERS: dict[str, Callable[[list[Sample], int], Filled]] = {
    "Prometheus": fill_prometheus,
    "VictoriaMetrics": fill_victoria,
}


def measure_store(pythons: list[Interpreter]) -> list[Section]:
    python = pythons[0]  # the one with duckdb
    with tempfile.TemporaryDirectory(prefix="joblens-bench-") as folder:
        print("bench: store, sampling for 45 s", file=sys.stderr, flush=True)
        record(Path(folder))
        saving = run_json([python.path, "-m", "bench.saving", folder], _LONGEST)
        sizes = run_json([python.path, "-m", "bench.sizes", folder], _LONGEST)
        batches = load(Path(folder))
    return [
        *_measure_sizes(python.label, sizes, batches),
        _describe_speed(python.label, saving),
        _describe_flushes(python.label, saving["flushes"]),
    ]


def _measure_sizes(label: str, sizes: Any, batches: dict[int, list[Sample]]) -> list[Section]:
    everything = [sample for samples in batches.values() for sample in samples]
    node = [sample for samples in without_processes(batches).values() for sample in samples]
    lines: list[Line] = []
    costs: list[Line] = []
    notes = [f"{values_in(everything)} values of this machine under load, 15 minutes at 1 Hz"]
    for what, ours, samples in (
        ("all sets", sizes["all"], everything),
        ("node only", sizes["node"], node),
    ):
        values = values_in(samples)
        peers = {name: _try(fill, samples, values, notes) for name, fill in _PEERS.items()}
        lines += _describe_sizes(label, what, ours, peers, values)
        costs += _describe_costs(label, what, ours["seconds"], peers, values)
    notes += _by_set(sizes["all"]["sets"], everything)
    return [
        Section("Store, bytes per value; reference: the same samples there", lines, notes),
        Section("Store, CPU per value until compacted on disk; reference: import from text", costs),
    ]


def _try(
    fill: Callable[[list[Sample], int], Filled], samples: list[Sample], values: int, notes: list[str]
) -> Filled | None:
    try:
        return fill(samples, values)
    except BenchError as error:
        notes.append(f"not compared: {error}")
        return None


def _describe_sizes(
    label: str, what: str, ours: Any, peers: dict[str, Filled | None], values: int
) -> list[Line]:
    def line(how: str, size: int, theirs: Filled | None = None, most: float | None = None) -> Line:
        beside = [theirs.bytes / values] if theirs else []
        return at_most(f"{what}, {how}", label, "each", [size / values], beside=beside, most=most)

    compacted = [
        line(f"compacted / {name}", ours["compacted"], theirs, None if number else _PER_VALUE)
        for number, (name, theirs) in enumerate(peers.items())
    ]
    return [
        *compacted,
        line("saved at once", ours["at_once"]),
        line("every minute, not compacted", ours["before"]),
    ]


def _describe_costs(
    label: str, what: str, seconds: float, peers: dict[str, Filled | None], values: int
) -> list[Line]:
    ours = [seconds / values]
    return [
        at_most(f"{what}, every minute / {name}", label, "seconds", ours, beside=[theirs.cpu / values])
        for name, theirs in peers.items()
        if theirs
    ]


def _by_set(sizes: dict[str, int], samples: list[Sample]) -> list[str]:
    values: Counter[str] = Counter()
    for sample in samples:
        values[sample.rows.schema.set] += values_in([sample])
    shown = [f"{name} {size / values[name]:.2f}" for name, size in sizes.items()]
    return ["by set: " + ", ".join(shown[:5]), "  " + ", ".join(shown[5:])]


def _describe_speed(label: str, saving: Any) -> Section:
    lines: list[Line] = []
    rows_per_value = saving["rows"] / saving["values"]
    for what, name in (("samples in memory", "samples"), ("batches, decoded first", "batches")):
        values = [1 / seconds for seconds in saving["per_value"][name]]
        rows = [rows_per_value * figure for figure in values]
        lines.append(at_most(f"{what}, values", label, "per_second", values))
        lines.append(at_most(f"{what}, rows", label, "per_second", rows))
    note = f"{saving['rows']} rows of {saving['values']} values, one file per set"
    return Section("Store, a job saved at once, per second of CPU", lines, [note])


def _describe_flushes(label: str, flushes: list[dict[str, Any]]) -> Section:
    largest = flushes[-1]
    lines: list[Line] = []
    for flush in flushes:
        what, seconds, size = f"{flush['rows']} rows per file", flush["seconds"], [flush["bytes"]]
        lines += [
            at_most(f"{what}, CPU per row", label, "seconds", seconds, beside=largest["seconds"]),
            at_most(f"{what}, bytes per row", label, "each", size, beside=[largest["bytes"]]),
        ]
    return Section("Store, rows of processes in files of some size; reference: the largest", lines)
