"""File descriptors and the terminal, which the command has as if joblens were not there."""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterable, List, Optional, Tuple

_FIRST_OWN = 3  # the numbers of standard streams that are closed stay free
_TERMINAL = "/dev/tty"


def pipe() -> Tuple[int, int]:
    """Return both ends, which the command does not inherit."""
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


def release(streams: Iterable[int], keep: Iterable[int]) -> None:
    """Redirect the streams to /dev/null and close all other inherited descriptors: the reader of a pipe must
    see its end when the command closes it."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in streams:
        os.dup2(null, stream)
    kept = {0, 1, 2, *keep}
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:  # the descriptor of the listing itself
                continue


def wait_readable(ends: List[int], seconds: Optional[float]) -> List[int]:
    """Return those that are readable or at their end. select(2) cannot handle descriptors above 1023."""
    poller = select.poll()
    for end in ends:
        poller.register(end, select.POLLIN)
    return [end for end, _ in poller.poll(None if seconds is None else max(seconds, 0.0) * 1000)]


def write_all(fd: int, data: bytes) -> None:
    """Write all data, also if the command has made the stream non-blocking. Give up if it has no reader."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            poller = select.poll()
            poller.register(fd, select.POLLOUT)
            poller.poll()
        except OSError:
            return


def foreground() -> int:
    """Return the foreground process group of the terminal, 0 without a terminal."""
    try:
        fd = os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return 0
    try:
        return os.tcgetpgrp(fd)
    except OSError:
        return 0
    finally:
        os.close(fd)


def set_foreground(group: int) -> None:
    """Make `group` the foreground process group. SIGTTOU must be blocked: the caller may be in the
    background."""
    try:
        fd = os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return
    try:
        os.tcsetpgrp(fd, group)
    except OSError:  # the group or the terminal is gone
        return
    finally:
        os.close(fd)
