"""Removing the rows of jobs from the lake. Files with rows of others are rewritten as compaction does."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import OutsideError
from joblens.core.files import list_names, now_at
from joblens.store.lake.columns import storable
from joblens.store.lake.compact import Enums, replace_files
from joblens.store.lake.folder import HUB, job_file, list_folder
from joblens.store.lake.lake import Lake, as_table, reason
from joblens.store.lake.ranges import Range
from joblens.store.location import safe_name

_MARGIN = 60.0  # seconds: samples before the start and after the end
_LATEST = 2.0**63 - 2.0**11  # nanoseconds, of 64 bits
_TABLE = "removed_runs"
_ATTEMPTS = 10  # while others compact the same folder


class Removed(NamedTuple):
    """A run of a job."""

    id: str
    start: float
    end: float
    cluster: str = ""  # where it is given, only of this one
    after: float = -math.inf  # what began until then is of an earlier run with this id
    before: float = math.inf  # and what began later, of the next

    def dates(self) -> tuple[str, str]:
        first, last = (
            time.strftime("%Y-%m-%d", time.gmtime(max(it, 0)))
            for it in (self.start - _MARGIN, self.end + _MARGIN)
        )
        return first, last


def remove_jobs(lake: Lake, jobs: Sequence[Removed]) -> None:
    """Raises OutsideError. Done again after a crash, it removes the rest."""
    spans = [(job.dates(), safe_name(job.id)) for job in jobs]
    folders = []
    for folder in sorted(lake.path.glob("set=*/date=*")):
        date = folder.name.removeprefix("date=")
        names = {name for (first, last), name in spans if first <= date <= last}
        if names:
            folders.append((folder, names))
    if folders:
        _make_table(lake, jobs)
    for folder, names in folders:
        with suppress(FileNotFoundError):  # that day was removed meanwhile
            _remove_from(lake, folder, names)


def _make_table(lake: Lake, jobs: Sequence[Removed]) -> None:
    """Put the runs into a table of the connection, with which rows are joined."""

    def nanoseconds(moments: Iterable[float]) -> list[int]:
        return [int(min(max(it * 1e9, -_LATEST), _LATEST)) for it in moments]

    starts, ends = [it.start - _MARGIN for it in jobs], [it.end + _MARGIN for it in jobs]
    columns: dict[str, tuple[str, Sequence[object]]] = {
        "its_id": ("VARCHAR", [storable(it.id) for it in jobs]),
        "its_cluster": ("VARCHAR", [storable(it.cluster) for it in jobs]),
        "its_first": ("BIGINT", nanoseconds(starts)),
        "its_last": ("BIGINT", nanoseconds(ends)),
        # Of sets without the start of a process
        "its_own_first": ("BIGINT", nanoseconds(max(a, it.after) for a, it in zip(starts, jobs))),
        "its_own_last": ("BIGINT", nanoseconds(min(b, it.before) for b, it in zip(ends, jobs))),
        "its_after": ("DOUBLE", [it.after for it in jobs]),
        "its_before": ("DOUBLE", [it.before for it in jobs]),
    }
    selected = ", ".join(f"unnest(${name}::{kind}[]) AS {name}" for name, (kind, _) in columns.items())
    lake.connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {_TABLE} AS SELECT {selected}",
        {name: list(values) for name, (_, values) in columns.items()},
    )


def _condition(columns: set[str]) -> str:
    """Return SQL that holds for a row and the run that it belongs to."""
    conditions = ["jobid = its_id"]
    if "cluster" in columns:
        conditions.append("(its_cluster = '' OR cluster = its_cluster)")
    first, last = "its_own_first", "its_own_last"
    if "began_seconds" in columns:
        first, last = "its_first", "its_last"
        began = "coalesce(began_seconds::DOUBLE, epoch_ns(time) / 1e9)"
        conditions.append(f"{began} > its_after AND {began} <= its_before")
    conditions.append(f"epoch_ns(time) BETWEEN {first} AND {last}")
    return " AND ".join(conditions)


def _remove_from(lake: Lake, folder: Path, names: set[str]) -> None:
    for _ in range(_ATTEMPTS):
        if all(_remove_rows(lake, path, names) for path in list_folder(folder).files):
            return
    raise OutsideError(f"{folder} is being compacted; try again")


def _remove_rows(lake: Lake, path: Path, names: set[str]) -> bool:
    """Return False if another has replaced the file meanwhile. `names`: of the jobs' own files."""
    from joblens.store.lake.engine import duckdb

    named = job_file(path.name)
    is_of_job = named is not None and not named.job.startswith(HUB)
    if is_of_job and named is not None and named.job not in names:
        return True
    try:
        columns = set(lake.schema([path]))
        if not {"jobid", "time"} <= columns:
            return True
        return _remove_matching(lake, path, _condition(columns), is_of_job)
    except duckdb.Error as error:
        if path.exists():
            raise OutsideError(f"{path}: rows cannot be removed: {reason(str(error))}") from None
        return False


def _remove_matching(lake: Lake, path: Path, condition: str, is_of_job: bool) -> bool:
    table = as_table([path])
    query = f"SELECT (SELECT count(*) FROM {table}), count(*) FROM {table} SEMI JOIN {_TABLE} ON {condition}"
    ((rows, own),) = lake.connection.execute(query).fetchall()
    if own and own == rows and is_of_job:
        _unlink_all(path)
    elif own:
        began, listing = now_at(str(lake.path)), list_folder(path.parent)
        if path not in listing.files:
            return False
        return bool(
            replace_files(lake, listing, [path], [Range(left_out=(_TABLE, condition))], Enums(), began)
        )
    return True


def _unlink_all(path: Path) -> None:
    """Also shorter files of the same batches, which would count again."""
    named = job_file(path.name)
    for name in list_names(str(path.parent)):
        other = job_file(name)
        if other is not None and named is not None and other.key == named.key:
            (path.parent / name).unlink(missing_ok=True)
