"""Command lines without what looks like a password, token or key.

The same words as in capture/preload.c, which masks the arguments of captured processes. For command lines of
other systems and of processes that the library is not in.
"""

from __future__ import annotations

import re

_WORDS = (
    r"(?:password|passwd|passphrase|secrets?|token|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|credentials?|authorization|bearer)(?![a-z])[\w.-]*"
)
_SECRET = re.compile(
    rf"(?:{_WORDS}[\"']?[=:]|(?<![\w.-])-[\w.-]*?{_WORDS}(?=\s+[^\s-])|\bbearer(?=\s))"
    r"[\s\"']*(?:bearer\s+|basic\s+)?",
    re.IGNORECASE,
)
_VALUE = re.compile(r"[^\s\"'&;,]+")
_PASSWORD = re.compile(r"(://[^\s/@:]*:)[^\s/@]+(?=@)")
_STEMS = ("passw", "passphr", "secret", "token", "key", "credential", "authoriz", "bearer", "://")


def mask_secret(command: str) -> str:
    """Return it with *** in place of the values."""
    parts, at = [], 0
    for match in _SECRET.finditer(command):
        value = _VALUE.match(command, match.end())
        if match.start() >= at and value is not None:
            parts += [command[at : match.end()], "***"]
            at = value.end()
    return _PASSWORD.sub(r"\1***", "".join([*parts, command[at:]]))


def mask_secrets(commands: list[str]) -> list[str]:
    """Mask many: only those with one of the words are looked at closely."""
    together = "\n".join(commands).lower()
    found = [stem for stem in _STEMS if stem in together]
    if not found:
        return commands
    return [
        mask_secret(command) if any(stem in low for stem in found) else command
        for command, low in zip(commands, map(str.lower, commands))
    ]
