"""Both sockets: records of ended threads, and events of processes."""

from __future__ import annotations

import errno
import os
from typing import List

from joblens.collectors.ends.connector import Connector, Event
from joblens.collectors.ends.taskstats import Taskstats
from joblens.core.host import Host

_FIRST_USER_NAMESPACE = 0xEFFFFFFD  # PROC_USER_INIT_INO of include/linux/proc_ns.h


class KernelEnds:
    """Raises FileNotFoundError or PrivilegeError, with the reason, where the kernel reports none."""

    def __init__(self, host: Host) -> None:
        if not host.live:
            raise FileNotFoundError(errno.ENOENT, "a recording has no events")
        _check_namespaces(host)
        self._taskstats = Taskstats(host)
        try:
            self._connector = Connector()
        except Exception:
            self._taskstats.close()
            raise

    @property
    def lost(self) -> int:
        return self._connector.numbers.lost

    @property
    def overruns(self) -> int:
        return self._connector.overruns + self._taskstats.overruns

    @property
    def received_ends(self) -> int:
        return self._taskstats.received

    @property
    def received_events(self) -> int:
        return self._connector.received

    def receive_ends(self, most: int) -> List[bytes]:
        found: List[bytes] = []
        self._taskstats.receive(found.append, most)
        return found

    def receive_events(self, most: int) -> List[Event]:
        found: List[Event] = []
        self._connector.receive(found.append, most)
        return found

    def close(self) -> None:
        self._taskstats.close()
        self._connector.close()


def _check_namespaces(host: Host) -> None:
    """In others the kernel accepts the connector's request and sends nothing, or refuses taskstats."""
    if not host.counts_pids_as_kernel():
        raise FileNotFoundError(
            errno.ENOENT, "ends of processes are reported in the first pid namespace only"
        )
    try:
        is_first = os.stat("/proc/self/ns/user").st_ino == _FIRST_USER_NAMESPACE
    except OSError:
        is_first = True  # a kernel without user namespaces
    if not is_first:
        raise FileNotFoundError(
            errno.ENOENT, "ends of processes are reported in the first user namespace only"
        )
