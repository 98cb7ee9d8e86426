"""The file that the preloaded library appends to: records of starts and ends, each written at once.

A record is, in little endian:

    magic      4 bytes   JLC1
    checksum   4 bytes   Adler-32 of all that follows
    size       2 bytes   of the whole record
    kind       1 byte    see `FIELDS`
    fields     1 byte    number of fields
    fields     8 bytes each, unsigned; the largest number means unknown
    texts      each ended by a zero byte

A later version may add fields. A torn record is skipped; the next one begins at the next magic.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from joblens.core.named_tuple import NamedTuple

MAGIC = b"JLC1"
UNKNOWN = (1 << 64) - 1
MOST_PID = 1 << 31
MOST = 1 << 62  # no kernel reports as much: from here on a number counts as unknown
_HEADER = struct.Struct("<4sIHcB")
LARGEST = 4096
_INCOMPLETE = 0o100  # in the mode of the file, as a full disk has no room for words: records are missing

_PROCESS = ("time", "pid", "start", "parent")
_RUSAGE = (
    "user", "system", "peak_kib", "minor_faults", "major_faults", "blocks_in", "blocks_out",
    "voluntary_switches", "involuntary_switches",
)  # fmt: skip
_IO = (
    "read_chars", "written_chars", "read_calls", "write_calls", "read_bytes", "written_bytes",
    "cancelled_bytes",
)  # fmt: skip
_USAGE = ("cpu", *_RUSAGE, *_IO, "run_delay", "slices")
# The memory that a process has had at most before it executed a program: the kernel's peak begins there.
_BEFORE = "peak_kib"
_END = (*_PROCESS, "status", *_USAGE, "threads", "children_user", "children_system")

ENDING = ("status", *_RUSAGE)  # what wait4(2) reports of a child

# Of each event of perf_event_open(2): its value, and how long it was to be and was counted.
EVENTS = ("task_clock", "context_switches", "page_faults", "instructions", "cycles", "cache_misses")
_COUNTS = tuple(f"{name}{part}" for name in EVENTS for part in ("", "_enabled", "_running"))

START, FORK, EXEC, EXEC_FAILED, SPAWN, WAIT, END, LAST, THREAD, COUNTS = "SFXYPWELTC"
LETTERS = "SFXYPWELTC"  # as in capture_records.c
FIELDS = {
    START: (*_PROCESS, "group", "session", "uid", "cpu", *_RUSAGE),
    FORK: (*_PROCESS, "group", "session", "uid"),
    EXEC: (*_PROCESS, _BEFORE),
    EXEC_FAILED: _PROCESS,
    SPAWN: (*_PROCESS, "child", "before", _BEFORE),
    WAIT: (*_PROCESS, "child", *ENDING, "own_user", "own_system"),  # of it alone
    END: _END,
    LAST: _END,  # the program restricts its system calls from now on
    COUNTS: (*_PROCESS, "thread", *_COUNTS),
    THREAD: (*_PROCESS, "thread", "thread_start", "running", *_USAGE),
}


class Record(NamedTuple):
    kind: str
    fields: dict[str, int]  # without those that are unknown
    texts: list[str]


class Damage(NamedTuple):
    places: int
    bytes: int


class Records:
    """The records of a file in the order in which they were written; then `damage` says what is none."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.damage = Damage(0, 0)

    def __iter__(self) -> Iterator[Record]:
        at = 0
        while at < len(self._data):
            record, size = _parse_one(self._data, at)
            if record is None:
                self.damage = Damage(self.damage.places + 1, self.damage.bytes + size)
            elif record.kind in FIELDS:
                yield record
            at += size


def parse_records(data: bytes) -> tuple[list[Record], Damage]:
    records = Records(data)
    return list(records), records.damage


def _parse_one(data: bytes, at: int) -> tuple[Record | None, int]:
    """Return a record and its size, or None and the bytes to the next magic."""
    if at + _HEADER.size <= len(data):
        magic, checksum, size, kind, count = _HEADER.unpack_from(data, at)
        first_text = _HEADER.size + 8 * count
        whole = magic == MAGIC and first_text <= size <= min(LARGEST, len(data) - at)
        if whole and zlib.adler32(data[at + 8 : at + size]) == checksum:
            return _make(kind, data, at, count, size), size
    following = data.find(MAGIC, at + 1)
    return None, (len(data) if following < 0 else following) - at


def _make(kind: bytes, data: bytes, at: int, count: int, size: int) -> Record:
    name = kind.decode("latin-1")
    numbers = struct.unpack_from(f"<{count}Q", data, at + _HEADER.size)
    fields = dict(zip(FIELDS.get(name, ()), numbers))
    if max(numbers, default=0) >= MOST:
        fields = {key: number for key, number in fields.items() if number < MOST}
    # What follows the last zero byte is a text that was cut off, or nothing.
    texts = data[at + _HEADER.size + 8 * count : at + size].decode("utf-8", "replace").split("\0")[:-1]
    return Record(name, fields, texts)


def describe_missing(name: str, mode: int) -> list[str]:
    """Return a problem if the library could not write all records to a file of that mode."""
    why = "the disk was full, or files may not be larger"
    return [f"{name}: processes can be missing, as {why}"] if mode & _INCOMPLETE else []


def describe_damage(name: str, damage: Damage) -> list[str]:
    if not damage.places:
        return []
    counts = zip(damage, ("place", "byte"))
    places, size = (f"{count:,} {what}{'s' * (count != 1)}" for count, what in counts)
    return [f"{name}: skipped {size} in {places}: torn records"]
