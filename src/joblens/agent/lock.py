"""The spool's lock file: held while an agent runs, and what the next one must know if this one is killed."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple, Optional

from joblens.core.errors import ConfigError, sentence
from joblens.core.json_file import parse_json

_SIZE = 512  # always as long, so that it is written in place: also where the disk is full


class Last(NamedTuple):
    """How far an agent has come."""

    boot: str
    sequence: int  # the last number that it gave
    to_ns: int  # of the last sample that is no longer in memory only
    ended: bool = False  # by itself, with nothing left in memory
    turn: int = 0  # of its batches in the spool; 0: noted by a version that did not


class Lock:
    """Raises ConfigError if another agent holds it."""

    def __init__(self, folder: str) -> None:
        self._fd = _take(folder)
        self.damage = ""  # of what the agent before has noted

    def load(self) -> Optional[Last]:
        """What the agent before has noted; None if nobody has, or the file is damaged."""
        try:
            noted = os.pread(self._fd, _SIZE, 0)
            if not noted:
                return None
            found = parse_json(noted)
            boot, sequence, to_ns, ended = (found[name] for name in Last._fields[:4])
            return Last(str(boot), int(sequence), int(to_ns), bool(ended), int(found.get("turn", 0)))
        except (OSError, ValueError, TypeError, KeyError) as error:
            self.damage = f"lock: {sentence(error)}"
            return None

    def note(self, last: Last) -> None:
        """Into the kernel's memory, which outlives this process. Where that fails the older note stays."""
        import json

        try:
            os.pwrite(self._fd, json.dumps(last._asdict()).encode().ljust(_SIZE - 1) + b"\n", 0)
        except OSError:
            return

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _take(folder: str) -> int:
    import fcntl

    fd = os.open(f"{folder}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ConfigError("another agent uses this spool", folder) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            os.close(fd)
            raise
    return fd
