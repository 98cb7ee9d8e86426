"""Which process group has the terminal."""

from __future__ import annotations

import os

_TERMINAL = "/dev/tty"


def foreground() -> int:
    """The group in front, 0 without a terminal."""
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


def bring_to_front(group: int) -> None:
    """SIGTTOU is to be blocked: whoever gives the terminal away may be behind."""
    try:
        fd = os.open(_TERMINAL, os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return
    try:
        os.tcsetpgrp(fd, group)
    except OSError:  # the group is gone, or the terminal
        return
    finally:
        os.close(fd)
