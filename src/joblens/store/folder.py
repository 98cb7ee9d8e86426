"""One folder of the lake, a day of a set: which of its files count, and which can go.

    JOB.FIRST-LAST.parquet         the samples of a job's batches FIRST to LAST
    hub~ID.N-N.parquet             those of all nodes in segment N of a hub's journal
    compacted-NUMBER-X.parquet     those of many files in one, once there is
    NUMBER.manifest                {"file": …, "replaces": […]}

Of the files with the same JOB.FIRST one counts: each of them was made anew from all batches from FIRST on,
so the one that goes furthest has the others in it. What a manifest replaces does not count, from the
moment at which the manifest has its name. Only one writer can get a name, and it has seen all manifests
before it: so they never contradict each other, however many hosts compact at once.

A hub that was killed takes the segment again that it had begun, maybe hours later. So each manifest names the
files of the last segment of every hub that any before it has replaced, though they may be gone by then.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from joblens.errors import MalformedError
from joblens.files import UNFINISHED, list_names, sync_folder

GRACE_SECONDS = 3600.0  # a reader that listed the files before they were replaced can still open them
_JOB_FILE = re.compile(r"([\w%~-]+)\.(0|[1-9]\d{0,17})-(0|[1-9]\d{0,17})\.parquet", re.ASCII)
_COMPACTED = re.compile(r"compacted-(\d{8})-[0-9a-f]+\.parquet", re.ASCII)
_MANIFEST = re.compile(r"(\d{8})\.manifest", re.ASCII)
_LARGEST_MANIFEST = 1 << 28


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


class Manifest(NamedTuple):
    name: str
    file: str
    replaces: frozenset[str]


class Listing(NamedTuple):
    files: list[Path]  # that count
    next_manifest: str
    problems: list[str]
    may_come_again: list[str]  # what a hub may write once more, though it is replaced


def job_file(name: str) -> JobFile | None:
    match = _JOB_FILE.fullmatch(name)
    return JobFile(match[1], int(match[2]), int(match[3])) if match else None


def list_folder(folder: Path) -> Listing:
    names = list_names(str(folder))
    manifests, problems = _load_manifests(folder, names)
    replaced = {name for manifest in manifests for name in manifest.replaces}
    closed = _keys(replaced)
    files = {JobFile(*key, last).name for key, last in _reach(names).items() if key not in closed}
    files |= {manifest.file for manifest in manifests} - replaced
    numbers = [int(match[1]) for match in map(_MANIFEST.fullmatch, names) if match]
    following = f"{max(numbers, default=0) + 1:08d}.manifest"
    return Listing([folder / name for name in sorted(files)], following, problems, _last_of_hubs(replaced))


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
            with (folder / name).open("rb") as file:
                found.append(parse_manifest(str(folder / name), file.read(_LARGEST_MANIFEST)))
        except FileNotFoundError:  # what it has put together is in another by now
            continue
        except MalformedError as error:
            problems.append(f"{error}; what was compacted with it is left out")
    return found, problems


def parse_manifest(path: str, data: bytes) -> Manifest:
    try:
        found = json.loads(data)
        file, replaces = found["file"], frozenset(found["replaces"])
        sound = _is_compacted(file) and all(map(_is_replaceable, replaces))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise MalformedError(path, f"not a manifest: {type(error).__name__}: {error}") from None
    if not sound:
        raise MalformedError(path, "not a manifest: it names other things than the files of its folder")
    return Manifest(os.path.basename(path), file, replaces)


def render_manifest(file: str, replaces: list[str]) -> bytes:
    return json.dumps({"file": file, "replaces": replaces}).encode()


def _is_compacted(name: object) -> bool:
    return isinstance(name, str) and _COMPACTED.fullmatch(name) is not None


def _is_replaceable(name: object) -> bool:
    return isinstance(name, str) and (_is_compacted(name) or job_file(name) is not None)


def remove_replaced(folder: Path, now: float) -> None:
    """What was replaced long enough ago, and what a crash has left behind. `now` is the file system's."""
    names = list_names(str(folder))
    manifests, problems = _load_manifests(folder, names)
    old = {name for name in names if now - _changed(folder / name, now) > GRACE_SECONDS}
    due = [manifest for manifest in manifests if manifest.name in old]
    gone = {name for manifest in due for name in manifest.replaces}
    closed = _keys(gone)
    reach = _reach(name for name in names if name in old)
    named = {manifest.file for manifest in manifests}
    for name in names:
        found = job_file(name)
        if found:
            useless = found.key in closed or found.last < reach.get(found.key, -1)
        elif _is_compacted(name):
            # A manifest that cannot be read may name any of them: then none is taken for a leftover.
            useless = name in gone or (name in old and name not in named and not problems)
        else:
            useless = name.endswith(UNFINISHED) and name in old
        if useless:
            (folder / name).unlink(missing_ok=True)
    # Only now the manifests of what is gone: as long as a replaced file is there, it must be known as such.
    sync_folder(str(folder / "x"))
    for manifest in due:
        if manifest.file in gone and not any((folder / name).exists() for name in manifest.replaces):
            (folder / manifest.name).unlink(missing_ok=True)


def _changed(path: Path, otherwise: float) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return otherwise
