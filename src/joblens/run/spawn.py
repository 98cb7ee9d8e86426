"""Starts the command as a shell would: same arguments and signals, same environment plus one variable."""

from __future__ import annotations

import errno
import os

from joblens.run.plain_signal import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Set

VARIABLE = "JOBLENS_RUN"  # names the folder of the run to its processes
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # a command would inherit that
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM)


class NotStartedError(OSError):
    """The command cannot be run; joblens itself has not failed."""


class NoRoomError(OSError):
    """No further process can be created; exec(2) in this one is still possible."""


def spawn(command: List[str], mask: Set[Any], more: Mapping[bytes, bytes] = {}) -> int:
    """Return the pid. posix_spawn does not copy joblens, so that its memory does not count as the
    command's."""
    try:
        return _spawn(command, mask, more)
    except ValueError:  # its name is empty
        raise NotStartedError(errno.ENOENT, os.strerror(errno.ENOENT), command[0]) from None
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            return _spawn(as_script(command), mask, more)
        kind = NoRoomError if error.errno in _NO_ROOM else NotStartedError
        raise kind(error.errno, error.strerror, command[0]) from None


def _spawn(command: List[str], mask: Set[Any], more: Mapping[bytes, bytes]) -> int:
    given = {**environment(), **more}
    return os.posix_spawnp(command[0], command, given, setsigmask=mask, setsigdef=_IGNORED_BY_PYTHON)


def become(command: List[str]) -> None:
    """Replace this process by the command. Raises NotStartedError."""
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    for words in (command, as_script(command)):
        try:
            os.execvpe(words[0], words, environment())  # noqa: S606 (a shell would change the arguments)
        except OSError as error:
            if error.errno != errno.ENOEXEC or words is not command:
                raise NotStartedError(error.errno, error.strerror, command[0]) from None


def as_script(command: List[str]) -> List[str]:
    """Run a file without `#!` with the shell, as execvp(3) does."""
    import shutil

    return ["/bin/sh", shutil.which(command[0]) or command[0], *command[1:]]


def environment() -> Dict[bytes, bytes]:
    """Return the original environment: in the C locale Python adds LC_CTYPE to its own (PEP 538)."""
    found = dict(os.environb)
    try:
        with open("/proc/self/environ", "rb") as file:
            given = file.read().split(b"\0")
    except OSError:
        return found
    if not any(entry.startswith(b"LC_CTYPE=") for entry in given):
        found.pop(b"LC_CTYPE", None)
    return found
