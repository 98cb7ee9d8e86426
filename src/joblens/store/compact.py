"""Keeping the lake small: the many files of a day into one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from joblens.errors import OutsideError
from joblens.files import now_at, publish_once, unfinished_name
from joblens.store.damage import set_aside
from joblens.store.folder import HUB, Listing, job_file, list_folder, remove_replaced, render_manifest
from joblens.store.lake import Lake, as_table

Progress = Callable[[int, int], None]
_MANY, _SMALL_BYTES = 16, 64 << 20


def compact(lake: Lake, unfinished: Callable[[], set[str]], progress: Progress | None = None) -> int:
    """Puts the files of each day into one, and says how many went in. Readers do not notice.

    Those of unfinished jobs, by their safe names, stay: they may be written anew. They are asked for after
    the files were listed, so that no job can have begun in between.
    """
    done = 0
    folders = sorted(lake.path.glob("set=*/date=*"))
    for number, folder in enumerate(folders, 1):
        with suppress(FileNotFoundError):  # somebody has removed that day
            remove_replaced(folder, now_at(str(folder)))
            done += compact_folder(lake, folder, unfinished)
        if progress:
            progress(number, len(folders))
    return done


def compact_small(lake: Lake) -> int:
    """Of the files that a hub writes, those of a day once they are many, and small."""
    done = 0
    for folder in sorted(lake.path.glob("set=*/date=*")):
        with suppress(FileNotFoundError):  # somebody has removed that day
            remove_replaced(folder, now_at(str(folder)))
            listing = list_folder(folder)
            lake.report(*listing.problems)
            files = [path for path in listing.files if _is_small(path)]
            if len(files) >= _MANY:
                done += _attempt(lake, listing, files)
    return done


def _is_small(path: Path) -> bool:
    """And a hub's, or made of such: no job's own, which may be written anew."""
    found = job_file(path.name)
    return (found is None or found.job.startswith(HUB)) and path.stat().st_size < _SMALL_BYTES


def compact_folder(lake: Lake, folder: Path, unfinished: Callable[[], set[str]]) -> int:
    listing = list_folder(folder)
    lake.report(*listing.problems)
    kept = unfinished()
    files = [path for path in listing.files if not _belongs(path, kept)]

    return _attempt(lake, listing, files) if len(files) > 1 else 0


def _attempt(lake: Lake, listing: Listing, files: list[Path]) -> int:
    def put_together(sound: list[Path]) -> int:
        return _put_together(lake, listing, sound) if len(sound) > 1 else 0

    # Before they are written anew: a new file would have a right checksum over wrong numbers.
    damaged = lake.find_damaged(files)
    for path, why in damaged.items():
        set_aside(lake, path, why)
    files = [path for path in files if path not in damaged]
    return lake.attempt(files, put_together, 0, lake.read_through)


def _put_together(lake: Lake, listing: Listing, files: list[Path]) -> int:
    folder = files[0].parent
    number = listing.next_manifest.partition(".")[0]
    made = folder / f"compacted-{number}-{os.urandom(8).hex()}.parquet"
    lake.copy(as_table(files), lake.schema(files), made)
    manifest = str(folder / listing.next_manifest)
    unfinished = unfinished_name(manifest)
    try:
        replaces = dict.fromkeys([*(path.name for path in files), *listing.may_come_again])
        Path(unfinished).write_bytes(render_manifest(made.name, list(replaces)))
        # Whoever else was at it has seen the same files: one of us gets the name, the other worked in vain.
        first = publish_once(unfinished, manifest)
    except OSError as error:
        for path in (made, Path(unfinished)):
            path.unlink(missing_ok=True)
        raise OutsideError(f"{folder} cannot be compacted") from error
    if not first:
        made.unlink(missing_ok=True)
    return len(files) if first else 0


def _belongs(path: Path, jobs: set[str]) -> bool:
    found = job_file(path.name)
    return found is not None and found.job in jobs
