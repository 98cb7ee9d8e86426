"""No more than so many days of samples and records."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from joblens.core.errors import MalformedError
from joblens.core.files import list_names
from joblens.store import ingest
from joblens.store.home import Home


def retain(home: Home, days: int, now: float | None = None) -> int:
    """Removes the days that are older. How many files went."""
    moment = (time.time() if now is None else now) - days * 86_400
    oldest = time.strftime("%Y-%m-%d", time.gmtime(max(moment, 0)))
    folders = [*home.lake.glob("set=*/date=*"), *home.records.glob("*-*-*")]
    gone = sum(_remove(folder) for folder in sorted(folders) if folder.name.removeprefix("date=") < oldest)
    return gone + sum(_remove_waiting(folder, oldest) for folder in ingest.folders(home.waiting))


def _remove_waiting(folder: Path, oldest: str) -> int:
    """Without a way through the lake: the disk may be full, which is why somebody wants it to be removed."""
    with suppress(MalformedError, OSError):
        found = ingest.load_job(folder)
        if found is not None:
            end = found.end.end if found.end else folder.stat().st_mtime
            if time.strftime("%Y-%m-%d", time.gmtime(end)) < oldest:
                batches = sum(name.endswith(".batch") for name in list_names(str(folder)))
                ingest.remove(folder)
                return batches
    return 0


def _remove(folder: Path) -> int:
    # Data before manifests: what a manifest has replaced must not come back to life.
    names = sorted(list_names(str(folder)), key=lambda name: name.endswith(".manifest"))
    for name in names:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):  # somebody has just written to it
        folder.rmdir()
    return sum(name.endswith((".parquet", ".json", ".jsonl")) for name in names)
