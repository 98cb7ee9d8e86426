"""Files of one number each, as sysfs has them. A counter that is not offered is absent, and no error."""

from __future__ import annotations

import errno
from typing import Tuple

from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT

_LARGEST = 1 << 63
# What a driver answers for a counter that it does not have, may not show, or has lost with its device.
NOT_TOLD = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EACCES,
        errno.EPERM,
        errno.EINVAL,
        errno.EIO,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENODATA,
        errno.EOPNOTSUPP,
        errno.EBUSY,
        errno.EAGAIN,
        errno.ETIMEDOUT,
    )
)


def parse_number(path: str, word: bytes) -> int:
    """What would not fit into 64 bits with a sign is one that ran below zero: nobody knows it."""
    if not word.isdigit() or len(word) > 20:
        raise MalformedError(path, f"not a number: {word[:80]!r}")
    number = int(word)
    return number if number < _LARGEST else ABSENT


def read_number(host: Host, path: str) -> int:
    try:
        data = host.read(path)
    except OSError as error:
        if error.errno not in NOT_TOLD:
            raise
        return ABSENT
    return parse_number(path, data.strip())


def natural(name: str) -> Tuple[int, str]:
    """A key that sorts cxi2 before cxi10."""
    return len(name), name
