"""Collectors of devices, imported only if the machine has such a device."""

from __future__ import annotations

import os

from joblens.core.host import Host
from joblens.core.model import Rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Tuple

    from joblens.collectors.ends.source import KernelEnds

    Read = Callable[[], Tuple[Rows, ...]]

_GPU_FILES = (
    "dev/nvidiactl", "dev/dxg", "proc/driver/nvidia", "sys/class/kfd", "proc/device-tree/compatible",
)  # fmt: skip
_LIBRARY, _PROGRAM = "libnvidia-ml.so.1", "nvidia-smi"


def _need(host: Host, *paths: str) -> None:
    if not any(host.exists(path) for path in paths):
        raise FileNotFoundError(2, "not found", host.root + paths[0])


def lazy_gpus(host: Host, **options: Any) -> Read:
    if not may_have_gpus(host):
        raise FileNotFoundError(2, "no GPU driver", host.root + "dev")
    from joblens.collectors.gpu.collector import gpus

    return gpus(host, **options)


def may_have_gpus(host: Host) -> bool:
    if any(host.exists(path) for path in _GPU_FILES) or _has_card(host):
        return True
    return host.live and (_is_in("LD_LIBRARY_PATH", _LIBRARY) or _is_in("PATH", _PROGRAM))


def _has_card(host: Host) -> bool:
    return any(name.startswith("card") for name in host.list_if_there("sys/class/drm"))


def _is_in(variable: str, name: str) -> bool:
    folders = os.environ.get(variable, "").split(os.pathsep)
    return any(os.path.exists(os.path.join(folder, name)) for folder in folders if folder)


def lazy_energy(host: Host) -> Read:
    _need(host, "sys/class/powercap", "sys/class/hwmon", "sys/cray/pm_counters")
    from joblens.collectors.energy.collector import energy

    return energy(host)


def lazy_infiniband(host: Host) -> Read:
    _need(host, "sys/class/infiniband")
    from joblens.collectors.infiniband import infiniband

    return infiniband(host)


def lazy_slingshot(host: Host) -> Read:
    _need(host, "sys/class/cxi")
    from joblens.collectors.slingshot import slingshot

    return slingshot(host)


def lazy_lustre(host: Host) -> Read:
    _need(host, "sys/kernel/debug/lustre", "proc/fs/lustre", "sys/fs/lustre")
    from joblens.collectors.lustre import lustre

    return lustre(host)


def lazy_nfs(host: Host) -> Read:
    """Every kernel has the file; the module is imported only if it lists an NFS mount."""
    if b" nfs" not in host.read("proc/self/mountstats"):
        raise FileNotFoundError(2, "no NFS file system is mounted", host.root + "proc/self/mountstats")
    from joblens.collectors.nfs import nfs

    return nfs(host)


def lazy_ends(host: Host) -> KernelEnds:
    """Return the sockets: joblens.attribution.ends finds the jobs of what they report."""
    from joblens.collectors.ends.source import KernelEnds

    return KernelEnds(host)


def lazy_kernel_log(host: Host) -> Read:
    _need(host, "dev/kmsg")
    from joblens.collectors.kernel_log import kernel_log

    return kernel_log(host)
