"""Heads of records: what the catalog needs of each record, as one flat row.

Beside a file of many records stands a file of their heads, `NAME.heads`, so that they are indexed without
reading the records. It can be deleted at any time, and one that does not fit the file of records is ignored.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joblens.core.files import list_names, write_quickly
from joblens.store.catalog.listing import SEVERAL

if TYPE_CHECKING:
    from joblens.record.listed import ListedJob, ListedRecord
    from joblens.record.report import Job, JobRecord

# The columns of a listing, when the record was written, its place in the file, tags and annotations.
Head = tuple[Any, ...]
_VERSION = 1  # of the columns and their meaning
_SUFFIX = ".heads"
_FEWEST, _MOST = 16, 50_000  # records of a file: fewer are read quickly, more would need much memory at once
_LARGEST = 1 << 26  # bytes
_CHECKSUM = 4  # bytes


def make_head(place: int, record: ListedRecord | JobRecord) -> Head:
    job, used, nodes = record.job, record.used, record.job.nodes
    return (
        job.cluster,
        job.id,
        job.start,
        job.end,
        job.name,
        job.user,
        job.node,
        job.source,
        job.state,
        job.exit_code,
        used.duration_seconds,
        used.cpu_seconds,
        record.asked.cores,
        used.memory_peak_bytes,
        used.processes,
        record.verdict,
        _shown_id(job) if job.array_job or job.het_job else job.id,
        SEVERAL.join(nodes) if nodes else job.node,
        job.partition,
        job.account,
        record.written,
        place,
        job.tags or None,
        job.annotations or None,
    )


def _shown_id(job: ListedJob | Job) -> str:
    from joblens.record.report import shown_id

    return shown_id(job)


def heads_of(
    lines: Iterable[bytes], parse: Callable[[str, bytes], ListedRecord], place: int = 0
) -> Iterator[Head]:
    """Yield those of the lines of a file; the first line is at this place."""
    for line in lines:
        yield make_head(place, parse("", line))
        place += len(line)


def add_heads(heads: list[Head], more: Iterable[Head]) -> None:
    """Add heads, until they are too many to be stored: the list has one more than that then."""
    heads += islice(more, _MOST + 1 - len(heads))


def are_useful(count: int) -> bool:
    """Whether heads of a file with so many records are stored."""
    return _FEWEST <= count <= _MOST


def save_heads(records: Path, heads: list[Head]) -> None:
    """Write them beside a file of records, if that saves time. Without room for them there are none."""
    from msgspec import msgpack

    if are_useful(len(heads)):
        with suppress(OSError):
            data = msgpack.encode((_VERSION, records.stat().st_size, heads))
            write_quickly(str(_path_of(records)), data + zlib.crc32(data).to_bytes(_CHECKSUM, "little"))


def load_heads(records: Path) -> list[Head] | None:
    """Return None if there are none for these records, or if they are damaged. Raises FileNotFoundError."""
    path = _path_of(records)
    try:
        if path.stat().st_size > _LARGEST:
            return None
        data = path.read_bytes()
    except OSError:
        return None
    return parse_heads(data, records.stat().st_size)


def parse_heads(data: bytes, size: int) -> list[Head] | None:
    """`size`: of the file of records."""
    from msgspec import DecodeError

    from joblens.record.listed import decode_heads

    body = memoryview(data)[:-_CHECKSUM]
    if zlib.crc32(body) != int.from_bytes(data[-_CHECKSUM:], "little"):
        return None
    try:
        version, expected, heads = decode_heads(body)
    except (DecodeError, ValueError):
        return None
    return heads if (version, expected) == (_VERSION, size) else None


def remove_heads(records: Path) -> None:
    """After the file of records was removed."""
    _path_of(records).unlink(missing_ok=True)


def remove_orphans(day: Path) -> None:
    """Remove heads whose records are gone: they were written while another process removed these."""
    names = set(list_names(str(day)))
    for name in names:
        if name.endswith(_SUFFIX) and f"{name.removesuffix(_SUFFIX)}.jsonl" not in names:
            (day / name).unlink(missing_ok=True)


def _path_of(records: Path) -> Path:
    return records.with_suffix(_SUFFIX)
