"""One folder of the lake, a day of a set: which of its files count, and which can go.

    JOB.FIRST-LAST.parquet         the samples of a job's batches FIRST to LAST
    hub~ID.FIRST-LAST.parquet      those of all nodes in these segments of a hub's journal
    compacted-NUMBER-X.parquet     those of many files in one, or of some jobs of them, once there is
    NUMBER.manifest                {"file": …, "replaces": […], "values": …, "first": …, "last": …}
                                   or {"files": {NAME: {"values": …, …}, …}, "replaces": […]}

Of the files with the same JOB.FIRST one counts: each was written from all batches from FIRST on, so the one
with the highest LAST contains the others. Files that a manifest replaces do not count from the moment at
which the manifest has its name. Only one writer can get a name, and it has read all earlier manifests: so
they never contradict each other, however many hosts compact at the same time.

Files are removed as soon as they are replaced. A reader that has listed them before gets ENOENT and lists
again. Manifests are kept for an hour: a slow writer may store a job's batches again, and a reader that
lists a folder in less time sees the manifest of every file that is removed meanwhile.

A hub that was killed stores its last segment again, possibly hours later. So each manifest also names the
files of the last segment of every hub that earlier manifests have replaced, though they may be removed
already.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from joblens.core.errors import MalformedError
from joblens.core.files import UNFINISHED, changed_at, list_names, sync_folder
from joblens.core.json_file import parse_json
from joblens.core.named_tuple import NamedTuple

GRACE_SECONDS = 3600.0  # so long replaced names stay known, and what a crash has left behind stays
_JOB_FILE = re.compile(r"([\w%~-]+)\.(0|[1-9]\d{0,17})-(0|[1-9]\d{0,17})\.parquet", re.ASCII)
_COMPACTED = re.compile(r"compacted-(\d{8})-[0-9a-f]+\.parquet", re.ASCII)
_MANIFEST = re.compile(r"(\d{8})\.manifest", re.ASCII)
_LARGEST_MANIFEST = 1 << 28
_MOST_KEPT = 1000  # manifests in memory


HUB = "hub~"  # so no job's name begins, as safe_name writes it

Key = tuple[str, int]  # JOB and FIRST


class JobFile(NamedTuple):
    job: str  # as safe_name writes it
    first: int
    last: int

    @property
    def key(self) -> Key:
        return self.job, self.first

    @property
    def name(self) -> str:
        return f"{self.job}.{self.first}-{self.last}.parquet"


class Extent(NamedTuple):
    """Size and bounds of a file. Times are in nanoseconds since 1970."""

    values: int  # as many as its rows have room for; a text counts for several
    first: int
    last: int
    # The first and the last in the order of names, of a file that has some jobs and nodes of others.
    jobs: tuple[str, str] | None = None
    nodes: tuple[str, str] | None = None


class Manifest(NamedTuple):
    name: str
    files: dict[str, Extent | None]  # joblens 0.1 did not say what is in them
    replaces: frozenset[str]


class Listing(NamedTuple):
    files: list[Path]  # that count, by age as far as their names give it
    next_manifest: str
    problems: list[str]
    may_come_again: list[str]  # what a hub may write once more, though it is replaced
    manifests: list[Manifest]
    extents: dict[str, Extent | None]  # by the names of files that manifests name


def job_file(name: str) -> JobFile | None:
    match = _JOB_FILE.fullmatch(name)
    return JobFile(match[1], int(match[2]), int(match[3])) if match else None


def is_of_hub(name: str) -> bool:
    """Also if it was merged from such files. A file of one job is not: it may be rewritten."""
    found = job_file(name)
    return found is None or found.job.startswith(HUB)


def list_folder(folder: Path) -> Listing:
    while True:
        names = list_names(str(folder))
        manifests, problems = _load_manifests(folder, names)
        # A folder is not listed in one moment. What was removed meanwhile is replaced by a manifest that is
        # there when the folder is listed again.
        if _manifest_names(names) == _manifest_names(list_names(str(folder))):
            return _make_listing(folder, names, manifests, problems)


def _manifest_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if _MANIFEST.fullmatch(name)]


def _make_listing(folder: Path, names: list[str], manifests: list[Manifest], problems: list[str]) -> Listing:
    replaced = {name for manifest in manifests for name in manifest.replaces}
    closed = _keys(replaced)
    files = {JobFile(*key, last).name for key, last in _reach(names).items() if key not in closed}
    made = {name: extent for it in manifests for name, extent in it.files.items() if name not in replaced}
    numbers = [int(name.partition(".")[0]) for name in _manifest_names(names)]
    following = f"{max(numbers, default=0) + 1:08d}.manifest"
    ordered = [folder / name for name in sorted(files | made.keys(), key=_age)]
    return Listing(ordered, following, problems, _last_of_hubs(replaced), manifests, made)


def _age(name: str) -> tuple[str, int, int, str]:
    """In this order: segments by their numbers, which names alone do not give."""
    found = job_file(name)
    return (found.job, found.first, found.last, name) if found else ("", 0, 0, name)


def _last_of_hubs(names: Iterable[str]) -> list[str]:
    """Hubs take one segment after the other: of each the files of the last."""
    hubs: dict[str, dict[int, list[str]]] = {}
    for found in map(job_file, names):
        if found and found.job.startswith(HUB):
            hub = found.job.split("~")[1]
            hubs.setdefault(hub, {}).setdefault(found.first, []).append(found.name)
    return sorted(name for segments in hubs.values() for name in segments[max(segments)])


def _keys(names: Iterable[str]) -> set[Key]:
    return {found.key for found in map(job_file, names) if found}


def _reach(names: Iterable[str]) -> dict[Key, int]:
    reach: dict[Key, int] = {}
    for found in map(job_file, names):
        if found:
            reach[found.key] = max(found.last, reach.get(found.key, -1))
    return reach


def _load_manifests(folder: Path, names: list[str]) -> tuple[list[Manifest], list[str]]:
    found: list[Manifest] = []
    problems: list[str] = []
    for name in filter(_MANIFEST.fullmatch, names):
        try:
            path = os.path.join(folder, name)
            status = os.stat(path)
            found.append(_read_manifest(path, (status.st_mtime_ns, status.st_size, status.st_ino)))
        except FileNotFoundError:  # what it has put together is in another by now
            continue
        except MalformedError as error:
            problems.append(f"{error}; what was compacted with it is left out")
    return found, problems


@lru_cache(_MOST_KEPT)
def _read_manifest(path: str, version: tuple[int, ...]) -> Manifest:
    """A folder is listed many times for one report, and manifests do not change."""
    with open(path, "rb") as file:
        return parse_manifest(path, file.read(_LARGEST_MANIFEST))


def parse_manifest(path: str, data: bytes) -> Manifest:
    try:
        found = parse_json(data)
        files = found["files"] if "files" in found else {found["file"]: found}
        extents = {name: _parse_extent(described) for name, described in files.items()}
        replaces = frozenset(found["replaces"])
        sound = files and all(map(_is_compacted, files)) and all(map(_is_replaceable, replaces))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MalformedError(path, f"not a manifest: {type(error).__name__}: {error}") from None
    if not sound:
        raise MalformedError(path, "not a manifest: it names other things than the files of its folder")
    return Manifest(os.path.basename(path), extents, replaces)


def _parse_extent(found: dict[str, Any]) -> Extent | None:
    numbers = [found.get(name) for name in ("values", "first", "last")]
    values, first, last = (number if type(number) is int else None for number in numbers)
    if values is None or first is None or last is None:
        return None
    return Extent(values, first, last, _parse_bounds(found.get("jobs")), _parse_bounds(found.get("nodes")))


def _parse_bounds(found: Any) -> tuple[str, str] | None:
    texts = isinstance(found, list) and len(found) == 2 and all(isinstance(text, str) for text in found)
    return (found[0], found[1]) if texts else None


def render_manifest(files: Mapping[str, Extent], replaces: list[str]) -> bytes:
    """One file is written as joblens 0.1 reads it. That refuses a manifest of several, and removes none."""
    described = {name: extent._asdict() for name, extent in files.items()}
    if len(described) > 1:
        return json.dumps({"files": described, "replaces": replaces}).encode()
    ((name, extent),) = described.items()
    return json.dumps({"file": name, "replaces": replaces, **extent}).encode()


def _is_compacted(name: object) -> bool:
    return isinstance(name, str) and _COMPACTED.fullmatch(name) is not None


def _is_replaceable(name: object) -> bool:
    return isinstance(name, str) and (_is_compacted(name) or job_file(name) is not None)


def remove_replaced(folder: Path, now: float) -> None:
    """Remove replaced files, and old files of a crashed writer. `now` is the file system's time.

    Files whose replacement is missing are kept: its manifest may be about to be withdrawn.
    """
    names = list_names(str(folder))
    manifests, problems = _load_manifests(folder, names)
    old = {name for name in names if now - changed_at(folder / name, now) > GRACE_SECONDS}
    known = {name for manifest in manifests for name in manifest.replaces}.union(names)
    replaced = {name for it in manifests if it.files.keys() <= known for name in it.replaces}
    closed = _keys(replaced)
    reach = _reach(name for name in names if name in old)
    named = {name for manifest in manifests for name in manifest.files}
    for name in names:
        found = job_file(name)
        if found:
            useless = found.key in closed or found.last < reach.get(found.key, -1)
        elif _is_compacted(name):
            # A manifest that cannot be read may name any of them: then none is taken for a leftover.
            useless = name in replaced or (name in old and name not in named and not problems)
        else:
            useless = name.endswith(UNFINISHED) and name in old
        if useless:
            (folder / name).unlink(missing_ok=True)
    due = [manifest for manifest in manifests if manifest.name in old]
    gone = {name for manifest in due for name in manifest.replaces}
    _remove_manifests(folder, [manifest for manifest in due if manifest.files.keys() <= gone])


def _remove_manifests(folder: Path, useless: list[Manifest]) -> None:
    """Remove manifests all of whose replaced files are removed: the others are still needed."""
    if useless:
        sync_folder(str(folder / "x"))
    for manifest in useless:
        if not any((folder / name).exists() for name in manifest.replaces):
            (folder / manifest.name).unlink(missing_ok=True)
