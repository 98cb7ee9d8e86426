"""`interrupts`: /proc/interrupts, how often each interrupt was served, summed over cores or per core."""

from __future__ import annotations

from functools import partial
from itertools import compress
from operator import ne
from typing import Callable, List, Optional, Tuple

from joblens.core.counter_file import CounterFile
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT, COUNTER, Column, Key, Rows, Schema

_PATH = "proc/interrupts"
_COLUMNS = (Column("served", COUNTER, "interrupts served"),)
ALL_CORES = Schema("interrupts", ("irq", "device"), _COLUMNS)
PER_CORE = Schema("interrupts", ("irq", "device", "cpu"), _COLUMNS)
_NO_LINE = b"\n"  # differs from any line, also from an empty one


def interrupts(host: Host, per_cpu: bool = False) -> Callable[[], Tuple[Rows, ...]]:
    schema = PER_CORE if per_cpu else ALL_CORES
    file = CounterFile(host, _PATH)
    lines: List[bytes] = []
    cpus: List[str] = []
    names: List[Tuple[str, str]] = []
    keys: Optional[Tuple[Key, ...]] = None
    values: List[int] = []

    def read() -> Tuple[Rows, ...]:
        nonlocal lines, cpus, names, keys, values
        known = file.read()
        if known is not None and keys is not None:
            return (Rows(schema, keys, known),)
        data = host.read(_PATH)
        new = data.split(b"\n")
        if keys is None or len(new) != len(lines) or new[0] != lines[0]:
            cpus, keys = parse_header(new), None
            width = len(cpus) if per_cpu else 1
            lines, names = [new[0], *[_NO_LINE] * (len(new) - 2), b""], [("", "")] * (len(new) - 2)
            values = [0] * (len(names) * width)
        width = len(cpus) if per_cpu else 1
        values = values.copy()
        # With many cores a line has a kilobyte, and most lines do not change.
        for number in compress(range(len(new)), map(ne, new, lines)):
            name, counts = parse_line(new[number], len(cpus))
            values[(number - 1) * width : number * width] = (
                _per_core(counts, width) if per_cpu else [sum(counts)]
            )
            if name != names[number - 1]:
                names[number - 1], keys = name, None
        lines = new
        if keys is None:
            keys = make_keys(names, cpus if per_cpu else None)
        if not per_cpu:
            file.learn(data, values, partial(_describe_line, len(cpus)))
        return (Rows(schema, keys, values),)

    return read


def _describe_line(cpus: int, number: int, tokens: List[bytes]) -> str:
    counts = len(tokens[1 : cpus + 1])
    return "T" + "V+"[:counts] + "+" * (counts - 2) + "L" if number and tokens else "L"


def parse_header(lines: List[bytes]) -> List[str]:
    if lines[-1]:
        raise MalformedError(_PATH, "truncated last line")
    cpus = [word.decode("ascii", "replace") for word in lines[0].split()]
    if not cpus or not all(cpu.startswith("CPU") for cpu in cpus):
        raise MalformedError(_PATH, "the first line does not list the cores")
    return [cpu[3:] for cpu in cpus]


def parse_line(line: bytes, cpus: int) -> Tuple[Tuple[str, str], List[int]]:
    """` 36:  0  30764  PCI-MSIX-0000:00:02.0  1-edge  virtio1-req.0` is 36 of virtio1-req.0."""
    irq, colon, rest = line.partition(b":")
    fields = rest.split(None, cpus)
    counts = [int(field) for field in fields[:cpus] if field.isdigit()]
    # ERR and MIS have one count for the whole machine, and no device.
    if not colon or (len(counts) != cpus and len(fields) != len(counts)):
        raise MalformedError(_PATH, f"expected one count per core: {line[:80]!r}")
    what = fields[cpus].decode("utf-8", "replace").strip() if len(fields) > cpus else ""
    name = irq.strip().decode("utf-8", "replace")
    return (name, what.rpartition("  ")[2] if name.isdigit() else what), counts


def _per_core(counts: List[int], cpus: int) -> List[int]:
    """A count of the whole machine is assigned to the first core."""
    return counts + [ABSENT] * (cpus - len(counts))


def make_keys(names: List[Tuple[str, str]], cpus: Optional[List[str]]) -> Tuple[Key, ...]:
    if len(set(names)) < len(names):
        raise MalformedError(_PATH, "duplicate interrupt")
    return tuple(names) if cpus is None else tuple((*name, cpu) for name in names for cpu in cpus)
