"""Starting the command as whoever typed it would have: same environment but for what is named, same signals,
same words.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import Any, Dict, List, Mapping, Set

VARIABLE = "JOBLENS_RUN"  # names the folder of the run to all that it starts
_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # which it ignores, and a command would inherit that
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM)


class NotStartedError(OSError):
    """The command cannot be run: nothing of joblens has failed."""


class NoRoomError(OSError):
    """There is no room for another process: the command can still take the place of this one."""


def spawn(command: List[str], mask: Set[Any], more: Mapping[bytes, bytes] = {}) -> int:
    """The pid. The kernel makes no copy of joblens for it, so that none counts as the command's."""
    try:
        return _spawn(command, mask, more)
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            return _spawn(as_script(command), mask, more)
        kind = NoRoomError if error.errno in _NO_ROOM else NotStartedError
        raise kind(error.errno, error.strerror, command[0]) from None


def _spawn(command: List[str], mask: Set[Any], more: Mapping[bytes, bytes]) -> int:
    given = {**environment(), **more}
    return os.posix_spawnp(command[0], command, given, setsigmask=mask, setsigdef=_BY_PYTHON)


def become(command: List[str]) -> None:
    """This process becomes the command, or raises NotStartedError."""
    for number in _BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    for words in (command, as_script(command)):
        try:
            os.execvpe(words[0], words, environment())  # noqa: S606 (a shell would change what was typed)
        except OSError as error:
            if error.errno != errno.ENOEXEC or words is not command:
                raise NotStartedError(error.errno, error.strerror, command[0]) from None


def as_script(command: List[str]) -> List[str]:
    """A text without `#!` is the shell's, as execvp(3) has it."""
    import shutil

    return ["/bin/sh", shutil.which(command[0]) or command[0], *command[1:]]


def environment() -> Dict[bytes, bytes]:
    """As we were given it: in the C locale Python adds LC_CTYPE to its own (PEP 538)."""
    found = dict(os.environb)
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read().split(b"\0")
    except OSError:
        return found
    if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
        found.pop(b"LC_CTYPE", None)
    return found
