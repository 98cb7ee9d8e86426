"""`memory`: every line of /proc/meminfo (Documentation/filesystems/proc.rst)."""

from __future__ import annotations

from joblens.collectors.keyvalue_file import read_keyvalue
from joblens.core.host import Host
from joblens.core.model import GAUGE, Column, Rows, Schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Tuple

_HELP = {
    "mem_total_bytes": "usable memory of the node",
    "mem_free_bytes": "unused memory, not even as cache",
    "mem_available_bytes": "the kernel's estimate of memory available to new programs without swapping",
    "buffers_bytes": "cache of raw block devices",
    "cached_bytes": "page cache, shared memory and tmpfs included",
    "shmem_bytes": "shared memory and tmpfs",
    "anon_pages_bytes": "anonymous memory of user programs",
    "slab_bytes": "kernel data structures",
    "sreclaimable_bytes": "reclaimable part of slab",
    "committed_as_bytes": "memory allocated by programs, whether used or not",
    "dirty_bytes": "file data waiting to be written",
}
# For Prometheus `_total` is the suffix of a counter, and `sec` a unit.
_RENAMED = {"HugePages_Total": "HugePages", "SecPageTables": "SecondaryPageTables"}
SCHEMA = Schema("memory", (), tuple(Column(name, GAUGE, what, factor=1024) for name, what in _HELP.items()))
_SMALL = frozenset("abcdefghijklmnopqrstuvwxyz")
_LARGE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_IN_WORDS = _SMALL | frozenset("0123456789")


def memory(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    return read_keyvalue(host, "proc/meminfo", "memory", describe)


def describe(name: str, in_kib: bool) -> Column:
    words = _separate(_RENAMED.get(name, name))
    if not in_kib:
        return Column(words, GAUGE, f"{name} of /proc/meminfo, a number of pages")
    column = words + "_bytes"
    return Column(column, GAUGE, _HELP.get(column, f"{name} of /proc/meminfo"), factor=1024)


def _separate(name: str) -> str:
    """AnonHugePages becomes anon_huge_pages, Active(anon) active_anon."""
    parts = [name[:1]]
    for before, letter, after in zip(name, name[1:], name[2:] + " "):
        starts = before in _IN_WORDS and letter in _LARGE and after in _SMALL
        parts.append(f" {letter}" if starts else letter)
    plain = [letter if letter in _IN_WORDS else " " for letter in "".join(parts).lower()]
    return "_".join("".join(plain).split())
