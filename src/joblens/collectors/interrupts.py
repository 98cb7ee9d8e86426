"""`interrupts`: /proc/interrupts, how often each interrupt was served, summed over cores or per core.

An interrupt has rows from its first occurrence on. Many machines have hundreds that never occur.
"""

from __future__ import annotations

from itertools import compress
from operator import ne
from typing import Callable, List, Optional, Tuple

from joblens.core.counter_file import CounterFile
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, Column, Key, Rows, Schema

_PATH = "proc/interrupts"
_COLUMNS = (Column("served", COUNTER, "interrupts served; none for those that never occurred"),)
ALL_CORES = Schema("interrupts", ("irq", "device"), _COLUMNS)
PER_CORE = Schema("interrupts", ("irq", "device", "cpu"), _COLUMNS)
_MOST_DIGITS = 20  # of 64 bits
_NO_LINE = b"\n"  # differs from any line, also from an empty one


def interrupts(host: Host, per_cpu: bool = False) -> Callable[[], Tuple[Rows, ...]]:
    schema = PER_CORE if per_cpu else ALL_CORES
    lines: List[bytes] = []
    cpus: List[str] = []
    names: List[Tuple[str, str]] = []
    occurred: List[bool] = []
    chosen: List[bool] = []  # of the values those whose interrupt has occurred
    keys: Optional[Tuple[Key, ...]] = None
    values: List[int] = []  # of all lines
    width = 1  # values of a line

    def parse(data: bytes) -> Tuple[Rows, ...]:
        nonlocal lines, cpus, names, occurred, chosen, keys, values, width
        new = data.split(b"\n")
        if keys is None or len(new) != len(lines) or new[0] != lines[0] or new[-1]:
            cpus, keys, count = parse_header(new), None, len(new) - 2
            width = len(cpus) if per_cpu else 1
            lines, names = [new[0], *[_NO_LINE] * count, b""], [("", "")] * count
            values, occurred = [0] * (count * width), [False] * count
        # With many cores a line has a kilobyte, and most lines do not change.
        for number in compress(range(len(new)), map(ne, new, lines)):
            name, counts = parse_line(new[number], len(cpus))
            place, has_occurred = number - 1, any(counts)
            values[place * width : number * width] = _per_core(counts, width) if per_cpu else [sum(counts)]
            if name != names[place] or has_occurred != occurred[place]:
                names[place], occurred[place], keys = name, has_occurred, None
        lines = new
        if keys is None:
            _check_unique(names)
            keys = make_keys(list(compress(names, occurred)), cpus if per_cpu else None)
            chosen = [it for it in occurred for _ in range(width)]
        return (Rows(schema, keys, list(compress(values, chosen))),)

    def describe_line(number: int, tokens: List[bytes]) -> str:
        """Once an interrupt occurs for the first time, or its count starts over at 0, the file is parsed."""
        if not number or not tokens or not occurred[number - 1]:
            return "L"
        counts = len(tokens[1 : len(cpus) + 1])
        return "T" + "V+"[:counts] + "+" * (counts - 2) + "ZL"

    return CounterFile(host, _PATH, parse, None if per_cpu else describe_line)


def parse_header(lines: List[bytes]) -> List[str]:
    if lines[-1]:
        raise MalformedError(_PATH, "truncated last line")
    cpus = [word.decode("ascii", "replace") for word in lines[0].split()]
    if not cpus or not all(cpu.startswith("CPU") for cpu in cpus) or len(set(cpus)) < len(cpus):
        raise MalformedError(_PATH, "the first line does not list the cores")
    return [cpu[3:] for cpu in cpus]


def parse_line(line: bytes, cpus: int) -> Tuple[Tuple[str, str], List[int]]:
    """` 36:  0  30764  PCI-MSIX-0000:00:02.0  1-edge  virtio1-req.0` is 36 of virtio1-req.0."""
    irq, colon, rest = line.partition(b":")
    fields = rest.split(None, cpus)
    counts = [int(field) for field in fields[:cpus] if field.isdigit() and len(field) <= _MOST_DIGITS]
    # ERR and MIS have one count for the whole machine, and no device.
    if not colon or (len(counts) != cpus and len(fields) != len(counts)):
        raise MalformedError(_PATH, f"expected one count per core: {line[:80]!r}")
    what = fields[cpus].decode("utf-8", "replace").strip() if len(fields) > cpus else ""
    name = irq.strip().decode("utf-8", "replace")
    return (name, what.rpartition("  ")[2] if name.isdigit() else what), counts


def _per_core(counts: List[int], cpus: int) -> List[int]:
    """A count of the whole machine is assigned to the first core."""
    return counts + [ABSENT] * (cpus - len(counts))


def _check_unique(names: List[Tuple[str, str]]) -> None:
    if len(set(names)) < len(names):
        raise MalformedError(_PATH, "duplicate interrupt")


def make_keys(names: List[Tuple[str, str]], cpus: Optional[List[str]]) -> Tuple[Key, ...]:
    return tuple(names) if cpus is None else tuple((*name, cpu) for name in names for cpu in cpus)
