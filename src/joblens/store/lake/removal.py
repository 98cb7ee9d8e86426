"""Removing the rows of one job from the lake. Files with rows of others are rewritten as compaction does."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import OutsideError
from joblens.core.files import list_names, now_at
from joblens.store.lake.compact import Enums, replace_files
from joblens.store.lake.folder import HUB, job_file, list_folder
from joblens.store.lake.lake import Lake, as_table, literal, reason
from joblens.store.lake.ranges import Range
from joblens.store.location import safe_name

_MARGIN = 60.0  # seconds: samples before the start and after the end
_ATTEMPTS = 10  # while others compact the same folder


class Removed(NamedTuple):
    """A run of a job."""

    id: str
    start: float
    end: float
    cluster: str = ""  # where it is given, only of this one
    after: float = -math.inf  # what began until then is of an earlier run with this id
    before: float = math.inf  # and what began later, of the next

    def condition(self, columns: set[str]) -> str:
        """As SQL, which holds for its rows."""
        start, end = self.start - _MARGIN, self.end + _MARGIN
        began = ""
        if "began_seconds" in columns:
            bounds = ((">", self.after), ("<=", self.before))
            began = "".join(
                f" AND coalesce(began_seconds, epoch_ns(time) / 1e9) {sign} {moment!r}::DOUBLE"
                for sign, moment in bounds
                if math.isfinite(moment)
            )
        else:
            start, end = max(start, self.after), min(end, self.before)
        first, last = int(start * 1e9), int(end * 1e9)
        of_cluster = (
            f" AND cluster = {literal(self.cluster)}" if self.cluster and "cluster" in columns else ""
        )
        span = f"time BETWEEN make_timestamp_ns({first}) AND make_timestamp_ns({last})"
        return f"jobid = {literal(self.id)} AND {span}{of_cluster}{began}"

    def dates(self) -> tuple[str, str]:
        first, last = (
            time.strftime("%Y-%m-%d", time.gmtime(max(it, 0)))
            for it in (self.start - _MARGIN, self.end + _MARGIN)
        )
        return first, last


def remove_job(lake: Lake, job: Removed) -> None:
    """Raises OutsideError. Done again after a crash, it removes the rest."""
    first, last = job.dates()
    for folder in sorted(lake.path.glob("set=*/date=*")):
        if first <= folder.name.removeprefix("date=") <= last:
            with suppress(FileNotFoundError):  # that day was removed meanwhile
                _remove_from(lake, folder, job)


def _remove_from(lake: Lake, folder: Path, job: Removed) -> None:
    for _ in range(_ATTEMPTS):
        if all(_remove_rows(lake, path, job) for path in list_folder(folder).files):
            return
    raise OutsideError(f"{folder} is being compacted; try again")


def _remove_rows(lake: Lake, path: Path, job: Removed) -> bool:
    """Return False if another has replaced the file meanwhile."""
    import duckdb

    named = job_file(path.name)
    is_of_job = named is not None and not named.job.startswith(HUB)
    if is_of_job and named is not None and named.job != safe_name(job.id):
        return True
    try:
        columns = set(lake.schema([path]))
        if not {"jobid", "time"} <= columns:
            return True
        return _remove_matching(lake, path, job.condition(columns), is_of_job)
    except duckdb.Error as error:
        if path.exists():
            raise OutsideError(f"{path}: rows cannot be removed: {reason(str(error))}") from None
        return False


def _remove_matching(lake: Lake, path: Path, condition: str, is_of_job: bool) -> bool:
    query = f"SELECT count(*), count(*) FILTER ({condition}) FROM {as_table([path])}"
    ((rows, own),) = lake.connection.execute(query).fetchall()
    if own and own == rows and is_of_job:
        _unlink_all(path)
    elif own:
        began, listing = now_at(str(lake.path)), list_folder(path.parent)
        if path not in listing.files:
            return False
        return bool(replace_files(lake, listing, [path], [Range(left_out=condition)], Enums(), began))
    return True


def _unlink_all(path: Path) -> None:
    """Also shorter files of the same batches, which would count again."""
    named = job_file(path.name)
    for name in list_names(str(path.parent)):
        other = job_file(name)
        if other is not None and named is not None and other.key == named.key:
            (path.parent / name).unlink(missing_ok=True)
