"""Records of capture become batches of the job, as the samples are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from joblens.capture.native_rows import is_available, read_rows
from joblens.capture.processes import Merger
from joblens.capture.records import Damage, Records, describe_damage, describe_missing
from joblens.capture.session import FOLDER, SUFFIX, remove_folder
from joblens.capture.sets import JobKey, process_rows, thread_rows
from joblens.core.errors import sentence
from joblens.core.files import write_quickly
from joblens.core.model import Rows, Sample
from joblens.record.job import JobFacts
from joblens.store.ingest import Incoming
from joblens.wire.batch import Batch
from joblens.wire.header import Head

# Repeated after a crash, the same batches are written again: their numbers follow those of all samples.
_FIRST = 50_000_000
_ROWS = 5000  # per batch


def take_captured(found: Incoming) -> list[str]:
    """Write the batches, then delete the records. Return the problems."""
    folder = found.folder / FOLDER
    if not _is_own(folder):
        return [f"the records of processes are lost: {os.path.realpath(folder)} is not there, or not ours"]
    end_ns = int((found.end.end if found.end else found.facts.start) * 1e9)
    problems: list[str] = []
    number = _FIRST
    for path in sorted(folder.glob("*" + SUFFIX)):
        for rows in _rows_of(path, found.facts, problems):
            _write(found, number, Sample(end_ns, rows))
            number += 1
    remove_folder(str(folder))
    return problems


def _is_own(folder: Path) -> bool:
    """Whether it is here: that of a shared store is a link to a folder of the node that the job ran on."""
    try:
        return folder.is_dir() and folder.stat().st_uid in (os.geteuid(), folder.lstat().st_uid)
    except OSError:
        return False


def _rows_of(path: Path, facts: JobFacts, problems: list[str]) -> Iterator[Rows]:
    name = path.name.removesuffix(SUFFIX)
    try:
        problems += describe_missing(f"capture on {name}", path.stat().st_mode)
        data = path.read_bytes()
    except OSError as error:
        problems.append(f"the records of processes on {name} are lost: {sentence(error)}")
        return
    yield from make_rows((facts.cluster, facts.id, name), data, problems)


def make_rows(job: JobKey, data: bytes, problems: list[str]) -> Iterator[Rows]:
    """Yield the processes and threads in the records of a node. Damage is added to `problems`."""
    *found, damage = (read_rows(job, data) if is_available() else None) or _merge(job, data)
    problems += describe_damage(f"capture on {job[2]}", damage)
    for rows in found:
        yield from _chunks(rows)


def _merge(job: JobKey, data: bytes) -> tuple[Rows, Rows, Damage]:
    records, merger = Records(data), Merger()
    merger.take(records)
    return process_rows(job, merger.processes()), thread_rows(job, merger.threads), records.damage


def _chunks(rows: Rows) -> Iterator[Rows]:
    for first in range(0, len(rows.keys), _ROWS):
        width, last = len(rows.schema.columns), first + _ROWS
        yield Rows(rows.schema, rows.keys[first:last], rows.values[first * width : last * width])


def _write(found: Incoming, number: int, sample: Sample) -> None:
    facts, batch = found.facts, Batch()
    batch.add([sample])
    head: Head = {"cluster": facts.cluster, "node": facts.node, "boot": facts.boot or "", "id": facts.id}
    write_quickly(str(found.folder / f"{number:08d}.batch"), batch.encode({**head, "sequence": number}))
