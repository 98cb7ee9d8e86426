"""`vmstat`: every line of /proc/vmstat, under the kernel's own names."""

from __future__ import annotations

import re
from typing import Callable, Tuple

from joblens.collectors.keyvalue_file import read_keyvalue
from joblens.core.host import Host
from joblens.core.model import COUNTER, GAUGE, Column, Rows, Schema

# Names that begin with nr_ are current amounts, except those that count events (mm/vmstat.c).
_NR_COUNTERS = re.compile(
    r"nr_(dirtied|written|throttled_written|vmscan_\w+|foll_pin_\w+|tlb_\w+|active_file_\w+_fail)$"
)
_OTHER_GAUGES = frozenset(("workingset_nodes", "swap_cached"))
_HELP = {
    "pgfault": "page faults",
    "pgmajfault": "page faults with disk access",
    "pgpgin": "KiB read from block devices",
    "pgpgout": "KiB written to block devices",
    "pswpin": "pages swapped in",
    "pswpout": "pages swapped out",
    "oom_kill": "processes killed by the OOM killer",
}
# The kernel's name contains `sec`, which for Prometheus is a unit.
_RENAMED = {"nr_sec_page_table_pages": "nr_secondary_page_table_pages"}
SCHEMA = Schema("vmstat", (), tuple(Column(name, COUNTER, what) for name, what in _HELP.items()))
_NOT_NAME = re.compile(r"[^a-zA-Z0-9_]+")


def vmstat(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    return read_keyvalue(host, "proc/vmstat", "vmstat", describe)


def describe(name: str, in_kib: bool) -> Column:
    amount = (name.startswith("nr_") and not _NR_COUNTERS.match(name)) or name in _OTHER_GAUGES
    what = _HELP.get(name, f"{name} of /proc/vmstat")
    return Column(_NOT_NAME.sub("_", _RENAMED.get(name, name)), GAUGE if amount else COUNTER, what)
