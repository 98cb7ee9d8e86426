"""`interrupts`: /proc/interrupts, how often each interrupt was served, on all cores or on each."""

from __future__ import annotations

from typing import Callable, List, Optional, Tuple

from joblens.errors import MalformedError
from joblens.host import Host
from joblens.model import ABSENT, COUNTER, Column, Key, Rows, Schema

_PATH = "proc/interrupts"
_COLUMNS = (Column("served", COUNTER, "how often the interrupt was served"),)
ALL_CORES = Schema("interrupts", ("irq", "device"), _COLUMNS)
PER_CORE = Schema("interrupts", ("irq", "device", "cpu"), _COLUMNS)
_NO_LINE = b"\n"  # unlike any line, an empty one too


def interrupts(host: Host, per_cpu: bool = False) -> Callable[[], Tuple[Rows, ...]]:
    parse_line = parse_each if per_cpu else parse_sum
    lines: List[bytes] = []
    counts: List[List[int]] = []
    cpus: List[str] = []
    keys: Optional[Tuple[Key, ...]] = None

    def read() -> Tuple[Rows, ...]:
        nonlocal lines, counts, cpus, keys
        new = host.read(_PATH).split(b"\n")
        if keys is None or len(new) != len(lines) or new[0] != lines[0]:
            cpus = parse_header(new)
            lines, counts, keys = [_NO_LINE] * len(new), [[] for _ in new], None
        # On a machine with many cores a line has a kilobyte, and most lines stay as they were.
        for number, line in enumerate(new[1:-1], 1):
            if line != lines[number]:
                counts[number] = parse_line(line, len(cpus))
                if _name(line) != _name(lines[number]):
                    keys = None
        lines = new
        if keys is None:
            keys = parse_keys(lines[1:-1], cpus, per_cpu)
        return (Rows(PER_CORE if per_cpu else ALL_CORES, keys, [c for line in counts for c in line]),)

    return read


def parse_header(lines: List[bytes]) -> List[str]:
    if lines[-1]:
        raise MalformedError(_PATH, "the last line is cut off")
    cpus = [word.decode("ascii", "replace") for word in lines[0].split()]
    if not cpus or not all(cpu.startswith("CPU") for cpu in cpus):
        raise MalformedError(_PATH, "the first line does not name the cores")
    return [cpu[3:] for cpu in cpus]


def parse_sum(line: bytes, cpus: int) -> List[int]:
    return [sum(_counts(line, cpus))]


def parse_each(line: bytes, cpus: int) -> List[int]:
    """ERR and MIS have one count for the whole machine: it stands at the first core."""
    found = _counts(line, cpus)
    return found + [ABSENT] * (cpus - len(found))


def _counts(line: bytes, cpus: int) -> List[int]:
    fields = line.split(None, cpus + 1)[1 : cpus + 1]
    try:
        return [int(field) for field in fields if len(fields) == cpus or field.isdigit()]
    except ValueError:
        raise MalformedError(_PATH, f"not a count per core: {line[:80]!r}") from None


def _name(line: bytes) -> bytes:
    return line[: line.find(b":")]


def parse_keys(lines: List[bytes], cpus: List[str], per_cpu: bool) -> Tuple[Key, ...]:
    names = [_names(line, len(cpus)) for line in lines]
    if len(set(names)) < len(names):
        raise MalformedError(_PATH, "an interrupt occurs twice")
    return tuple((*name, cpu) for name in names for cpu in cpus) if per_cpu else tuple(names)


def _names(line: bytes, cpus: int) -> Tuple[str, str]:
    """` 36:  0  30764  PCI-MSIX-0000:00:02.0  1-edge  virtio1-req.0` is 36 of virtio1-req.0."""
    irq, _, rest = line.partition(b":")
    words = [word for word in rest.split(None, cpus) if not word.isdigit()]
    what = words[-1].decode("utf-8", "replace") if words else ""
    if irq.strip().isdigit():
        what = what.rpartition("  ")[2]
    return irq.strip().decode("utf-8", "replace"), what.strip()
