"""Damaged files: set aside, and what is lost with them written down.

    damaged/SET.DATE.NAME.parquet   a file of the lake, as it was found
    damaged/records.DATE.NAME       a file of records
    gaps.jsonl                      one JSON object per file: what is missing since then

In place of a file of the lake there is one without rows, so that all that goes by its name stays as it is:
what a manifest replaces does not come back, and a hub that stores the same segment once more replaces it.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import field

from joblens.core.errors import MalformedError, OutsideError
from joblens.record.fields import Part
from joblens.store.lake.folder import HUB, job_file, parse_manifest

if TYPE_CHECKING:
    from joblens.store.lake.lake import Lake

GAPS = "gaps.jsonl"
_EMPTY = "(SELECT NULL::TIMESTAMP_NS AS time WHERE false)"
_MOST_NAMED = 1000  # files of a damaged file that was made of many


class Lost(Part, kw_only=True, omit_defaults=True, rename={"first": "from", "last": "to"}):
    """A line of `gaps.jsonl`."""

    time: float = 0.0  # of its discovery
    kind: str  # lake or record
    set: str = ""
    date: str
    file: str
    why: str = ""
    bytes: int = 0
    made_of: list[str] = field(default_factory=list)  # jobs or segments
    rows: int | None = None  # what its footer still says, as all that follow
    first: str | None = None
    last: str | None = None
    first_node: str | None = None
    last_node: str | None = None
    jobs: list[str] = field(default_factory=list)  # of records


def set_aside(lake: Lake, path: Path, why: str) -> None:
    """Adds to `lake.problems`. Raises OutsideError if nothing can be written."""
    from joblens.store.lake.engine import duckdb

    set_name, date = path.parent.parent.name.removeprefix("set="), path.parent.name.removeprefix("date=")
    home = lake.path.parent
    kept = home / "damaged" / f"{set_name}.{date}.{path.name}"
    lost = Lost(kind="lake", set=set_name, date=date, file=path.name, why=why)
    lost.bytes = path.stat().st_size if path.exists() else 0
    lost.made_of = list(_made_of(path))[:_MOST_NAMED]
    _add_footer(lake, path, lost)
    try:
        kept.parent.mkdir(mode=0o700, exist_ok=True)
        _link(path, kept)
        record_gap(home, lost)
        lake.copy(_EMPTY, (), path)
    except FileNotFoundError:  # another has removed that day
        return
    except (OSError, duckdb.Error) as error:
        raise OutsideError(f"{path} is damaged and cannot be set aside: {error}") from None
    lake.report(f"{path} is damaged ({why}): its rows are lost, see {home / GAPS}; it is kept as {kept}")


def _link(path: Path, kept: Path) -> None:
    try:
        os.link(path, kept)
    except FileExistsError:  # by another process, or before a crash
        return
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        shutil.copyfile(path, kept)


def record_gap(home: Path, lost: Lost) -> None:
    """On the disk on return."""
    lost.time = round(time.time(), 3)
    file = os.open(home / GAPS, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, json.dumps(lost.to_dict()).encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)


def _made_of(path: Path) -> Iterable[str]:
    """A job's file and a hub's say by their names what is in them, and a manifest which a file replaced."""
    if job_file(path.name):
        return [path.name]
    for manifest in sorted(path.parent.glob("*.manifest")):
        with suppress(OSError, MalformedError):
            found = parse_manifest(str(manifest), manifest.read_bytes())
            if path.name in found.files:
                return sorted(found.replaces, key=lambda name: (not name.startswith(HUB), name))
    return []


def _add_footer(lake: Lake, path: Path, lost: Lost) -> None:
    """Add what the footer still says."""
    from joblens.store.lake.lake import literal

    table = f"parquet_metadata({literal(path)})"
    query = (
        f"SELECT (SELECT sum(n) FROM (SELECT DISTINCT row_group_id, row_group_num_rows AS n FROM {table})), "
        f"min(stats_min) FILTER (path_in_schema = 'time'), max(stats_max) FILTER (path_in_schema = 'time'), "
        f"min(stats_min) FILTER (path_in_schema = 'node'), max(stats_max) FILTER (path_in_schema = 'node') "
        f"FROM {table}"
    )
    try:
        rows, *texts = lake.connection.execute(query).fetchall()[0]
    except Exception:  # the footer itself is damaged: whatever DuckDB makes of it
        return
    lost.rows = None if rows is None else int(rows)
    known = (None if text is None else str(text) for text in texts)
    lost.first, lost.last, lost.first_node, lost.last_node = known
