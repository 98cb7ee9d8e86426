"""What a job was given of a node's GPUs: by a job file, by its environment, or by the devices that its cgroup
may open (v1; a v2 group keeps these in a program that cannot be read).
"""

from __future__ import annotations

from typing import FrozenSet, NamedTuple, Optional, Set, Tuple

from joblens.collectors.cgroup_files import parse_mounts
from joblens.core.host import Host

JobName = Tuple[str, str, str]  # cluster, job and node


class Given(NamedTuple):
    """Each as UUID, index, VENDOR:INDEX, bus address, or MAJOR:MINOR of the device file."""

    ids: FrozenSet[str]
    how: str


class DeviceLists:
    """What the groups of jobs may open. Read each time: at first a job's group may open what all may."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def of_group(self, path: str) -> Optional[FrozenSet[str]]:
        """None where it may open all, or nothing is known."""
        try:
            folder = parse_mounts(self.host.read("proc/self/mounts")).v1.get("devices")
            if folder is None:
                return None
            return parse_devices(self.host.read_once(f"{folder}{path}/devices.list"))
        except OSError:
            return None


def parse_devices(data: bytes) -> Optional[FrozenSet[str]]:
    """The devices that can be read and written, as MAJOR:MINOR; None if that is all, or of a whole kind."""
    found: Set[str] = set()
    for line in data.decode("ascii", "replace").splitlines():
        words = line.split()
        if len(words) != 3 or words[0] == "a":
            return None
        if words[0] == "c" and "r" in words[2] and "w" in words[2]:
            found.add(words[1])
    return frozenset(found)
