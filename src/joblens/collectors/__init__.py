"""The table of collectors: one source of the kernel's is one file here is one line below.

A collector is a function that takes a host and returns the function that reads it once. What it may
not do: run commands, need root silently, know about jobs or stores, turn counters into rates.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Tuple

from joblens.collectors.cgroups import cgroups
from joblens.collectors.cpu import cpu
from joblens.collectors.disk import disk
from joblens.collectors.filesystems import filesystems
from joblens.collectors.interrupts import interrupts
from joblens.collectors.load import load
from joblens.collectors.memory import memory
from joblens.collectors.network import network
from joblens.collectors.pressure import pressure
from joblens.collectors.processes import processes
from joblens.collectors.vmstat import vmstat
from joblens.model import Rows

Read = Callable[[], Tuple[Rows, ...]]


class Collector(NamedTuple):
    name: str
    open: Callable[..., Read]  # (host, **options) -> read
    reads: str
    every: int = 1  # of the agent's interval, unless the configuration says otherwise
    options: Mapping[str, Any] = {}  # what else can be set, with its default


COLLECTORS: Tuple[Collector, ...] = (
    Collector("cpu", cpu, "/proc/stat"),
    Collector("memory", memory, "/proc/meminfo"),
    Collector("vmstat", vmstat, "/proc/vmstat"),
    Collector("interrupts", interrupts, "/proc/interrupts", options={"per_cpu": False}),
    Collector("load", load, "/proc/loadavg"),
    Collector("disk", disk, "/proc/diskstats"),
    Collector("network", network, "/proc/net/dev"),
    Collector("pressure", pressure, "/proc/pressure"),
    # Sizes change slowly, and a file system can take its time to answer.
    Collector("filesystems", filesystems, "/proc/self/mounts, statvfs", every=60),
    Collector("cgroups", cgroups, "/sys/fs/cgroup"),
    # Costs some 30 µs per process, which on a node with thousands is much for every second.
    Collector("processes", processes, "/proc/PID", every=5, options={"threads": False}),
)
