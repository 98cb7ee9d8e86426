"""Files that are read whole, and JSON in them, with nothing in it that others could not read either."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, Union

_LONGEST_NUMBER = 20  # digits and a sign: whole numbers have 64 bits


def read_file(path: str, most_bytes: int) -> bytes:
    """Raises OSError, also of what is no plain file: a pipe in its place is not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", path)
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", path)
    return data


def parse_json(data: Union[bytes, str]) -> Any:
    """Raises ValueError, whatever it is: also for infinite or huge numbers, and for deep nesting.

    Those raise errors of other kinds in whoever computes with them.
    """
    import json

    try:
        return json.loads(data, parse_float=_finite, parse_int=_whole, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def load_json(path: str, most_bytes: int) -> Any:
    """Raises OSError and ValueError."""
    return parse_json(read_file(path, most_bytes))


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        _refuse(text)
    return number


def _whole(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        _refuse(text)
    return int(text)


def _refuse(text: str) -> None:
    raise ValueError(f"{text[:20]} is no number that can be stored")
