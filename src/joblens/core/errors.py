"""The tree of errors.

JoblensError               one sentence for the user, and an exit code
├── UsageError        2    the command was called wrongly
├── ConfigError       2    a setting is unknown or has a wrong value
└── OutsideError      3    something outside joblens failed
    ├── MalformedError     a file does not have the documented format
    ├── PrivilegeError     a capability is missing
    └── ServerError        an address cannot be listened on or reached
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional


class JoblensError(Exception):
    exit_code = 1


class UsageError(JoblensError):
    exit_code = 2


class ConfigError(JoblensError):
    exit_code = 2

    def __init__(self, what: str, path: str = "", line: Optional[int] = None) -> None:
        super().__init__(what)
        self.what, self.path, self.line = what, path, line

    def __str__(self) -> str:
        where = self.path + (f":{self.line}" if self.line else "")
        return f"{where}: {self.what}" if where else self.what


class OutsideError(JoblensError):
    exit_code = 3


class MalformedError(OutsideError):
    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, what)
        self.path, self.what = path, what

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class PrivilegeError(OutsideError):
    """`capability` as capabilities(7) names it."""

    def __init__(self, what: str, capability: str) -> None:
        super().__init__(what, capability)
        self.what, self.capability = what, capability

    def __str__(self) -> str:
        return f"{self.what} needs {self.capability}"


class ServerError(OutsideError):
    pass


def sentence(error: BaseException) -> str:
    """Return one line that says what failed and where, with the chain of causes."""
    parts = []
    current: Optional[BaseException] = error
    while current is not None:
        parts.append(_words(current))
        current = current.__cause__
    return printable(": ".join(parts))


def printable(text: str, most: int = 10_000) -> str:
    """Make text of others safe to print: no control characters, so no new lines or cursor moves; bounded."""
    text = text if len(text) <= most else text[:most] + "…"
    return text if text.isprintable() else "".join(it if it.isprintable() else "?" for it in text)


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
