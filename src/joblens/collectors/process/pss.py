"""`process_pss`: proportional set size of each process, from /proc/PID/smaps_rollup.

The kernel walks all pages: 10 to 40 ms per GiB, while it holds the process's memory map lock. So it is read
only on request.
"""

from __future__ import annotations

from joblens.core.host import Host
from joblens.core.model import ABSENT, GAUGE, Column, Key, Rows, Schema
from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Iterable, List, Optional, Tuple

# Since Linux 4.14; the parts of the share since 5.4.
_FIELDS = (
    (
        b"Pss",
        "pss",
        "proportional set size: shared pages are divided by the processes that map them",
    ),
    (b"Pss_Anon", "pss_anon", "anonymous part of the proportional set size"),
    (b"Pss_File", "pss_file", "file part of the proportional set size"),
    (b"Pss_Shmem", "pss_shmem", "shared memory part of the proportional set size"),
    (b"Private_Clean", "private_clean", "unmodified pages that no other process maps"),
    (b"Private_Dirty", "private_dirty", "modified pages that no other process maps"),
    (b"SwapPss", "swap_pss", "proportional share of memory swapped out"),
)
PROCESS_PSS = Schema(
    "process_pss",
    ("pid", "start"),
    tuple(Column(name + "_bytes", GAUGE, what, factor=1024) for _, name, what in _FIELDS),
)


class Pss(NamedTuple):
    """Parts of a process's proportional set size, in KiB."""

    anon: int
    shmem: int


def parse_rollup(data: bytes) -> Dict[bytes, int]:
    """Map the kernel's names to KiB, without a truncated line."""
    found: Dict[bytes, int] = {}
    for line in data.split(b"\n"):
        name, _, value = line.partition(b":")
        number, unit = value[:-3].strip(), value[-3:]
        if unit == b" kB" and number.isdigit() and len(number) < 18:
            found[name] = int(number)
    return found


def read_rollup(host: Host, pid: int) -> Dict[bytes, int]:
    """Empty if the kernel is too old, or the process has ended or is inaccessible."""
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
    """Read those that are accessible; `processes` are pids with their starts."""
    keys: List[Key] = []
    values: List[int] = []
    for pid, start in processes:
        found = read_rollup(host, pid)
        if found:
            keys.append((pid, start))
            values += [found.get(name, ABSENT) for name, _, _ in _FIELDS]
    return Rows(PROCESS_PSS, tuple(keys), values)
