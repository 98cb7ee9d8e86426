"""Files of counters whose text stays the same but for its numbers, as most files of /proc.

A collector parses such a file once and describes its form. From then on the C library reads the values, as
long as nothing but the digits changes. Where the library was not built, and for every other change, `read`
returns None, and the collector parses the text.
"""

from __future__ import annotations

from joblens.core.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional

    # From the number of a line and its tokens to the operations of native.c, a letter for each token.
    Describe = Callable[[int, List[bytes]], str]

try:
    from joblens.core import _native  # type: ignore[attr-defined]
except ImportError:  # built without a C compiler, or the single-file agent
    native: Any = None
else:
    native = _native

_LONGEST_PAUSE = 63
_BLANKS = b" \t\r\v\f"


class CounterFile:
    def __init__(self, host: Host, path: str) -> None:
        self.host, self.path = host, path
        self._form, self._count = b"", 0
        self._pause, self._left = 0, 0  # texts that are parsed before the next form is made

    def read(self) -> Optional[List[int]]:
        """Return the values, or None if the text must be parsed."""
        if not self._form:
            return None
        values = self.host.read_values(self.path, native, self._form, self._count)
        if values is None:
            self._form = b""
        else:
            self._pause = 0
        return values

    def learn(self, data: bytes, values: List[int], describe: Describe) -> None:
        """Make the form of a text that was parsed, unless the library finds other values in it.

        It takes longer than parsing, so it is done ever more rarely if the form changes each time.
        """
        if native is None or self._left:
            self._left = max(self._left - 1, 0)
            return
        self._left = self._pause
        self._pause = min(2 * self._pause + 1, _LONGEST_PAUSE)
        form = _describe_text(data, describe)
        if form and native.match_values(data, form, len(values)) == values:
            self._form, self._count = form, len(values)


def _describe_text(data: bytes, describe: Describe) -> bytes:
    """Return the form, or nothing if a token is too long for one."""
    lines = data.split(b"\n")
    try:
        return b"N".join(
            _describe_line(line, describe(number, line.split())) for number, line in enumerate(lines)
        )
    except OverflowError:
        return b""


def _describe_line(line: bytes, operations: str) -> bytes:
    form, rest = b"", line
    for operation in operations:
        plain = rest.lstrip(_BLANKS)
        token = rest if operation == "L" else b"".join(plain.split(None, 1)[:1])
        form += operation.encode()
        if operation in "TL":
            form += len(token).to_bytes(2, "little") + token
        rest = b"" if operation in "LE" else plain[len(token) :]
    return form
