"""File descriptors: the command's are its own, and ours never in its way."""

from __future__ import annotations

import os
import select
from typing import Iterable, List, Optional, Tuple

_FIRST_OWN = 3  # streams that were closed when we began stay so: nothing of ours takes their numbers


def pipe() -> Tuple[int, int]:
    """Its two ends, which the command does not inherit."""
    import fcntl

    ends = os.pipe()
    try:
        return (
            fcntl.fcntl(ends[0], fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN),
            fcntl.fcntl(ends[1], fcntl.F_DUPFD_CLOEXEC, _FIRST_OWN),
        )
    finally:
        for end in ends:
            os.close(end)


def let_go(streams: Iterable[int], keep: Iterable[int]) -> None:
    """Of the streams, and of all else that we inherited: whoever is at the other end of a pipe must see
    it closed when the command closes it."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)
    kept = {0, 1, 2, *keep}
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:  # that with which the folder was listed
                continue


def wait_readable(ends: List[int], seconds: Optional[float]) -> List[int]:
    """Those that have something, or are at their end. Not select(2), which knows no number above 1023."""
    poller = select.poll()
    for end in ends:
        poller.register(end, select.POLLIN)
    return [end for end, _ in poller.poll(None if seconds is None else max(seconds, 0.0) * 1000)]


def write_all(fd: int, data: bytes) -> None:
    """All of it, also where the command has left the stream non-blocking. Gives up where nobody reads."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            poller = select.poll()
            poller.register(fd, select.POLLOUT)
            poller.poll()
        except OSError:
            return
