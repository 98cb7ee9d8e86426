"""Masks what looks like a password, token or key in command lines."""

from __future__ import annotations

import re
from functools import cache
from typing import List, Pattern, Tuple

_NAME = (
    r"(?:password|passwd|passphrase|secrets?|token|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credentials?|authorization|bearer)(?![a-z])[\w.-]{0,40}"
)
_HIDDEN = "***"


@cache
def _patterns() -> Tuple[Pattern[str], Pattern[str], Pattern[str]]:
    assigned = rf"{_NAME}[\"']?[=:][\s\"']*(?:(?:bearer|basic)\s+)?"
    value = rf"({assigned}|\bbearer\s+|-[\w.-]{{0,40}}{_NAME}\s+)[^\s\"'&;,]+"
    return (
        re.compile(value, re.IGNORECASE),
        re.compile(r"(://[^\s/@:]*:)[^\s/@]+(?=@)"),
        re.compile(rf"-[\w.-]{{0,40}}{_NAME}", re.IGNORECASE),
    )


def mask_arguments(arguments: List[str]) -> str:
    """Return the command line with `***` for each value of a secret: `--token=V`, `--token V`, `TOKEN=V`,
    `https://user:V@host`, `Authorization: Bearer V`."""
    value, in_url, option = _patterns()
    found: List[str] = []
    is_secret = False
    for argument in arguments:
        if is_secret and not argument.startswith("-"):
            found.append(_HIDDEN)
            is_secret = False
            continue
        is_secret = option.fullmatch(argument) is not None
        found.append(in_url.sub(rf"\g<1>{_HIDDEN}", value.sub(rf"\g<1>{_HIDDEN}", argument)))
    return " ".join(found)
