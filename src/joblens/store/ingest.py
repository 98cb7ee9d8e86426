"""Ingest of jobs: from the batches that are written while a job runs to the lake.

The samples of a short job are stored later: joblens.store.pending.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from joblens.core.errors import MalformedError
from joblens.core.files import list_names, now_at, write_whole
from joblens.core.json_file import parse_json, render_json
from joblens.core.named_tuple import NamedTuple
from joblens.core.procfs import find_start, read_pid_namespace
from joblens.store.home import Home
from joblens.store.lake.columns import check
from joblens.store.location import END, FACTS

if TYPE_CHECKING:
    from joblens.core.model import Sample
    from joblens.record.job import JobEnd, JobFacts
    from joblens.store.lake.lake import Lake

_LARGEST = 1 << 26  # bytes
_Kind = TypeVar("_Kind")
# Values that are held in memory and written to one file. A retry after a crash must write the same files, so
# only the batches decide.
_CHUNK_VALUES = 3_000_000
# As many are soon added up without DuckDB and NumPy, which take a third of a second to load.
_SHORT_VALUES = 200_000
# A batch is written every half a minute, or with each sample if these are rarer: after so long without one,
# the joblens of a job on another node or in another pid namespace is taken to have ended.
_ABANDONED_SECONDS = 600.0
_ENDED_SECONDS = 5.0  # the same if its end is known: its record may be being made


class GoneError(Exception):
    """Another has completed the job, or brought it into the lake, while we were reading its batches."""


class Incoming(NamedTuple):
    """A job whose record or samples are not stored yet."""

    folder: Path
    facts: JobFacts
    end: JobEnd | None


def take_back(found: Incoming) -> Incoming:
    """At its end, a job that was taken for left behind: others could not see that its joblens lives.

    They have stored it as one whose end is not known. With the same start the record that is made now takes
    the place of theirs. Samples that wait come back; the others are in the lake.
    """
    if found.folder.exists() or found.end is None:
        return found
    try:
        os.rename(found.folder.parent.parent / "waiting" / found.folder.name, found.folder)
    except FileNotFoundError:
        found.folder.mkdir(mode=0o700)
        write_whole(str(found.folder / FACTS), render_json(found.facts.to_dict()))
    return found._replace(end=found.end.replace(start=found.facts.start))


def list_incoming(home: Home) -> Iterator[Incoming]:
    """Yield those that can be completed; `problems` reports the others."""
    for folder in folders(home.incoming):
        try:
            found = load_job(folder)
        except (MalformedError, OSError):
            continue
        if found is not None:
            yield found


def problems(home: Home) -> list[str]:
    """Report jobs whose facts are unreadable."""
    found = []
    for folder in (*folders(home.incoming), *folders(home.waiting)):
        try:
            load_job(folder)
        except (MalformedError, OSError) as error:
            found.append(f"{error}; its samples stay in {folder}")
    return found


def unfinished(home: Home) -> set[str]:
    """The jobs that may still be written to the lake, by the names of their folders."""
    # In this order: a job goes from the one to the other, and must not be missed in between.
    return {folder.name for parent in (home.incoming, home.waiting) for folder in folders(parent)}


def folders(parent: Path) -> list[Path]:
    found = (parent / name for name in list_names(str(parent)))
    return [path for path in found if path.is_dir()]


def load_job(folder: Path) -> Incoming | None:
    """None if there is none, or none any more."""
    from joblens.record.job import JobEnd, JobFacts

    facts = _load(folder / FACTS, JobFacts)
    return None if facts is None else Incoming(folder, facts, _load(folder / END, JobEnd))


def _load(path: Path, kind: type[_Kind]) -> _Kind | None:
    from joblens.record.fields import read

    try:
        with path.open("rb") as file:
            return read(parse_json(file.read(_LARGEST)), kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(path), f"damaged: {error!s:.200}") from None


def is_abandoned(found: Incoming, node: str, boot: str, now: float | None = None) -> bool:
    """Whether no other process will complete it: its joblens has ended, or is silent."""
    facts = found.facts
    here, same_boot = facts.node == node, facts.boot == boot
    if here and same_boot and (facts.pid_namespace or "") in ("", read_pid_namespace()):
        return not _lives(facts.supervisor)
    try:
        newest = max(path.stat().st_mtime for path in (found.folder, *found.folder.iterdir()))
        silent = (now_at(str(found.folder.parent)) if now is None else now) - newest
    except OSError:  # it has just been completed, or nothing can be written here anyway
        return False
    # A name need not be one node's alone: what shows since we were booted is none that we were before.
    before_boot = here and not same_boot and silent > time.clock_gettime(time.CLOCK_BOOTTIME)
    limit = _ENDED_SECONDS if found.end else max(_ABANDONED_SECONDS, 3 * facts.interval)
    return before_boot or silent > limit


def _lives(supervisor: list[int] | None) -> bool:
    """Whether the process with this pid and start runs: the pid alone may be reused."""
    try:
        pid, start = supervisor or []
        return find_start(pid) == start
    except (ValueError, OverflowError):
        return False


def save_samples(
    lake: Lake, found: Incoming, progress: Callable[[int, int], None] | None = None
) -> list[str]:
    """Into the lake, in chunks. What cannot be read is said, and put into the folder `damaged`."""
    problems: list[str] = []
    chunk: dict[int, list[Sample]] = {}
    values = 0
    for sequence, samples in read_batches(found, problems, _put_aside, progress):
        chunk[sequence] = samples
        values += _count(samples)
        if values >= _CHUNK_VALUES:
            lake.save(found.facts.id, found.facts.node, chunk)
            chunk, values = {}, 0
    if chunk:
        lake.save(found.facts.id, found.facts.node, chunk)
    return problems


def load_short(found: Incoming, problems: list[str]) -> list[Sample] | None:
    """All samples of a job, or None if these are many."""
    loaded: list[Sample] = []
    values = 0
    for _, samples in read_batches(found, problems, _put_aside):
        values += _count(samples)
        if values > _SHORT_VALUES:
            return None
        loaded += samples
    return loaded


def read_batches(
    found: Incoming,
    problems: list[str],
    damaged: Callable[[Path], str],
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[tuple[int, list[Sample]]]:
    """One after the other, with their numbers. Raises GoneError as soon as they need not be all any more."""
    paths = [found.folder / name for name in list_names(str(found.folder)) if name.endswith(".batch")]
    try:
        with (found.folder / FACTS).open("rb"):  # unlike stat(2), this revalidates a file server's cache
            pass
    except FileNotFoundError:  # they go first: so what was just listed need not be all
        raise GoneError from None
    for number, path in enumerate(paths, 1):
        try:
            batch = _load_batch(path, found.facts.id)
        except MalformedError as error:
            problems.append(f"{path}: {error}; {damaged(path)}")
        except FileNotFoundError:
            raise GoneError from None
        else:
            yield batch
        if progress:
            progress(number, len(paths))


def _count(samples: list[Sample]) -> int:
    return sum(len(sample.rows.values) for sample in samples)


def _load_batch(path: Path, job: str) -> tuple[int, list[Sample]]:
    from joblens.wire.batch import decode

    header, samples = decode(path.read_bytes())
    check(samples)
    sequence = header.get("sequence")
    if type(sequence) is not int or path.stem != f"{sequence:08d}" or header.get("id") != job:
        raise MalformedError("batch", "it is another one than its name and folder say")
    return sequence, samples


def _put_aside(path: Path) -> str:
    folder = path.parent.parent.parent / "damaged"
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / f"{path.parent.name}.{path.name}"
    with suppress(FileNotFoundError):  # done by another
        path.rename(target)
    return f"kept as {target}"


def remove(folder: Path) -> None:
    """Remove the folder once record and samples are stored, the facts first: without them it is not a job."""
    import shutil

    (folder / FACTS).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def never_began(folder: Path) -> bool:
    """Or was completed: a crash has left the folder without the facts."""
    return not (folder / FACTS).exists()
