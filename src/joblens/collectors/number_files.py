"""Files with one number each, as in sysfs. A counter that is unavailable is ABSENT, not an error."""

from __future__ import annotations

import errno
from typing import Tuple

from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import ABSENT

_LARGEST = 1 << 63
# Returned by drivers for a counter that does not exist, is not permitted, or was lost with its device.
UNAVAILABLE = frozenset(
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
    """A number beyond 63 bits is a counter that went below zero: ABSENT."""
    if not word.isdigit() or len(word) > 20:
        raise MalformedError(path, f"not a number: {word[:80]!r}")
    number = int(word)
    return number if number < _LARGEST else ABSENT


def read_number(host: Host, path: str) -> int:
    try:
        data = host.read(path)
    except OSError as error:
        if error.errno not in UNAVAILABLE:
            raise
        return ABSENT
    return parse_number(path, data.strip())


def natural(name: str) -> Tuple[int, str]:
    """A key that sorts cxi2 before cxi10."""
    return len(name), name
