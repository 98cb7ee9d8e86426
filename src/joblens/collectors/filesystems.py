"""`filesystems`: size and free space of local file systems.

Network file systems are left out: statvfs on a dead server blocks, and the agent with it.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, List, Tuple

from joblens.core.host import Host
from joblens.core.model import GAUGE, Column, Key, Rows, Schema

_MOUNTS = "proc/self/mounts"
LOCAL = frozenset("bcachefs btrfs ext2 ext3 ext4 f2fs jfs overlay reiserfs tmpfs vfat xfs zfs".split())
_HIDDEN = ("/proc", "/sys", "/dev", "/run/credentials", "/run/user", "/var/lib/docker", "/snap")
_ESCAPE = re.compile(rb"\\([0-7]{3})")
SCHEMA = Schema(
    "filesystems",
    ("mountpoint", "device", "type"),
    (
        Column("size_bytes", GAUGE, "size of the file system"),
        Column("free_bytes", GAUGE, "free space, including that reserved for root"),
        Column("available_bytes", GAUGE, "free space available to users"),
        Column("files", GAUGE, "total inodes"),
        Column("files_free", GAUGE, "free inodes"),
    ),
)


def filesystems(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    def read() -> Tuple[Rows, ...]:
        keys: List[Key] = []
        values: List[int] = []
        for mountpoint, device, kind in parse_mounts(host.read_once(_MOUNTS)):
            try:
                space = host.space(mountpoint)
            except OSError:  # unmounted since, or inaccessible
                continue
            if space is None:
                continue
            size = space.block_size
            keys.append((mountpoint, device, kind))
            values += (space.blocks * size, space.free * size, space.available * size)
            values += (space.inodes, space.inodes_free)
        return (Rows(SCHEMA, tuple(keys), values),)

    return read


def parse_mounts(data: bytes) -> List[Tuple[str, str, str]]:
    """Return mount point, device and type of local file systems, each device once; escapes as in fstab(5)."""
    found: Dict[str, Tuple[str, str, str]] = {}
    for line in data.split(b"\n"):
        fields = line.split(b" ")
        if len(fields) < 4:
            continue
        device, mountpoint, kind = (unescape(field) for field in fields[:3])
        if kind not in LOCAL or mountpoint.startswith(_HIDDEN):
            continue
        identity = mountpoint if kind in ("tmpfs", "overlay") else device
        if identity not in found or len(mountpoint) < len(found[identity][0]):
            found[identity] = (mountpoint, device, kind)
    mountpoints = {entry[0]: entry for entry in found.values()}  # the last mount hides those below it
    return list(mountpoints.values())


def unescape(field: bytes) -> str:
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 8) & 255]), field).decode(
        "utf-8", "surrogateescape"
    )
