"""Maintenance of a store: verification of all files, retention, and removal of what crashes left."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from joblens.core.errors import MalformedError
from joblens.core.files import UNFINISHED, changed_at, list_names, now_at
from joblens.store import ingest, records
from joblens.store.catalog.heads import load_heads, make_head, remove_heads
from joblens.store.home import Home
from joblens.store.lake.damage import Lost, record_gap, set_aside
from joblens.store.lake.folder import GRACE_SECONDS, list_folder
from joblens.store.lake.lake import Lake

Progress = Callable[[int, int], None]


# Verification


def check_lake(lake: Lake, progress: Progress | None = None) -> int:
    """Read every file and set damaged ones aside, see `lake.problems`. Return how many were read."""
    count = 0
    folders = sorted(lake.path.glob("set=*/date=*"))
    for number, folder in enumerate(folders, 1):
        listing = list_folder(folder)
        lake.report(*listing.problems)
        found = lake.check(listing.files)
        for path, why in found.damaged.items():
            set_aside(lake, path, why)
        lake.report_unreadable(found)
        count += len(listing.files) - len(found.unreadable)
        if progress:
            progress(number, len(folders))
    return count


def check_records(home: Home) -> list[str]:
    """Move files with damaged records to `damaged`, and keep their intact records. Return the problems."""
    problems: list[str] = []
    if home.database is not None:  # the catalog checks them
        return problems
    for day, _ in records.list_days(home.records):
        for name in records.list_records(home.records, day):
            with suppress(FileNotFoundError):  # another process has compacted it
                problems += _check_records(home, day, name)
    return problems


def _check_records(home: Home, day: str, name: str) -> list[str]:
    path, problems = home.records / day / name, list[str]()
    intact = list(records.load_records(path, problems))
    if not problems:
        return _check_heads(path)
    # A record of a newer joblens is not damaged.
    if any("newer joblens" in problem for problem in problems):
        return problems
    kept = home.damaged / f"records.{day}.{name}"
    jobs = sorted(_readable_jobs(path) - {f"job {record.job.id}" for record in intact})
    home.damaged.mkdir(mode=0o700, exist_ok=True)
    record_gap(home.path, Lost(kind="record", date=day, file=name, jobs=jobs, why=problems[0]))
    try:
        records.save_records(home.records, intact)
    except MalformedError as error:  # an intact one with a part that cannot be rewritten
        return [*problems, str(error)]
    os.replace(path, kept)
    remove_heads(path)
    return [f"{problem}; it is kept as {kept}" for problem in problems]


def _check_heads(path: Path) -> list[str]:
    """Remove heads that differ from the records: without them these are read."""
    heads, problems = load_heads(path), list[str]()
    if heads is None:
        return []
    found = [make_head(*it) for some in records.load_listed(path, problems) for it in some]
    if heads == found:
        return []
    remove_heads(path)
    return [f"{path}: its heads differ from the records, and were removed"]


def _readable_jobs(path: Path) -> set[str]:
    """Return the jobs that a damaged file still names."""
    with path.open("rb") as file:
        found = {records.job_named(line) for line in file}
    return found - {""} or {f"job {path.name.split('.')[0]}"}


# Retention


def retain(home: Home, days: int, now: float | None = None) -> int:
    """Remove samples and records of older days. Return the number of files removed."""
    moment = (time.time() if now is None else now) - days * 86_400
    oldest = time.strftime("%Y-%m-%d", time.gmtime(max(moment, 0)))
    of_records = [] if home.database is not None else home.records.glob("*-*-*")
    folders = [*home.lake.glob("set=*/date=*"), *of_records]
    if home.database is not None:
        from joblens.store.catalog.postgresql.access import remove_older

        remove_older(home.database, moment - moment % 86_400)
    removed = sum(_remove_day(it) for it in sorted(folders) if it.name.removeprefix("date=") < oldest)
    return removed + sum(_remove_pending(folder, oldest) for folder in ingest.folders(home.waiting))


def _remove_pending(folder: Path, oldest: str) -> int:
    """Remove a pending job without writing it to the lake first: the disk may be full."""
    with suppress(MalformedError, OSError):
        found = ingest.load_job(folder)
        if found is not None:
            end = found.end.end if found.end else folder.stat().st_mtime
            if time.strftime("%Y-%m-%d", time.gmtime(end)) < oldest:
                batches = sum(name.endswith(".batch") for name in list_names(str(folder)))
                ingest.remove(folder)
                return batches
    return 0


def _remove_day(folder: Path) -> int:
    # Data before manifests: without its manifest, a replaced file would be valid again.
    names = sorted(list_names(str(folder)), key=lambda name: name.endswith(".manifest"))
    for name in names:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # another process has written to it
        folder.rmdir()
    return sum(name.endswith((".parquet", ".json", ".jsonl")) for name in names)


# Leftovers of crashes, except in the lake, where joblens.store.lake.folder removes them


def remove_leftovers(home: Home) -> None:
    now = now_at(str(home.incoming))
    jobs = (*_list(home.incoming), *_list(home.waiting))
    for folder in (home.lake, home.incoming, *jobs, *_list(home.records)):
        for path in _list(folder):
            if path.name.endswith(UNFINISHED) and _is_old(path, now):
                _remove(path)
    for folder in (*ingest.folders(home.incoming), *ingest.folders(home.waiting)):
        if ingest.never_began(folder) and _is_old(folder, now):
            _remove(folder)


def _list(folder: Path) -> list[Path]:
    return [folder / name for name in list_names(str(folder))]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_old(path: Path, now: float) -> bool:
    return now - changed_at(path, now) > GRACE_SECONDS
