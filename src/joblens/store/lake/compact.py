"""Keeping the lake small: the many files of a day into few, in bounded memory.

joblens.store.lake.tiers chooses what is merged. Rows are sorted in memory, so a file has no more values than
fit there; what has more becomes several files, each with a range of jobs and nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from joblens.core.errors import OutsideError
from joblens.core.files import now_at, publish_once, unfinished_name
from joblens.store.lake.columns import identifier
from joblens.store.lake.damage import set_aside
from joblens.store.lake.folder import (
    GRACE_SECONDS,
    Extent,
    Listing,
    is_of_hub,
    job_file,
    list_folder,
    remove_replaced,
    render_manifest,
)
from joblens.store.lake.lake import Files, Lake, as_table, group_rows, literal, width
from joblens.store.lake.ranges import Range, find_ranges, is_divisible
from joblens.store.lake.tiers import MOST_AT_ONCE, choose, choose_large, fill

Progress = Callable[[int, int], None]
Wanted = Callable[[Path], bool]
MEMORY = "128MB"  # for DuckDB; the process takes some 100 MB more
MERGE_VALUES = 16 << 20
_QUIET_SECONDS = 3600.0  # a day that is over and got nothing for so long is taken for complete
_FORGOTTEN_SECONDS = 3 * 86_400.0  # folders that are older are not compacted by the hub
_LEAST_ROWS = 100_000  # with fewer, sorting text takes less time than finding its distinct values
_MOST_TEXTS = 10_000  # distinct values of a column: each row group has a list of them
_SELECTED_BY = frozenset(("cluster", "jobid", "step", "node"))  # columns by which readers select row groups


def compact(lake: Lake, unfinished: Callable[[], set[str]], progress: Progress | None = None) -> int:
    """Merge the files of each day into few, and return how many were replaced. Readers are not affected.

    Files of unfinished jobs, given by their safe names, are kept: they may be rewritten. `unfinished` is
    called after the files were listed, so that no job can start in between.
    """
    done = 0
    folders = sorted(lake.path.glob("set=*/date=*"))
    with_bounds = open_bounded(lake.path)
    for number, folder in enumerate(folders, 1):
        with suppress(FileNotFoundError):  # that day was removed meanwhile
            done += compact_folder(with_bounds, folder, unfinished)
            remove_replaced(folder, now_at(str(folder)))
        if progress:
            progress(number, len(folders))
    lake.report(*with_bounds.problems)
    return done


def open_bounded(path: Path) -> Lake:
    """Return a lake for compaction. Its process is short: what it reads several times, it keeps."""
    return Lake(path, MEMORY, keep_metadata=True)


def compact_small(lake: Lake) -> int:
    """Merge the files that a hub writes: by size tiers, and those of a past day into as few as possible."""
    done = 0
    now = now_at(str(lake.path))
    today = time.strftime("%Y-%m-%d", time.gmtime())
    for folder in sorted(lake.path.glob("set=*/date=*")):
        with suppress(FileNotFoundError):  # that day was removed meanwhile
            age = now - folder.stat().st_mtime
            if age < _FORGOTTEN_SECONDS:
                complete = folder.name.removeprefix("date=") < today and age > _QUIET_SECONDS
                done += _compact_listed(lake, folder, lambda: lambda path: is_of_hub(path.name), complete)
                remove_replaced(folder, now)
    return done


def compact_folder(lake: Lake, folder: Path, unfinished: Callable[[], set[str]]) -> int:
    def wanted() -> Wanted:
        jobs = unfinished()
        return lambda path: (found := job_file(path.name)) is None or found.job not in jobs

    return _compact_listed(lake, folder, wanted, all_tiers=True)


def _compact_listed(lake: Lake, folder: Path, wanted: Callable[[], Wanted], all_tiers: bool) -> int:
    """In rounds, for what was merged can be merged further."""
    done = 0
    known: dict[Path, int] = {}
    while True:
        listing = list_folder(folder)
        lake.report(*listing.problems)
        chosen = wanted()
        files = [path for path in listing.files if chosen(path) and not _is_range(listing, path)]
        known = _sizes(lake, listing, files, known) if len(files) > 1 else {}
        paths, sizes = list(known), list(known.values())
        merged = 0
        for choice in (choose, choose_large):
            for group in choice(sizes, MERGE_VALUES, all_tiers):
                merged += _merge(lake, folder, {paths[at]: sizes[at] for at in group})
        if not merged:
            return done
        done += merged


def _is_range(listing: Listing, path: Path) -> bool:
    extent = listing.extents.get(path.name)
    return extent is not None and extent.nodes is not None


def _sizes(lake: Lake, listing: Listing, files: list[Path], known: Mapping[Path, int]) -> dict[Path, int]:
    """How many values each has room for, without those that cannot be read."""
    found = {path: known[path] for path in files if path in known}
    found |= {path: extent.values for path in files if (extent := listing.extents.get(path.name))}
    unknown = _set_damaged_aside(lake, [path for path in files if path not in found])
    nothing: dict[Path, int] = {}
    found |= lake.attempt(unknown, lake.count_values, nothing)
    return {path: found[path] for path in files if path in found}


def _set_damaged_aside(lake: Lake, files: list[Path]) -> list[Path]:
    """Check files before they are merged: a new file would have a valid checksum over wrong numbers.

    Return those that are sound. Files that cannot be read now are kept for a later cycle.
    """
    found = lake.check(files)
    for path, why in found.damaged.items():
        set_aside(lake, path, why)
    lake.report_unreadable(found)
    return [path for path in files if path not in found.damaged and path not in found.unreadable]


def _merge(lake: Lake, folder: Path, chosen: Mapping[Path, int]) -> int:
    """Merge files, given with their values: by job and node into several if they cannot be sorted at once.

    Return how many files were replaced: none if another compactor has merged some of them meanwhile.
    """
    from joblens.store.lake.engine import duckdb

    began = now_at(str(lake.path))
    listing, files = list_folder(folder), list(chosen)
    if not set(files) <= set(listing.files):
        return 0
    several = sum(chosen.values()) > MERGE_VALUES
    if several and not is_divisible(lake.schema(files)):
        return _merge_undivided(lake, folder, chosen)
    files = _set_damaged_aside(lake, files)

    def put_together(sound: list[Path]) -> int:
        if len(sound) < 2:
            return 0
        try:
            schema = lake.schema(sound)
            enums = make_enums(lake, sound, schema, sum(chosen.values()))
            # Each range reads all files, so there are as few as fit into memory.
            largest = MERGE_VALUES * 3 // 4 * width(schema) // (enums.width or width(schema))
            ranges = find_ranges(lake, sound, largest) if several else [Range()]
            return replace_files(lake, listing, sound, ranges, enums, began) if ranges else 0
        except duckdb.OutOfMemoryException:  # sets with thousands of columns
            lake.report(f"{folder}: files are not merged: that takes more than {lake.memory} of memory")
            return 0

    # Files that another compactor has removed are not listed again.
    return lake.attempt(Files(files, lambda: Files([])), put_together, 0, lake.read_through)


def _merge_undivided(lake: Lake, folder: Path, chosen: Mapping[Path, int]) -> int:
    """Merge rows without job and node into files that can each be sorted at once."""
    files, sizes = list(chosen), list(chosen.values())
    groups = fill(sizes, range(len(sizes)), MERGE_VALUES, MOST_AT_ONCE)
    return sum(
        _merge(lake, folder, {files[at]: sizes[at] for at in group}) for group in groups if len(group) > 1
    )


def replace_files(
    lake: Lake, listing: Listing, files: list[Path], ranges: list[Range], enums: Enums, began: float
) -> int:
    """Replace files by others with the rows of these ranges. Return how many files were replaced.

    `began`: by the file system's clock. Another compactor takes older files that no manifest names for
    leftovers of a crash, and removes them."""
    folder = files[0].parent
    number = listing.next_manifest.partition(".")[0]
    schema = lake.schema(files)
    made: dict[Path, Extent] = {}
    published = False
    try:
        for part in ranges:
            path = folder / f"compacted-{number}-{os.urandom(8).hex()}.parquet"
            source = f"(SELECT {enums.before} FROM {part.of(as_table(files))})"
            lake.copy(source, schema.keys() - enums.constant, path, group_rows(schema), enums.after)
            made[path] = lake.extent(path)._replace(jobs=part.jobs, nodes=part.nodes)
        if abs(now_at(str(lake.path)) - began) > GRACE_SECONDS / 2:
            lake.report(f"{folder}: files are not merged, as that took more than {GRACE_SECONDS / 2:.0f} s")
            return 0
        published = _publish(listing, files, made)
        if published and not _are_there(made):
            (folder / listing.next_manifest).unlink()
            published = False
            lake.report(f"{folder}: files are not merged, as another has removed what was made of them")
    finally:
        for path in () if published else made:
            path.unlink(missing_ok=True)
    for path in files if published else ():
        path.unlink(missing_ok=True)
    return len(files) if published else 0


def _are_there(paths: Iterable[Path]) -> bool:
    """Open them: unlike stat(2), that is not answered from an NFS cache. Raises OSError if that fails."""
    try:
        for path in paths:
            path.open("rb").close()
        return True
    except FileNotFoundError:
        return False


def _publish(listing: Listing, files: list[Path], made: Mapping[Path, Extent]) -> bool:
    """False if another was faster: it has seen the same files, and one of us has worked in vain."""
    folder = files[0].parent
    manifest = str(folder / listing.next_manifest)
    unfinished = unfinished_name(manifest)
    replaces = dict.fromkeys([*(path.name for path in files), *listing.may_come_again])
    described = {path.name: extent for path, extent in made.items()}
    try:
        Path(unfinished).write_bytes(render_manifest(described, list(replaces)))
        return publish_once(unfinished, manifest)
    except OSError as error:
        Path(unfinished).unlink(missing_ok=True)
        raise OutsideError(f"{folder} cannot be compacted") from error


class Enums(NamedTuple):
    """The columns of a SELECT, as SQL, before and after rows are sorted."""

    before: str = "*"
    after: str = "*"
    constant: frozenset[str] = frozenset()  # columns with one text, by which rows need not be sorted
    width: int = 0  # the memory of a row, in numbers; 0: as without ENUMs


def make_enums(lake: Lake, files: list[Path], schema: Mapping[str, str], values: int) -> Enums:
    """Make text columns ENUMs while rows are sorted: integers are compared and moved instead of text.

    In the file a column stays an ENUM, which is smaller, unless readers select row groups by it: the
    statistics of a row group say nothing about the values of an ENUM. Raises duckdb.Error.
    """
    texts = [name for name, kind in schema.items() if kind == "VARCHAR"]
    rows = values // width(schema)
    if not texts or rows < _LEAST_ROWS:
        return Enums()
    table = as_table(files)
    counted = ", ".join(
        f"approx_count_distinct({column}), count(*) > count({column})" for column in map(identifier, texts)
    )
    (found,) = lake.connection.execute(f"SELECT {counted} FROM {table}").fetchall()
    before, after, kinds, constant = [], [], dict(schema), set()
    for number, (name, count, has_null) in enumerate(zip(texts, found[::2], found[1::2])):
        if not 0 < count <= _MOST_TEXTS:
            continue
        column, kind = identifier(name), f"merged{number}"
        distinct = f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY 1"
        lake.connection.execute(f"DROP TYPE IF EXISTS {kind}")
        lake.connection.execute(f"CREATE TYPE {kind} AS ENUM ({distinct})")
        only = None if has_null or count > 1 else _only(lake, kind)
        before.append(f"{column if only is None else literal(only)}::{kind} AS {column}")
        kinds[name] = kind
        if only is not None:
            constant.add(name)
        if name in _SELECTED_BY and count > 1 and rows > group_rows(schema):
            after.append(f"{column}::VARCHAR AS {column}")
    return Enums(_replace(before), _replace(after), frozenset(constant), width(kinds))


def _only(lake: Lake, kind: str) -> str | None:
    """Return the only text of a type, None if it has several or if it cannot stand in a query."""
    ((texts,),) = lake.connection.execute(f"SELECT enum_range(NULL::{kind})").fetchall()
    return str(texts[0]) if len(texts) == 1 and str(texts[0]).isprintable() else None


def _replace(columns: list[str]) -> str:
    return f"* REPLACE ({', '.join(columns)})" if columns else "*"
