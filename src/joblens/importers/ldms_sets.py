"""Sets and columns for schemas of LDMS, and the types of cells.

A schema maps to a set of joblens only if both have the same figures of the same file of the kernel. Any other
becomes `ldms_SCHEMA`, with LDMS' column names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from joblens.collectors.memory import describe as describe_memory
from joblens.collectors.vmstat import describe as describe_vmstat
from joblens.importers.ldms_csv import Header

RESERVED = ("time", "cluster", "node", "jobid")
# Columns that every sampler of LDMS adds (man ldms_sampler_base).
_IDENTITY = ("component_id", "app_id")
_LOAD = {
    "load1min": "load1",
    "load5min": "load5",
    "load15min": "load15",
    "runnable": "running",
    "scheduling_entities": "tasks",
    "newest_pid": "last_pid",
}
_WHOLE = re.compile(r"-?\d{1,20}", re.ASCII)
_NUMBER = re.compile(r"[-+]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})(e[-+]?\d{1,4})?", re.ASCII | re.IGNORECASE)
_NO_NUMBER = re.compile(r"[-+]?(nan|inf|infinity)", re.IGNORECASE)  # as printf(3) writes it
_LONGEST_NAME = 200
_LONGEST_WHOLE = 21  # characters, of 64 bits and a sign


class Target(NamedTuple):
    """A column of the lake."""

    name: str
    factor: int = 1
    digits: int = 0  # decimal places, if the kernel always writes as many


class Plan(NamedTuple):
    set: str
    targets: tuple[tuple[int, Target], ...]  # by index in a line


def plan(schema: str, header: Header) -> Plan:
    figures = [name for _, name in header.columns if name not in _IDENTITY]
    known_schema = _SAME.get(schema)
    if known_schema:
        set_name, is_same, target = known_schema
        known = [Target(name) if name in _IDENTITY else target(name) for _, name in header.columns]
        names = [it.name.lower() for it in known]
        if is_same(figures) and len(set(names) | set(RESERVED)) == len(names) + len(RESERVED):
            return Plan(set_name, tuple((at, it) for (at, _), it in zip(header.columns, known)))
    words = re.sub(r"\W+", "_", schema, flags=re.ASCII).strip("_").lower() or "unnamed"
    names = _unique_names(name for _, name in header.columns)
    return Plan(f"ldms_{words}", tuple((at, Target(name)) for (at, _), name in zip(header.columns, names)))


def _meminfo(name: str) -> Target:
    # proc_meminfo(5): all are KiB, except counts of huge pages.
    column = describe_memory(name, in_kib=not name.startswith("HugePages_"))
    return Target(column.name, column.factor)


def _is_meminfo(names: Sequence[str]) -> bool:
    return {"MemTotal", "MemFree"} <= set(names) and all(re.fullmatch(r"\w+(\(\w+\))?", n) for n in names)


def _vmstat(name: str) -> Target:
    return Target(describe_vmstat(name, in_kib=False).name)


def _is_vmstat(names: Sequence[str]) -> bool:
    return {"nr_free_pages", "pgpgin"} <= set(names) and all(re.fullmatch(r"[a-z]\w*", n) for n in names)


def _loadavg(name: str) -> Target:
    return Target(_LOAD.get(name, name), digits=2 if name.startswith("load") else 0)


def _is_loadavg(names: Sequence[str]) -> bool:
    return bool(names) and set(names) <= set(_LOAD)


_SAME: dict[str, tuple[str, Callable[[Sequence[str]], bool], Callable[[str], Target]]] = {
    "meminfo": ("memory", _is_meminfo, _meminfo),
    "vmstat": ("vmstat", _is_vmstat, _vmstat),
    "loadavg": ("load", _is_loadavg, _loadavg),
}


def _unique_names(names: Iterable[str]) -> list[str]:
    """Return unique column names for Parquet, where upper and lower case are the same."""
    taken, found = set(RESERVED), list[str]()
    for name in names:
        word = re.sub(r"\s+", "_", "".join(it if it.isprintable() else "?" for it in name))[:_LONGEST_NAME]
        number, unique = 1, word or "column"
        while unique.lower() in taken:
            number += 1
            unique = f"{word or 'column'}_{number}"
        taken.add(unique.lower())
        found.append(unique)
    return found


Values = list[int | None] | list[float | None] | list[str]


class Cells(NamedTuple):
    kind: type[int] | type[float] | type[str]
    values: Values
    bad: list[int]  # indexes of cells that are not numbers, in a column of numbers


def parse_cells(cells: list[str]) -> Cells:
    """Parse one column. It is text only if most cells are text: one damaged number does not make it text."""
    try:
        if max(map(len, cells)) <= _LONGEST_WHOLE and set("".join(cells)) <= set("0123456789-"):
            return _fitting([int(cell) for cell in cells], [])
    except ValueError:  # an empty or mixed-up cell
        pass
    values: list[int | float | None] = []
    bad: list[int] = []
    known = 0
    for at, cell in enumerate(map(str.strip, cells)):
        value: int | float | None = None
        if _WHOLE.fullmatch(cell):
            value = int(cell)
        elif _NUMBER.fullmatch(cell):
            value = float(cell)
        elif cell and not _NO_NUMBER.fullmatch(cell):
            bad.append(at)
        known += bool(cell)
        # A number beyond the range of a double is unknown.
        values.append(value if value is None or math.isfinite(value) else None)
    if 2 * len(bad) > known:
        return Cells(str, cells, [])
    return _fitting(values, bad)


def _fitting(values: Sequence[int | float | None], bad: list[int]) -> Cells:
    """Return integers if 64 bits are enough for all values, else floats."""
    if all(value is None or (isinstance(value, int) and abs(value) < 1 << 63) for value in values):
        return Cells(int, [None if value is None else int(value) for value in values], bad)
    return Cells(float, [None if value is None else float(value) for value in values], bad)
