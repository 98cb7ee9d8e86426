"""`disk`: /proc/diskstats for whole disks (Documentation/admin-guide/iostats.rst).

Partitions are left out: their disk counts the same bytes again.
"""

from __future__ import annotations

from operator import itemgetter

from joblens.core.counter_file import CounterFile
from joblens.core.errors import MalformedError
from joblens.core.host import Host
from joblens.core.model import COUNTER, GAUGE, Column, Key, Rows, Schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, List, Optional, Sequence, Tuple

_PATH = "proc/diskstats"
_SECTOR = 512  # in this file, whatever the disk's own sector size

COLUMNS = (
    Column("reads", COUNTER, "completed reads"),
    Column("reads_merged", COUNTER, "reads merged with an adjacent one"),
    Column("read_bytes", COUNTER, "bytes read", factor=_SECTOR),
    Column("read_seconds", COUNTER, "total time of all reads", divisor=1000),
    Column("writes", COUNTER, "completed writes"),
    Column("writes_merged", COUNTER, "writes merged with an adjacent one"),
    Column("written_bytes", COUNTER, "bytes written", factor=_SECTOR),
    Column("write_seconds", COUNTER, "total time of all writes", divisor=1000),
    Column("in_flight", GAUGE, "requests in flight"),
    Column("busy_seconds", COUNTER, "time with at least one request in flight", divisor=1000),
    Column("queue_seconds", COUNTER, "total time of all requests, those in flight included", divisor=1000),
    Column("discards", COUNTER, "completed discards"),
    Column("discards_merged", COUNTER, "discards merged with an adjacent one"),
    Column("discarded_bytes", COUNTER, "bytes discarded", factor=_SECTOR),
    Column("discard_seconds", COUNTER, "total time of all discards", divisor=1000),
    Column("flushes", COUNTER, "completed flushes"),
    Column("flush_seconds", COUNTER, "total time of all flushes", divisor=1000),
)
SCHEMA = Schema("disk", ("device",), COLUMNS)
_IGNORED = ("ram", "loop", "zram", "fd")


def disk(host: Host) -> Callable[[], Tuple[Rows, ...]]:
    names: List[bytes] = []
    width = 3
    schema = Schema("disk", ("device",), ())
    keys: Tuple[Key, ...] = ()
    pick: Callable[[Sequence[bytes]], Tuple[bytes, ...]] = tuple

    chosen: List[int] = []
    before: Optional[bytes] = None
    rows: Tuple[Rows, ...] = ()

    def parse(data: bytes) -> Tuple[Rows, ...]:
        nonlocal names, width, schema, keys, pick, chosen, before, rows
        if data == before:  # most disks are idle most of the time
            return rows
        tokens = data.split()
        if tokens[2::width] != names or len(tokens) != width * len(names):
            names, width = parse_layout(data)
            schema = Schema("disk", ("device",), COLUMNS[: width - 3])
            chosen = choose(names, _whole_disks(host))
            keys = tuple((names[n].decode("utf-8", "replace"),) for n in chosen)
            pick = _picker([n * width + 3 + c for n in chosen for c in range(len(schema.columns))])
        try:
            rows = (Rows(schema, keys, list(map(int, pick(tokens)))),)
        except ValueError as error:
            raise MalformedError(_PATH, str(error)) from None
        before = data
        return rows

    def describe_line(number: int, tokens: List[bytes]) -> str:
        return "TTT" + ("V" if number in chosen else "A") * (width - 3) if tokens else "L"

    return CounterFile(host, _PATH, parse, describe_line)


def _picker(indices: List[int]) -> Callable[[Sequence[bytes]], Tuple[bytes, ...]]:
    if not indices:
        return lambda tokens: ()
    return itemgetter(*indices)  # there are at least 11 indices, so it returns a tuple


def parse_layout(data: bytes) -> Tuple[List[bytes], int]:
    lines = [line.split() for line in data.split(b"\n")]
    if lines[-1]:
        raise MalformedError(_PATH, "truncated last line")
    widths = {len(line) for line in lines[:-1]} or {3 + len(COLUMNS)}
    if len(widths) != 1 or min(widths) < 14:
        raise MalformedError(_PATH, "the lines differ in length")
    names = [line[2] for line in lines[:-1]]
    if len(set(names)) < len(names):
        raise MalformedError(_PATH, "duplicate disk")
    return names, widths.pop()


def _whole_disks(host: Host) -> Optional[List[str]]:
    try:
        return host.list("sys/block")
    except OSError:
        return None


def choose(names: List[bytes], whole: Optional[List[str]]) -> List[int]:
    """Return the line numbers of whole disks. sysfs replaces a slash in a device's name by `!`."""
    texts = [name.decode("utf-8", "replace") for name in names]
    return [
        number
        for number, text in enumerate(texts)
        if not text.startswith(_IGNORED) and (whole is None or text.replace("/", "!") in whole)
    ]
