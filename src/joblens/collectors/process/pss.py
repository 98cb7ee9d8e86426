"""`process_pss`: what is a process's own of the memory that it shares, from /proc/PID/smaps_rollup.

The kernel counts page by page: some 10 to 40 ms per GiB, in which the process's memory map is held. So it is
read only on request.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from joblens.core.host import Host
from joblens.core.model import ABSENT, GAUGE, Column, Key, Rows, Schema

# Since Linux 4.14; the parts of the share since 5.4.
_FIELDS = (
    (b"Pss", "pss", "memory in RAM, what is shared divided by those who share it"),
    (b"Pss_Anon", "pss_anon", "of that, memory that no file stands behind"),
    (b"Pss_File", "pss_file", "of that, pages of files"),
    (b"Pss_Shmem", "pss_shmem", "of that, shared memory"),
    (b"Private_Clean", "private_clean", "pages that nobody else has, as they are in their file"),
    (b"Private_Dirty", "private_dirty", "pages that nobody else has, written to"),
    (b"SwapPss", "swap_pss", "memory swapped out, divided as above"),
)
PROCESS_PSS = Schema(
    "process_pss",
    ("pid", "start"),
    tuple(Column(name + "_bytes", GAUGE, what, factor=1024) for _, name, what in _FIELDS),
)
_LINE = re.compile(rb"^(\w+):\s*(\d+) kB$", re.MULTILINE)


class Pss(NamedTuple):
    """A process's share of the memory that it shares, in KiB."""

    anon: int
    shmem: int


def parse_rollup(data: bytes) -> Dict[bytes, int]:
    """In KiB, by the kernel's names; those of a cut-off line are left out."""
    return {name: int(number) for name, number in _LINE.findall(data) if len(number) < 18}


def read_rollup(host: Host, pid: int) -> Dict[bytes, int]:
    """Empty where the kernel is too old, the process gone, or not ours to look at."""
    try:
        return parse_rollup(host.read_once(f"proc/{pid}/smaps_rollup"))
    except OSError:
        return {}


def read_pss(host: Host, pid: int) -> Optional[Pss]:
    return parse_pss(read_rollup(host, pid))


def parse_pss(found: Dict[bytes, int]) -> Optional[Pss]:
    if b"Pss_Anon" not in found or b"Pss_Shmem" not in found:
        return None
    return Pss(found[b"Pss_Anon"], found[b"Pss_Shmem"])


def read_shares(host: Host, processes: Iterable[Tuple[int, int]]) -> Rows:
    """Of those that tell; `processes` are pids with their starts."""
    keys: List[Key] = []
    values: List[int] = []
    for pid, start in processes:
        found = read_rollup(host, pid)
        if found:
            keys.append((pid, start))
            values += [found.get(name, ABSENT) for name, _, _ in _FIELDS]
    return Rows(PROCESS_PSS, tuple(keys), values)
