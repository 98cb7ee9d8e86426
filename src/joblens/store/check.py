"""Everything in the store, read to its end: what is damaged is set aside, and what is lost written down."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from joblens.store import records
from joblens.store.home import Home
from joblens.store.lake.damage import record_gap, set_aside
from joblens.store.lake.folder import list_folder
from joblens.store.lake.lake import Lake

Progress = Callable[[int, int], None]


def check_lake(lake: Lake, progress: Progress | None = None) -> int:
    """Return the number of files read. `lake.problems` reports the damaged ones."""
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
    """A sentence for each that is damaged. Its file is kept in `damaged`, what is sound in it stays."""
    problems: list[str] = []
    for day, _ in records.list_days(home.records):
        for name in records.list_records(home.records, day):
            with suppress(FileNotFoundError):  # another has compacted it
                problems += _check_records(home, day, name)
    return problems


def _check_records(home: Home, day: str, name: str) -> list[str]:
    path, problems = home.records / day / name, list[str]()
    sound = list(records.load_records(path, problems))
    # What a newer joblens has written is not damaged.
    if not problems or any("newer joblens" in problem for problem in problems):
        return problems
    kept = home.damaged / f"records.{day}.{name}"
    jobs = sorted(_named(path) - {f"job {record.job.id}" for record in sound})
    home.damaged.mkdir(mode=0o700, exist_ok=True)
    record_gap(home.path, {"kind": "record", "date": day, "file": name, "jobs": jobs, "why": problems[0]})
    if sound:
        records.save_records(home.records, sound)
    os.replace(path, kept)
    return [f"{problem}; it is kept as {kept}" for problem in problems]


def _named(path: Path) -> set[str]:
    """The jobs of a file, as far as they can still be read, in whatever state it is."""
    with path.open("rb") as file:
        found = {records.job_named(line) for line in file}
    return found - {""} or {f"job {path.name.split('.')[0]}"}
