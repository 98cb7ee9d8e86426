"""Files of `name value` lines: one wide row, of which few values change between two readings."""

from __future__ import annotations

from itertools import compress
from operator import ne

from joblens.core.counter_file import CounterFile
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import NO_KEY, Column, Rows, Schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Tuple

    # From the name in the file, and whether `kB` follows the value, to the column.
    Describe = Callable[[str, bool], Column]


def read_keyvalue(host: Host, path: str, set_name: str, describe: Describe) -> Callable[[], Tuple[Rows, ...]]:
    lines: List[bytes] = []
    rows: Optional[Rows] = None

    def parse(data: bytes) -> Tuple[Rows, ...]:
        nonlocal lines, rows
        new = data.split(b"\n")
        updated = _update(rows, lines, new) if rows and len(new) == len(lines) else None
        rows = updated or parse_keyvalue(path, new, set_name, describe)
        lines = new
        return (rows,)

    return CounterFile(host, path, parse, lambda number, tokens: "TVL" if tokens else "L")


def _update(rows: Rows, old: List[bytes], new: List[bytes]) -> Optional[Rows]:
    """Return the rows with the changed values, or None if more than numbers changed."""
    values = rows.values.copy()
    for number in compress(range(len(new)), map(ne, new, old)):
        name, _, rest = new[number].partition(b" ")
        if not old[number].startswith(name + b" "):
            return None
        try:
            values[number] = int(rest.partition(b"kB")[0])
        except ValueError:
            return None
    return Rows(rows.schema, NO_KEY, values)


def parse_keyvalue(path: str, lines: List[bytes], set_name: str, describe: Describe) -> Rows:
    if len(lines) < 2 or lines[-1]:
        raise MalformedError(path, "truncated last line" if lines[-1] else "empty file")
    columns, values = [], []
    for line in lines[:-1]:
        fields = line.split()
        try:
            values.append(int(fields[1]))
        except (IndexError, ValueError):
            raise MalformedError(path, f"expected a name and a number: {line[:80]!r}") from None
        columns.append(describe(fields[0].decode("ascii", "replace").rstrip(":"), fields[2:] == [b"kB"]))
    if len({column.name for column in columns}) < len(columns):
        raise MalformedError(path, "duplicate name")
    return Rows(Schema(set_name, (), tuple(columns)), NO_KEY, values)
