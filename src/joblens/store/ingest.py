"""From the batches of a job to the lake, and from what is known of it to its record."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from joblens.agent.batch import decode
from joblens.errors import MalformedError
from joblens.files import write_whole
from joblens.model import Sample
from joblens.store.home import Home, safe_name
from joblens.store.lake import Lake

_FACTS, _END = "job.json", "end.json"
# So many values are held in memory and go into one file.
_CHUNK_VALUES = 3_000_000
_ABANDONED_SECONDS = 600.0


class Incoming(NamedTuple):
    """A job on its way into the store."""

    folder: Path
    facts: dict[str, Any]
    end: dict[str, Any] | None


def begin(home: Home, facts: dict[str, Any]) -> Path:
    """The folder for the batches of a job that starts."""
    folder = home.incoming / safe_name(facts["id"])
    folder.mkdir(mode=0o700)
    write_whole(str(folder / _FACTS), json.dumps(facts).encode("utf-8", "replace"))
    return folder


def finish(folder: Path, end: dict[str, Any]) -> None:
    write_whole(str(folder / _END), json.dumps(end).encode("utf-8", "replace"))


def list_incoming(home: Home) -> Iterator[Incoming]:
    for folder in sorted(home.incoming.iterdir()) if home.incoming.exists() else []:
        facts = _load(folder / _FACTS)
        if facts is not None:
            yield Incoming(folder, facts, _load(folder / _END))


def running(home: Home) -> set[str]:
    """The jobs that are not finished yet, by their ids."""
    return {str(found.facts["id"]) for found in list_incoming(home)}


def _load(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise MalformedError(str(path), str(error)) from None
    return found if isinstance(found, dict) else None


def is_abandoned(found: Incoming, node: str, boot: str, now: float | None = None) -> bool:
    """Whether nobody will finish it: it has ended, or its joblens has."""
    if found.end is not None:
        return True
    if found.facts.get("node") == node:
        return found.facts.get("boot") != boot or not _lives(found.facts.get("supervisor"))
    newest = max((path.stat().st_mtime for path in found.folder.iterdir()), default=0.0)
    return (time.time() if now is None else now) - newest > _ABANDONED_SECONDS


def _lives(supervisor: Any) -> bool:
    """The process, by its pid and start: the pid alone could be another's by now."""
    try:
        pid, start = supervisor
        with open(f"/proc/{int(pid)}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19]) == int(start)
    except (OSError, ValueError, TypeError, IndexError):
        return False


def save_samples(
    lake: Lake, found: Incoming, progress: Callable[[int, int], None] | None = None
) -> list[str]:
    """Into the lake, in chunks. What could not be read is said and stays where it is."""
    problems: list[str] = []
    paths = sorted(found.folder.glob("*.batch"))
    chunk: dict[int, list[Sample]] = {}
    values = 0
    for number, path in enumerate(paths, 1):
        try:
            header, samples = decode(path.read_bytes())
            chunk[int(header["sequence"])] = samples
        except (MalformedError, KeyError, ValueError, TypeError) as error:
            problems.append(f"{path}: {error}")
            continue
        values += sum(len(sample.rows.values) for sample in samples)
        if values >= _CHUNK_VALUES:
            lake.save(found.facts["id"], found.facts["node"], chunk)
            chunk, values = {}, 0
        if progress:
            progress(number, len(paths))
    if chunk:
        lake.save(found.facts["id"], found.facts["node"], chunk)
    return problems


def remove(found: Incoming) -> None:
    """Once its record is there. The facts go first: without them nobody takes it for a job."""
    (found.folder / _FACTS).unlink(missing_ok=True)
    shutil.rmtree(found.folder, ignore_errors=True)


def own_start() -> int:
    with open(f"/proc/{os.getpid()}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])
