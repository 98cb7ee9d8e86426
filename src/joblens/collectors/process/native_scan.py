"""Processes that are known and settled, read by the C library many at a time (core/process_scan.c).

A record has all that one of them needs: its open files, what was read last, and after how many scans the
rest is due. It exists from the end of one reading in Python to the beginning of the next, so only one of both
is in charge of a process. The library stops at the first process that it cannot read exactly as Python would,
and leaves its record as it was. Without the library there are no records.
"""

from __future__ import annotations

import struct

from joblens.core import counter_file
from joblens.core.model import ABSENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Optional, Tuple

    from joblens.collectors.process.collector import _Process

_FILES = ("schedstat", "stat", "io", "status")
_VALUES = 23
_COUNTS = 9 + 6 + 5 + 1 + _VALUES + 3  # as struct record of process_scan.c has them
_RECORD = struct.Struct(f"={_COUNTS}q16s64s512s")
_PROGRESS = struct.Struct("=4q")  # again_in, asleep_in, status_in, status_is_old
_PROGRESS_AT = 4 * 8
_AGAIN = struct.Struct("=q")
_MEMORY_AT = 15 * 8
_VALUES_AT = 21 * 8
_ROW = struct.Struct(f"={_VALUES}q")
_MEMORY = struct.Struct("=5q")
_SIZES = struct.Struct("=3q")
_SIZES_AT = _VALUES_AT + _ROW.size
_SCHEDULED_AT = _COUNTS * 8 + 16
_TEXT_AT = _SCHEDULED_AT + 64
_LONGEST_NAME, _LONGEST_SCHEDULED, _LONGEST_TEXT = 15, 63, 511
_AMOUNTS = slice(8, 15)
_NOT_KEPT = b"not kept"  # in place of the text of io, unlike any that can be read


def is_available() -> bool:
    """Whether the library was built, and not by an older version of joblens."""
    return hasattr(counter_file.native, "scan_settled")


def make_record(process: _Process, may_sleep: bool) -> Optional[bytearray]:
    """Return None if the library cannot read it."""
    if process.row is None or len(process.texts) != 2 or process.waited == ABSENT:
        return None
    key, values = process.row
    text, io = process.texts
    name, scheduled = process.stat_name, process.scheduled
    if text is None or io is None or len(text) > _LONGEST_TEXT or len(name) > _LONGEST_NAME:
        return None
    if len(scheduled) > _LONGEST_SCHEDULED or not all(map(_is_plain, process.memory)):
        return None
    if may_sleep:
        process.delay.close()  # its only thread is that of schedstat
    threads = process.delay.kept(without_files=may_sleep)
    try:
        record = _RECORD.pack(
            *(process.files.get(file, -1) for file in _FILES),
            process.again_in, process.asleep_in, process.status_in, process.status_is_old, may_sleep,
            key.parent, key.group, key.session, key.terminal, key.start, key.uid,
            *map(int, process.memory), process.delay.ended, *values,
            len(name), len(scheduled), len(text), name, scheduled, text,
        )  # fmt: skip
        return bytearray(record + struct.pack(f"={len(threads)}q", *threads))
    except struct.error:  # more than 64 bits: a recording can have anything
        return None


def _is_plain(number: bytes) -> bool:
    """Whether it can be restored from its value."""
    return number.isdigit() and (number == b"0" or number[:1] != b"0")


def take_back(process: _Process, record: bytearray) -> None:
    """Continue in Python with what the library knows."""
    process.again_in, process.asleep_in, process.status_in, is_old = _PROGRESS.unpack_from(
        record, _PROGRESS_AT
    )
    process.status_is_old = bool(is_old)
    process.memory = [b"%d" % number for number in _MEMORY.unpack_from(record, _MEMORY_AT)]
    values = read_row(record)
    process.status = (process.status[0], values[_AMOUNTS])
    process.waited = values[-1]
    _, scheduled, text = _SIZES.unpack_from(record, _SIZES_AT)
    process.scheduled = bytes(record[_SCHEDULED_AT : _SCHEDULED_AT + scheduled])
    process.texts = (bytes(record[_TEXT_AT : _TEXT_AT + text]), _NOT_KEPT)
    threads = record[_RECORD.size :]
    process.delay.restore(struct.unpack(f"={len(threads) // 8}q", threads)[1::2], values[-1])


def postpone(record: bytearray, scans: int) -> None:
    """Set after how many scans it is due again."""
    _AGAIN.pack_into(record, _PROGRESS_AT, scans)


def read_row(record: bytearray) -> List[int]:
    return list(_ROW.unpack_from(record, _VALUES_AT))


def scan(records: List[Optional[bytearray]], first: int) -> Tuple[int, List[int], List[int]]:
    """Return the place of the first record that is left to Python, the places of those that changed, and of
    those whose cgroup is due."""
    changed: List[int] = []
    due: List[int] = []
    return counter_file.native.scan_settled(records, first, changed, due), changed, due
