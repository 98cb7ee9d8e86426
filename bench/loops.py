"""Table lines of the tight loops: the six sets and the process scan."""

from __future__ import annotations

from bench.children import run_json
from bench.interpreters import Interpreter
from bench.sixsets import TICKS_PER_BATCH
from bench.table import Line, Section, at_most, compare
from bench.timing import spread

_LONGEST = 60.0
_PER_PROCESS = 15e-6
_USUAL_FILES = 1024
_MANY, _MANY_FILES = 1200, 8192
_WAKERS = 100


def measure_six_sets(pythons: list[Interpreter]) -> list[Section]:
    lines: list[Line] = []
    for python in pythons:
        found = run_json([python.path, "-m", "bench.sixsets"], _LONGEST)
        lines += _against_floor(python.label, found)
        if "psutil" in found:
            lines += _against_psutil(python.label, found)
    notes = [
        f"the batch is encoded every {TICKS_PER_BATCH} ticks; only the cheaper of the two floors is judged",
        "psutil has no interrupts, and of vmstat only swap in and out: six sets against it favours psutil",
        "five sets: without interrupts; four: without vmstat too, and psutil without swap_memory",
    ]
    return [Section("Six sets in a tight loop, CPU per round", lines, notes)]


def _against_floor(label: str, found: dict[str, list[float]]) -> list[Line]:
    floors = {"pread to the end": found["to_end"], "one pread per file": found["one_read"]}
    cheaper = min(floors, key=lambda name: spread(floors[name]).middle)
    judged = [
        compare(f"six sets, encoded / {name}", label, found["encoded"], floor, 2 if name == cheaper else None)
        for name, floor in floors.items()
    ]
    return [*judged, compare("six sets, values only / that floor", label, found["values"], floors[cheaper])]


def _against_psutil(label: str, found: dict[str, list[float]]) -> list[Line]:
    """Compare without a goal: the floor alone costs more than a quarter of psutil."""
    return [
        compare("six sets, values only / psutil", label, found["values"], found["psutil"]),
        compare("five sets, values only / psutil", label, found["five"], found["psutil"]),
        compare("four sets, values only / psutil", label, found["four"], found["psutil_four"]),
    ]


def measure_processes(pythons: list[Interpreter]) -> list[Section]:
    lines: list[Line] = []
    notes = [
        "psutil is not asked for memory by kind, page faults, session or cgroup, which joblens reads too",
        "joblens reads a command line again only when the name changes; psutil reads it each time",
        f"a shell's usual limit is {_USUAL_FILES} open files; joblens then keeps fewer of them open",
    ]
    for python in pythons:
        command, label = [python.path, "-m", "bench.scan"], python.label
        found = run_json(command, _LONGEST)
        few = run_json([*command, str(_USUAL_FILES)], _LONGEST)
        many = run_json([*command, str(_MANY_FILES), str(_MANY)], _LONGEST)
        ours = found["scan"]
        lines.append(at_most("one scan / user processes seen", label, "seconds", ours, most=_PER_PROCESS))
        what = f"the same with {_MANY} processes, which cannot all keep their files open"
        lines.append(at_most(what, label, "seconds", many["scan"], most=_PER_PROCESS))
        awake = run_json([*command, str(_MANY_FILES), "0", str(_WAKERS)], _LONGEST)
        what = f"the same, {_WAKERS} of them woken since the last scan; beside: three files read"
        lines.append(at_most(what, label, "seconds", awake["scan"], beside=awake["floor"], most=_PER_PROCESS))
        if "psutil" in found:
            lines.append(compare("one scan / psutil", label, ours, found["psutil"], 1 / 4))
            what = f"one scan, {_USUAL_FILES} files allowed / psutil"
            lines.append(compare(what, label, few["scan"], few["psutil"]))
        notes.append(f"{label}: {found['count']} user processes, 300 of them made for it")
    return [Section("Process scan, CPU per process", lines, notes)]
