"""A place in a sorted listing, as an opaque text: the next page continues after the row that it names.

Every order is total (cluster, id and start are unique), and a place is a value and no count. So a job that
is added meanwhile moves no other job to another page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from joblens.core.errors import UsageError
from joblens.core.json_file import parse_json, render_json
from joblens.core.named_tuple import NamedTuple
from joblens.store.catalog.listing import SORTS, JobFilter, JobRow
from joblens.store.lake.columns import storable

_LONGEST = 16_384  # characters
_LARGEST = 2.0**63


class Cursor(NamedTuple):
    """The row after which the page begins. `value` is that of the column that is sorted by."""

    value: str | float | None
    start: float | None
    id: str
    cluster: str
    now: float  # the moment for which durations of running jobs are computed


def is_upwards(wanted: JobFilter) -> bool:
    """The newest and the largest first; names from A to Z."""
    return (wanted.sort in ("user", "name")) != wanted.reverse


def sort_rows(rows: Iterable[JobRow], wanted: JobFilter) -> list[JobRow]:
    """In the order of the catalog: what is unknown comes last, also in reverse."""
    value = attrgetter(SORTS[wanted.sort])
    # Sorting is stable: first by what decides between rows with equal values.
    ordered = sorted(rows, key=_tie, reverse=not wanted.reverse)
    known = sorted((it for it in ordered if value(it) is not None), key=value, reverse=not is_upwards(wanted))
    return known + [it for it in ordered if value(it) is None]


def _tie(row: JobRow | Cursor) -> tuple[float, str, str]:
    return (-math.inf if row.start is None else row.start, row.id, row.cluster)


def is_after(row: JobRow, cursor: Cursor, wanted: JobFilter) -> bool:
    """Whether a row comes after the cursor."""
    value: Any = row[SORTS[wanted.sort]]
    if value == cursor.value:
        return _tie(row) > _tie(cursor) if wanted.reverse else _tie(row) < _tie(cursor)
    if value is None or cursor.value is None:
        return value is None
    return bool(value > cursor.value) == is_upwards(wanted)


def next_cursor(rows: Sequence[JobRow], wanted: JobFilter, now: float = 0.0) -> str:
    """Return the cursor of the page that follows these rows."""
    last = rows[-1]
    # Without a moment that changes nothing, the same page has the same text.
    moment = now if wanted.sort == "duration" else 0.0
    place = [last[SORTS[wanted.sort]], last.start, storable(last.id), storable(last.cluster), moment]
    data = render_json([wanted.sort, wanted.reverse, *place])
    from base64 import urlsafe_b64encode

    return urlsafe_b64encode(data).decode().rstrip("=")


def parse_cursor(wanted: JobFilter) -> Cursor | None:
    """Raises UsageError unless it is one of the same listing."""
    if wanted.cursor is None:
        return None
    try:
        sort, reverse, *place = _decode(wanted.cursor)
        cursor = Cursor(*place)
        if not _is_valid(cursor, wanted.sort):
            raise ValueError
    except (ValueError, TypeError):
        raise UsageError(f"cursor {wanted.cursor!r:.60} is not one that a listing returned") from None
    if (sort, reverse) != (wanted.sort, wanted.reverse):
        raise UsageError(f"cursor {wanted.cursor!r:.60} belongs to a listing that is sorted differently")
    return cursor


def _decode(text: str) -> Any:
    if len(text) > _LONGEST:
        raise ValueError("too long")
    data = text.encode("ascii")
    from base64 import b64decode

    return parse_json(b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True))


def _is_valid(cursor: Cursor, sort: str) -> bool:
    kind = str if sort in ("user", "name") else (int, float)
    texts = [it for it in (cursor.id, cursor.cluster, cursor.value) if isinstance(it, str)]
    numbers = [it for it in (cursor.start, cursor.now, cursor.value) if isinstance(it, (int, float))]
    return (
        (cursor.value is None or isinstance(cursor.value, kind))
        and (cursor.start is None or isinstance(cursor.start, (int, float)))
        and isinstance(cursor.id, str)
        and isinstance(cursor.cluster, str)
        and isinstance(cursor.now, (int, float))
        and not any(isinstance(it, bool) or abs(it) >= _LARGEST for it in numbers)
        and all(storable(it) == it for it in texts)
    )
