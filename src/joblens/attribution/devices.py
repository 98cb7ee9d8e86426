"""Which GPUs were assigned to a job: by a job file, its environment, or the devices that its cgroup may open
(v1; v2 has them in a BPF program, which cannot be read).
"""

from __future__ import annotations

from typing import FrozenSet, Optional, Set, Tuple

from joblens.collectors.cgroup_files import parse_mounts
from joblens.core.host import Host
from joblens.core.named_tuple import NamedTuple

JobName = Tuple[str, str, str]  # cluster, job and node


class Given(NamedTuple):
    """Each as UUID, index, VENDOR:INDEX, bus address, or MAJOR:MINOR of the device file."""

    ids: FrozenSet[str]
    how: str


class DeviceLists:
    """Devices that the cgroups of jobs may open. Read each time: a new cgroup may first open all."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def of_group(self, path: str) -> Optional[FrozenSet[str]]:
        """None if it may open all devices, or they are unknown."""
        try:
            folder = parse_mounts(self.host.read("proc/self/mounts")).v1.get("devices")
            if folder is None:
                return None
            return parse_devices(self.host.read_once(f"{folder}{path}/devices.list"))
        except OSError:
            return None


def parse_devices(data: bytes) -> Optional[FrozenSet[str]]:
    """Return the devices with read and write access as MAJOR:MINOR; None if that is all or a whole class."""
    found: Set[str] = set()
    for line in data.decode("ascii", "replace").splitlines():
        words = line.split()
        if len(words) != 3 or words[0] == "a":
            return None
        if words[0] == "c" and "r" in words[2] and "w" in words[2]:
            found.add(words[1])
    return frozenset(found)
