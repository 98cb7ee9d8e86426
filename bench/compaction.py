"""Background compaction over a simulated day of 1,000 nodes: cost per cycle, rewrites, disk and memory."""

from __future__ import annotations

import sys

from bench.children import run_json
from bench.interpreters import Interpreter
from bench.one_day import COUNTERS, CYCLES, NODES, SCALE, SECONDS, SEGMENTS
from bench.table import Line, Section, at_most
from bench.timing import ratio, spread

_LONGEST = 1800.0
_QUARTER = CYCLES // 4
_GOAL_FLAT, _GOAL_DISK, _GOAL_BYTES = 1.5, 2.0, 300e6


def measure_compaction(pythons: list[Interpreter]) -> list[Section]:
    python = pythons[0].path
    print("bench: compaction, a simulated day", file=sys.stderr, flush=True)
    day = run_json([python, "-m", "bench.one_day", "day"], _LONGEST)
    lines = [*_costs(day["seconds"]), *_sizes(day)]
    for nodes in (NODES, 5 * NODES):
        found = run_json([python, "-m", "bench.one_day", "memory", str(nodes)], _LONGEST)
        cost = found["seconds"] / (nodes * SEGMENTS * SECONDS)
        lines += [
            at_most(f"CPU per node-second and set, {nodes} nodes", "own", "seconds", [cost]),
            at_most(f"highest memory, {nodes} nodes", "own", "bytes", [found["bytes"]], most=_GOAL_BYTES),
        ]
    notes = [
        f"{CYCLES} cycles of {SEGMENTS} segments of {SECONDS} s, {COUNTERS} counters per node and second",
        f"nodes and merges have 1/{SCALE} of the size of {NODES} nodes: there are as many merges",
        "CPU per node-second and memory: of full size, one cycle, then `joblens db compact`, which rewrites",
        "nearly all again: as often as a row is rewritten over the day",
    ]
    return [Section("Compaction over a day; reference: its first quarter", lines, notes)]


def _costs(seconds: list[float]) -> list[Line]:
    """Compare the quarters of the day: merges of higher tiers do not occur in every cycle."""
    quarters = [sum(seconds[at : at + _QUARTER]) for at in range(0, CYCLES, _QUARTER)]
    lines: list[Line] = []
    for number, quarter in enumerate(quarters[1:], 2):
        found = ratio([quarter], [quarters[0]])
        lines.append(
            Line(
                f"quarter {number} of the day, CPU", "own", "seconds", spread([quarter]),
                spread([quarters[0]]), found, f"≤ {_GOAL_FLAT:g}", found.middle <= _GOAL_FLAT,
            )
        )  # fmt: skip
    return lines


def _sizes(day: dict[str, list[float] | float]) -> list[Line]:
    assert isinstance(day["files"], list)
    assert isinstance(day["ratios"], list)
    return [
        at_most("bytes rewritten per byte stored", "own", "ticks", [_round(day["rewritten"], day["stored"])]),
        at_most(
            "disk / live data, after the worst cycle", "own", "ticks", [round(max(day["ratios"]), 3)],
            most=_GOAL_DISK,
        ),
        at_most(
            "disk / live data, in the worst moment", "own", "ticks", [_round(day["most"], 1.0)],
            most=_GOAL_DISK,
        ),
        at_most("files that count, at most", "own", "ticks", [max(day["files"])]),
        at_most("files that count, at the end", "own", "ticks", [day["files"][-1]]),
    ]  # fmt: skip


def _round(above: object, below: object) -> float:
    assert isinstance(above, (int, float))
    assert isinstance(below, (int, float))
    return round(above / below, 3)
