"""The process connector: events of forks, execs and exits (include/uapi/linux/cn_proc.h).

Each core numbers its events, so that the number of lost ones is known exactly.
"""

from __future__ import annotations

import errno
import struct
from typing import Callable, Dict, NamedTuple

from joblens.collectors.ends.netlink import Netlink
from joblens.core.errors import MalformedError

FORK, EXEC, SESSION, EXIT = 0x1, 0x2, 0x80, 0x80000000
_WHAT = "process connector"
_CONNECTOR, _GROUP, _DONE = 11, 1, 3  # NETLINK_CONNECTOR, CN_IDX_PROC and CN_VAL_PROC, NLMSG_DONE
_CN_HEADER = struct.Struct("=IIIIHH")
_LISTEN = struct.Struct("=I").pack(1)
_ACKNOWLEDGED = 0
# The number of the event, what it is, the core, the time, and what the event has.
_EVENT = struct.Struct("=24xI8xIIQ6I")


class Event(NamedTuple):
    number: int
    what: int
    cpu: int
    time_ns: int  # by the monotonic clock
    # Fork: thread and process of the parent, thread and process of the child. Others: thread and process;
    # exit also has the status.
    a: int
    b: int
    c: int
    d: int
    e: int
    f: int


def parse_event(data: bytes) -> Event:
    if len(data) < _EVENT.size:
        raise MalformedError(_WHAT, f"an event of {len(data)} bytes")
    return Event(*_EVENT.unpack_from(data))


class Numbers:
    """Counts gaps in the numbers of each core."""

    def __init__(self) -> None:
        self.lost = 0
        self._next: Dict[int, int] = {}

    def take(self, cpu: int, number: int) -> None:
        gap = (number - self._next.get(cpu, number)) & 0xFFFFFFFF
        if gap < 1 << 31:  # else it was sent before an event that has been received already
            self.lost += gap
            self._next[cpu] = (number + 1) & 0xFFFFFFFF


class Connector:
    """Receives the events of all processes of the machine. Raises as `Netlink` does."""

    def __init__(self) -> None:
        self._netlink = Netlink(_CONNECTOR, _GROUP, _WHAT)
        self.received = 0
        self.numbers = Numbers()
        try:
            self._netlink.send(_DONE, 0, _CN_HEADER.pack(_GROUP, _GROUP, 0, 0, len(_LISTEN), 0) + _LISTEN)
            self._wait_for_acknowledgement()
        except Exception:
            self._netlink.close()
            raise

    def _wait_for_acknowledgement(self) -> None:
        """Others may listen already, so that events come first."""
        for _ in range(10_000):
            event = parse_event(self._netlink.reply())
            if event.what == _ACKNOWLEDGED:
                if event.a == 0:
                    return
                break
        raise FileNotFoundError(errno.ENOENT, f"{_WHAT}: the kernel refuses it")

    def close(self) -> None:
        self._netlink.close()

    @property
    def overruns(self) -> int:
        return self._netlink.overruns

    def receive(self, take: Callable[[Event], None], most: int) -> None:
        numbers = self.numbers

        def count(data: bytes) -> None:
            event = parse_event(data)
            if event.what != _ACKNOWLEDGED:
                numbers.take(event.cpu, event.number)
                take(event)

        self.received += self._netlink.receive(count, most)
