"""The table of collectors: one source of the kernel's is one file here is one line below.

A collector is a function that takes a host and returns the function that reads it once. What it may
not do: run commands, need root silently, know about jobs or stores, turn counters into rates. What a site
wants beyond that it can have from a script of its own, see `external.py`.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Tuple

from joblens.collectors.cgroups import SCHEMA as CGROUP
from joblens.collectors.cgroups import cgroups
from joblens.collectors.cpu import KERNEL, cpu
from joblens.collectors.cpu import SCHEMA as CPU
from joblens.collectors.disk import SCHEMA as DISK
from joblens.collectors.disk import disk
from joblens.collectors.energy import energy
from joblens.collectors.energy_reading import SCHEMA as ENERGY
from joblens.collectors.filesystems import SCHEMA as FILESYSTEMS
from joblens.collectors.filesystems import filesystems
from joblens.collectors.gpu_amd import AMD as GPU_AMD
from joblens.collectors.gpu_intel import INTEL as GPU_INTEL
from joblens.collectors.gpu_jetson import RAIL as JETSON_RAIL
from joblens.collectors.gpu_jetson import ZONE as JETSON_ZONE
from joblens.collectors.gpu_nvidia_extras import GPU_NVIDIA
from joblens.collectors.gpu_reading import GPU, GPU_PROCESS
from joblens.collectors.gpus import DRIVER as GPU_DRIVER
from joblens.collectors.gpus import gpus
from joblens.collectors.infiniband import SCHEMA as INFINIBAND
from joblens.collectors.infiniband import infiniband
from joblens.collectors.interrupts import ALL_CORES as INTERRUPTS
from joblens.collectors.interrupts import interrupts
from joblens.collectors.kernel_log import EVENT_COUNT as KERNEL_EVENT
from joblens.collectors.kernel_log import LOG as KERNEL_LOG
from joblens.collectors.kernel_log import kernel_log
from joblens.collectors.load import SCHEMA as LOAD
from joblens.collectors.load import load
from joblens.collectors.lustre import SCHEMA as LUSTRE
from joblens.collectors.lustre import lustre
from joblens.collectors.memory import SCHEMA as MEMORY
from joblens.collectors.memory import memory
from joblens.collectors.network import SCHEMA as NETWORK
from joblens.collectors.network import network
from joblens.collectors.nfs import NFS, nfs
from joblens.collectors.nfs import OPERATION as NFS_OPERATION
from joblens.collectors.pressure import SCHEMA as PRESSURE
from joblens.collectors.pressure import pressure
from joblens.collectors.processes import PROCESS, THREAD, processes
from joblens.collectors.pss import PROCESS_PSS
from joblens.collectors.slingshot import SCHEMA as SLINGSHOT
from joblens.collectors.slingshot import slingshot
from joblens.collectors.vmstat import SCHEMA as VMSTAT
from joblens.collectors.vmstat import vmstat
from joblens.model import Rows, Schema

Read = Callable[[], Tuple[Rows, ...]]


class Collector(NamedTuple):
    name: str
    open: Callable[..., Read]  # (host, **options) -> read
    reads: str
    schemas: Tuple[Schema, ...]  # as documented; `memory` and `vmstat` have a column for every other line too
    pause: float = 0.0  # seconds between two readings at the least, unless the configuration says otherwise
    options: Mapping[str, Any] = {}  # what else can be set, with its default
    optional: bool = False  # hardware that most machines do not have: nothing is said where it is not there


COLLECTORS: Tuple[Collector, ...] = (
    Collector("cpu", cpu, "/proc/stat", (CPU, KERNEL)),
    Collector("memory", memory, "/proc/meminfo", (MEMORY,)),
    Collector("vmstat", vmstat, "/proc/vmstat", (VMSTAT,)),
    Collector("interrupts", interrupts, "/proc/interrupts", (INTERRUPTS,), options={"per_cpu": False}),
    Collector("load", load, "/proc/loadavg", (LOAD,)),
    Collector("disk", disk, "/proc/diskstats", (DISK,)),
    Collector("network", network, "/proc/net/dev", (NETWORK,)),
    Collector("pressure", pressure, "/proc/pressure", (PRESSURE,)),
    # Sizes change slowly, and a file system can take its time to answer.
    Collector("filesystems", filesystems, "/proc/self/mounts, statvfs", (FILESYSTEMS,), pause=60.0),
    Collector("cgroups", cgroups, "/sys/fs/cgroup", (CGROUP,)),
    # Costs some 30 µs per process, which on a node with thousands is much for every second.
    Collector(
        "processes",
        processes,
        "/proc/PID",
        (PROCESS, THREAD, PROCESS_PSS),
        pause=5.0,
        options={"threads": False, "pss": False},
    ),
    Collector("kernel_log", kernel_log, "/dev/kmsg", (KERNEL_LOG, KERNEL_EVENT), optional=True),
    Collector(
        "gpu",
        gpus,
        "NVML, /sys/class/drm",
        (GPU, GPU_PROCESS, GPU_DRIVER, GPU_NVIDIA, GPU_AMD, GPU_INTEL, JETSON_RAIL, JETSON_ZONE),
        options={"pcie": False},
        optional=True,
    ),
    Collector(
        "energy",
        energy,
        "/sys/class/powercap, /sys/class/hwmon, /sys/cray/pm_counters",
        (ENERGY,),
        optional=True,
    ),
    # For every counter the driver asks the adapter's firmware, and some nodes have ten adapters.
    Collector("infiniband", infiniband, "/sys/class/infiniband", (INFINIBAND,), pause=5.0, optional=True),
    # Fifty files per adapter, each of which is read from the card.
    Collector("slingshot", slingshot, "/sys/class/cxi", (SLINGSHOT,), pause=5.0, optional=True),
    Collector(
        "lustre",
        lustre,
        "/sys/kernel/debug/lustre/llite or /proc/fs/lustre/llite",
        (LUSTRE,),
        optional=True,
    ),
    Collector("nfs", nfs, "/proc/self/mountstats", (NFS, NFS_OPERATION), optional=True),
)
