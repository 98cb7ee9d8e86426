"""Files of counters whose text stays the same but for its numbers, as most files of /proc.

A collector parses such a file once and describes its form. From then on the C library reads the values, as
long as nothing but the digits changes. Where the library was not built, and for every other change, the
collector parses the text. `read_rounds` lets the library read several files on time, round after round.
"""

from __future__ import annotations

from joblens.core.host import Host
from joblens.core.model import Rows
from joblens.core.named_tuple import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence, Tuple

    Parse = Callable[[bytes], Tuple[Rows, ...]]
    # From the number of a line and its tokens to the operations of native.c: a letter for each token, and Z.
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
    """A collector of one such file. `describe` is None if its form cannot be described."""

    def __init__(self, host: Host, path: str, parse: Parse, describe: Optional[Describe]) -> None:
        self._host, self._path, self._parse, self._describe = host, path, parse, describe
        self._rows: Tuple[Rows, ...] = ()  # the last that were parsed
        self._form, self.count = b"", 0
        self._pause, self._left = 0, 0  # texts that are parsed before the next form is made

    def __call__(self) -> Tuple[Rows, ...]:
        file = self.open_file()
        if file:
            values = native.read_values(*file)
            if values is not None:
                self._pause = 0
                return self.make_rows(values)
            self._form = b""
        data = self._host.read(self._path)
        self._rows = self._parse(data)
        if native is not None and self._describe is not None:
            self._learn(data, self._describe)
        return self._rows

    def open_file(self) -> Optional[Tuple[int, bytes, int]]:
        """Return descriptor, form and number of values, or None if the text must be parsed."""
        fd = self._host.descriptor(self._path) if self._form else None
        return None if fd is None else (fd, self._form, self.count)

    def make_rows(self, values: List[int]) -> Tuple[Rows, ...]:
        """Return the rows with other values, which have been read by the library."""
        if len(self._rows) == 1:
            return (Rows(self._rows[0].schema, self._rows[0].keys, values),)
        found: List[Rows] = []
        begin = 0
        for rows in self._rows:
            end = begin + len(rows.values)
            found.append(Rows(rows.schema, rows.keys, values[begin:end]))
            begin = end
        return tuple(found)

    def _learn(self, data: bytes, describe: Describe) -> None:
        """Make the form of a text that was parsed, unless the library finds other values in it.

        It takes longer than parsing, so it is done ever more rarely if the form changes each time.
        """
        if self._left:
            self._left -= 1
            return
        self._left = self._pause
        self._pause = min(2 * self._pause + 1, _LONGEST_PAUSE)
        form = _describe_text(data, describe)
        values = [value for rows in self._rows for value in rows.values]
        if form and native.match_values(data, form, len(values)) == values:
            self._form, self.count = form, len(values)


class Round(NamedTuple):
    """The values of several files, read one after the other."""

    time_ns: int  # at which it began
    durations: memoryview  # of each file, in nanoseconds
    values: memoryview  # of all files


def read_rounds(
    poll_fd: int, files: Sequence[CounterFile], due: float, interval: float, most: int
) -> List[Round]:
    """Read all files at times of the monotonic clock, up to `most` times.

    It ends before that when `poll_fd` becomes ready, a signal comes, a round is late by an interval, or a
    text must be parsed. The round of that text is not among those returned.
    """
    given = tuple(file.open_file() for file in files)
    if None in given or not hasattr(native, "read_rounds"):
        return []
    data = native.read_rounds(poll_fd, given, int(due * 1e9), int(interval * 1e9), most)
    found = memoryview(data).cast("q")
    first, width = 1 + len(files), 1 + len(files) + sum(file.count for file in files)
    return [
        Round(found[begin], found[begin + 1 : begin + first], found[begin + first : begin + width])
        for begin in range(0, len(found), width)
    ]


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
        if operation == "Z":
            form += b"Z"
            continue
        plain = rest.lstrip(_BLANKS)
        token = rest if operation == "L" else b"".join(plain.split(None, 1)[:1])
        form += operation.encode()
        if operation in "TL":
            form += len(token).to_bytes(2, "little") + token
        rest = b"" if operation in "LE" else plain[len(token) :]
    return form
