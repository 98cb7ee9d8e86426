"""Pages of a listing. The cursor says where the next page begins; clients do not interpret it.

By start time it is the start of the last job and how many jobs with that start were listed, so that a page
costs the same wherever it is and new jobs do not shift it. In any other order it is the number of jobs.
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import NamedTuple

from joblens.core.json_file import parse_json, render_json
from joblens.serve.errors import ApiError
from joblens.store.catalog.listing import JobFilter, JobRow

_FARTHEST = 100_000  # jobs that can be skipped


class Cursor(NamedTuple):
    skip: int = 0  # jobs: all, or those with this start
    start: float | None = None

    def apply(self, wanted: JobFilter) -> JobFilter:
        """Return the filter of the next page, with one job more: it shows if there is another."""
        wanted = wanted._replace(limit=wanted.limit + self.skip + 1)
        if self.start is None:
            return wanted
        if wanted.reverse:
            return wanted._replace(since=max(self.start, wanted.since or 0.0))
        return wanted._replace(until=min(self.start, math.inf if wanted.until is None else wanted.until))

    def after(self, wanted: JobFilter, found: Sequence[JobRow]) -> Cursor | None:
        """Return the cursor of the page that follows these, which `apply` has selected."""
        listed = found[: self.skip + wanted.limit]
        if len(found) <= len(listed):
            return None
        last = start_of(listed[-1])
        if wanted.sort != "start" or last is None or start_of(listed[0]) is None:
            return Cursor(len(listed))
        return Cursor(sum(start_of(row) == last for row in listed), last)


def start_of(row: JobRow) -> float | None:
    """By which it is sorted: a job that never started is stored with its end."""
    return row.end if row.start is None else row.start


def render_cursor(cursor: Cursor) -> str:
    return urlsafe_b64encode(render_json(list(cursor))).decode().rstrip("=")


def parse_cursor(text: str | None) -> Cursor:
    """Raises ApiError."""
    if not text:
        return Cursor()
    try:
        skip, start = parse_json(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        known = start is None or (type(start) in (int, float) and math.isfinite(start))
        if type(skip) is int and 0 <= skip <= _FARTHEST and known:
            return Cursor(skip, start)
    except (ValueError, TypeError, RecursionError):
        pass
    raise ApiError(400, f"the cursor is not valid, or more than {_FARTHEST:,} jobs away: narrow the filter")
