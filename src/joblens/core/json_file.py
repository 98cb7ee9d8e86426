"""Bounded reading of files, and strict JSON: no NaN, infinity or numbers beyond 64 bits."""

from __future__ import annotations

import errno
import math
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Union

_LONGEST_NUMBER = 20  # a sign and the digits of 64 bits


def read_file(path: str, most_bytes: int) -> bytes:
    """Read a regular file. Raises OSError, also for a pipe or device in its place, without blocking."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", path)
    return data


def parse_json(data: Union[bytes, str]) -> Any:
    """Raises ValueError for any defect, also for infinite or huge numbers and for deep nesting.

    These would raise other errors in later computations.
    """
    import json

    try:
        return json.loads(data, parse_float=_finite, parse_int=_whole, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deep") from None


def render_json(plain: object) -> bytes:
    """Return JSON that any program can read: question marks for what is not UTF-8, no NaN, no infinity."""
    encode = _make_encoder(": ", ", ", ascii_only=False)
    try:
        text = encode(plain)
    except ValueError:
        text = encode(_without_nan(plain))
    return text.encode("utf-8", "replace")


def compact_json(plain: object) -> bytes:
    """Return ASCII without spaces. Raises ValueError for NaN and infinity."""
    return _make_encoder(":", ",", ascii_only=True)(plain).encode("ascii")


def _make_encoder(colon: str, comma: str, ascii_only: bool) -> Callable[[object], str]:
    """Return the encoder of the json module, if possible without its decoder.

    That loads the regular expressions, which takes longer than three samples of `joblens run`.
    """
    try:
        from _json import encode_basestring, encode_basestring_ascii, make_encoder

        quote = encode_basestring_ascii if ascii_only else encode_basestring
        encode = make_encoder(None, _refuse_type, quote, None, colon, comma, False, False, False)
    except (ImportError, TypeError):  # not CPython, or another version of this internal module
        import json

        return json.JSONEncoder(ensure_ascii=ascii_only, allow_nan=False, separators=(comma, colon)).encode
    return lambda plain: "".join(encode(plain, 0))


def _refuse_type(value: object) -> None:
    raise TypeError(f"an object of type {type(value).__name__} cannot be JSON")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(found) for name, found in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(found) for found in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
    raise ValueError(f"{text[:20]} is out of range")
