"""Short jobs that are stored, and whose samples wait for their way into the lake.

To load DuckDB and to write nine small files costs more than a short job may. So its folder is only renamed,
from `incoming/JOB` to `waiting/JOB`, once its record is there; who asks for its samples gets them from the
batches. Into the lake they come when it is compacted, or when many wait. Files of the lake are named by
what is in them, so that it does not matter how many do that at once, nor where one is killed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from joblens.core.errors import MalformedError, OutsideError, sentence
from joblens.core.files import changed_at, list_names, sync_folder
from joblens.core.lock import SUFFIX, open_lock, take_lock
from joblens.core.model import Sample
from joblens.store import ingest
from joblens.store.home import Home
from joblens.store.location import MOST_WAITING, safe_name
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import LakeReader

if TYPE_CHECKING:
    from joblens.store.lake.lake import Lake

_MOST, _AT_ONCE = MOST_WAITING, 50  # of the oldest


def let_wait(home: Home, found: ingest.Incoming) -> bool:
    """Once its record is there. False if it cannot wait, so that its samples have to go to the lake now."""
    try:
        home.waiting.mkdir(mode=0o700, exist_ok=True)
        os.rename(found.folder, home.waiting / found.folder.name)
    except FileNotFoundError:  # another has completed it
        return True
    except OSError:  # an earlier job of that name waits still, or the folders are on different disks
        return False
    for parent in (home.waiting, home.incoming):
        sync_folder(str(parent / "x"))
    return True


def find_reader(home: Home, lake: Lake, job: str, start: float) -> LakeReader | SamplesReader:
    """For the samples of a job that began then, wherever they are."""
    problems: list[str] = []
    samples: list[Sample] = []
    try:
        found = ingest.load_job(home.waiting / safe_name(job))
        if found is None or (found.end or found.facts).start != start:
            return LakeReader(lake)
        for _, batch in ingest.read_batches(found, problems, lambda path: "it is left out"):
            samples += batch
    except (ingest.GoneError, MalformedError):  # ingest.problems reports damaged facts
        return LakeReader(lake)
    lake.report(*problems)
    return SamplesReader(samples, job, found.facts.node)


def settle(lake: Lake, folder: Path) -> list[str]:
    """The samples of one into the lake. What of them cannot be read is said."""
    found = ingest.load_job(folder)
    if found is None:  # another was faster
        return []
    try:
        problems = ingest.save_samples(lake, found)
    except ingest.GoneError:
        return []
    ingest.remove(folder)
    return problems


def settle_all(home: Home, lake: Lake) -> list[str]:
    """Store the samples of all. A job that fails stays pending, and is reported."""
    problems: list[str] = []
    for folder in ingest.folders(home.waiting):
        try:
            problems += settle(lake, folder)
        except MalformedError:  # ingest.problems reports its facts
            continue
        except (OutsideError, OSError) as error:
            problems.append(f"{folder}: its samples stay there: {sentence(error)}")
    return problems


def many_wait(home: Home) -> bool:
    return len(list_names(str(home.waiting))) > _MOST


def settle_some(home: Home) -> None:
    """Store some in the background after the end of a job, unless another process does that."""
    with one_at_a_time(home.waiting) as free:
        if free:
            _settle_oldest(home)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[bool]:
    """Only to save work: without locks, several processes write the same files."""
    file = open_lock(f"{folder}{SUFFIX}")
    try:
        yield take_lock(file)
    finally:
        os.close(file)


def _settle_oldest(home: Home) -> None:
    from joblens.store.lake.lake import Lake

    lake, done = Lake(home.lake), 0
    for folder in sorted(ingest.folders(home.waiting), key=changed_at):
        try:
            settle(lake, folder)
        except MalformedError:
            continue
        except (OutsideError, OSError):  # it stays pending and blocks no other; compaction reports it
            pass
        done += 1
        if done == _AT_ONCE:
            return
