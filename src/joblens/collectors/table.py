"""The table of collectors: each source is one file in this folder and one line below.

A collector is a function that takes a host and returns a function that reads it once. It must not run
commands, require root silently, know about jobs or stores, or turn counters into rates. For anything else a
site can use its own script, see `external/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Tuple

from joblens.collectors.cgroups import cgroups
from joblens.collectors.cpu import cpu
from joblens.collectors.disk import disk
from joblens.collectors.filesystems import filesystems
from joblens.collectors.interrupts import interrupts
from joblens.collectors.lazy import (
    lazy_ends,
    lazy_energy,
    lazy_gpus,
    lazy_infiniband,
    lazy_kernel_log,
    lazy_lustre,
    lazy_nfs,
    lazy_slingshot,
)
from joblens.collectors.load import load
from joblens.collectors.memory import memory
from joblens.collectors.network import network
from joblens.collectors.pressure import pressure
from joblens.collectors.process.collector import processes
from joblens.collectors.vmstat import vmstat
from joblens.core.model import Rows

if TYPE_CHECKING:
    from joblens.core.config import Option

Read = Callable[[], Tuple[Rows, ...]]

ENDS = "ends"  # its rows are of jobs only, and only for a hub


class Collector(NamedTuple):
    name: str
    open: Callable[..., Any]  # (host, **options) -> Read
    reads: str
    pause: float = 0.0  # shortest interval in seconds, unless configured otherwise
    options: Mapping[str, Option] = {}  # further settings with their defaults
    optional: bool = False  # hardware that most machines lack: its absence is not logged


COLLECTORS: Tuple[Collector, ...] = (
    Collector("cpu", cpu, "/proc/stat"),
    Collector("memory", memory, "/proc/meminfo"),
    Collector("vmstat", vmstat, "/proc/vmstat"),
    Collector("interrupts", interrupts, "/proc/interrupts", options={"per_cpu": False}),
    Collector("load", load, "/proc/loadavg"),
    Collector("disk", disk, "/proc/diskstats"),
    Collector("network", network, "/proc/net/dev"),
    Collector("pressure", pressure, "/proc/pressure"),
    # Sizes change slowly, and a file system can be slow to answer.
    Collector("filesystems", filesystems, "/proc/self/mounts, statvfs", pause=60.0),
    Collector("cgroups", cgroups, "/sys/fs/cgroup", options={"only": ""}),
    # Costs some 30 µs per process, too much for every second with thousands of processes.
    Collector(
        "processes",
        processes,
        "/proc/PID",
        pause=5.0,
        options={"threads": False, "pss": False, "others": True, "without": 0},
    ),
    # A row takes some 30 µs, so that 2,000 of them per second take less than a tenth of a core.
    Collector(
        ENDS,
        lazy_ends,
        "taskstats and the process connector of the kernel",
        options={"most_per_second": 2000},
        optional=True,
    ),
    Collector("kernel_log", lazy_kernel_log, "/dev/kmsg", optional=True),
    Collector("gpu", lazy_gpus, "NVML, /sys/class/drm", options={"pcie": False}, optional=True),
    Collector(
        "energy",
        lazy_energy,
        "/sys/class/powercap, /sys/class/hwmon, /sys/cray/pm_counters",
        optional=True,
    ),
    # For every counter the driver queries the adapter's firmware, and some nodes have ten adapters.
    Collector("infiniband", lazy_infiniband, "/sys/class/infiniband", pause=5.0, optional=True),
    # Fifty files per adapter, each read from the card.
    Collector("slingshot", lazy_slingshot, "/sys/class/cxi", pause=5.0, optional=True),
    Collector(
        "lustre", lazy_lustre, "/sys/kernel/debug/lustre/llite or /proc/fs/lustre/llite", optional=True
    ),
    Collector("nfs", lazy_nfs, "/proc/self/mountstats", optional=True),
)
