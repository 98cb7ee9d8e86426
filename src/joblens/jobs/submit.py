"""From archives of captured jobs to the store, each of them once, however often it is submitted.

The rows are in files of the lake that are named by the checksum of their records: repeated after a crash, the
same files are written. When they and the job's record are stored, `submitted/DIGEST.json` says so. Until
then a folder in `incoming` keeps these files from being compacted.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from joblens.analysis.summary import summarise
from joblens.analysis.window_report import inputs_of
from joblens.capture.columns import ColumnReader, ProcessColumns, Program, ThreadColumns, basename
from joblens.capture.records import describe_damage
from joblens.collectors.ends.sets import PROCESS_END, THREAD_END
from joblens.core.errors import MalformedError, OutsideError, sentence
from joblens.core.files import make_folder, write_whole
from joblens.core.json_file import render_json
from joblens.core.model import Schema
from joblens.jobs.archive import SUFFIX, Archive, Manifest, NodeRecords, open_archive
from joblens.jobs.facts import end_of, facts_of
from joblens.record.job import JobEnd, JobFacts, Totals
from joblens.record.report import JobRecord
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.index import Catalog
from joblens.store.home import Home
from joblens.store.lake.columns import Table, make_table, storable
from joblens.store.lake.folder import JobFile
from joblens.store.lake.lake import Lake
from joblens.store.location import safe_name
from joblens.store.reader import LakeReader, Span
from joblens.store.records import day_of, save_record

Accounting = Callable[[BatchJob], BatchJob | None]  # returns what the batch system knows of a job now

_FOLDER = "submitted"
# Numbers of files beyond those of all batches; the checksum says which.
_FIRST, _DIGITS = 10**17, 13
_SUMMED = {
    "time": "TIMESTAMP_NS", "jobid": "VARCHAR", "cluster": "VARCHAR", "user_seconds": "DOUBLE",
    "system_seconds": "DOUBLE", "memory_peak_bytes": "BIGINT",
}  # fmt: skip
_ROUNDED = 2.0  # seconds: batch systems count in whole ones
_UNKNOWN = "UNKNOWN"
_NO_END = "its end was not known when it was submitted; submit it again after its end"
_NO_SAMPLES = "no samples of this job: its usage is that of the captured processes"


class Outcome(NamedTuple):
    """What has become of an archive."""

    path: Path
    job: str = ""
    nodes: int = 0
    processes: int = 0
    threads: int = 0
    is_known: bool = False  # it was stored before
    problem: str = ""  # why it was not stored


def find_archives(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield each archive, and those in each folder; links in a folder are not followed."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, _, names in os.walk(path):
            found = (Path(folder) / name for name in sorted(names) if name.endswith(SUFFIX))
            yield from (it for it in found if not it.is_symlink())


def submit(home: Home, path: Path, accounting: Accounting, dry_run: bool = False) -> Outcome:
    """Store an archive; with `dry_run` only read all of it. A failure is in the outcome."""
    try:
        with open_archive(path) as archive:
            return _check(archive) if dry_run else _submit(home, archive, accounting)
    except (OutsideError, OSError) as error:
        words = sentence(error)
        return Outcome(path, problem=words if str(path) in words else f"{path}: {words}")


def _check(archive: Archive) -> Outcome:
    found = _describe(archive)
    for number in range(len(archive.manifest.files)):
        processes, threads = _read(archive, number, []).merge()
        found = _counted(found, processes, threads)
    return found


def _read(archive: Archive, number: int, problems: list[str]) -> ColumnReader:
    reader = ColumnReader()
    archive.pass_records(number, reader.take)
    reader.finish()
    problems += describe_damage(f"capture on {archive.manifest.files[number].node}", reader.damage)
    return reader


def _submit(home: Home, archive: Archive, accounting: Accounting) -> Outcome:
    manifest, found = archive.manifest, _describe(archive)
    if os.geteuid() == 0 and archive.owner not in (0, manifest.job.uid):
        why = f"a file of uid {archive.owner} cannot have a job of uid {manifest.job.uid}"
        raise MalformedError(str(archive.path), why)
    done = home.path / _FOLDER / f"{manifest.digest}.json"
    with _in_progress(home, manifest.job.id):
        if done.exists():
            _finish_later(home, manifest, accounting)
            return found._replace(is_known=True)
        if len(manifest.files) > 1:  # of a damaged archive nothing is stored
            for number in range(len(manifest.files)):
                archive.pass_records(number, lambda piece: None)
        lake, problems = Lake(home.lake), list(manifest.problems)
        for number, file in enumerate(manifest.files):
            processes, threads = _read(archive, number, problems).merge()
            _save(lake, manifest, file, processes, threads)
            found = _counted(found, processes, threads)
        _save_record(home, lake, manifest, accounting, problems)
        make_folder(done.parent)
        write_whole(str(done), render_json({"job": manifest.job.id, "archive": archive.path.name}))
    return found


def _describe(archive: Archive) -> Outcome:
    return Outcome(archive.path, archive.manifest.job.shown_id, len(archive.manifest.files))


def _counted(found: Outcome, processes: ProcessColumns, threads: ThreadColumns) -> Outcome:
    more = len(processes.programs), len(threads.names)
    return found._replace(processes=found.processes + more[0], threads=found.threads + more[1])


@contextmanager
def _in_progress(home: Home, job: str) -> Iterator[None]:
    """Hold the job's folder in `incoming`. Another process that stores the same job waits."""
    folder = home.incoming / f"{safe_name(job)}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks: the same files are written twice
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
        with suppress(OSError):  # it is another's, too
            folder.rmdir()


def _save(
    lake: Lake, manifest: Manifest, file: NodeRecords, processes: ProcessColumns, threads: ThreadColumns
) -> None:
    number = _FIRST + int(file.sha256[:_DIGITS], 16)
    name = JobFile(safe_name(manifest.job.id), number, number).name
    date = day_of(manifest.end)
    for schema, found, texts in (
        (PROCESS_END, processes, _program_texts(processes)),
        (THREAD_END, threads, {"name": _texts(threads.names)}),
    ):
        if len(found.values):
            table = _make_table(manifest, file, schema, {**found.keys, **texts}, found.values)
            lake.save_tables(schema.set, date, name, [table])


def _make_table(
    manifest: Manifest, file: NodeRecords, schema: Schema, keys: dict[str, Any], values: Any
) -> Table:
    job, count = manifest.job, len(values)
    same = {"cluster": job.cluster, "jobid": job.id, "node": file.node, "source": ""}
    constant = {name: numpy.full(count, storable(text), dtype=object) for name, text in same.items()}
    labels = {**constant, **keys}
    times = numpy.full(count, int(manifest.end * 1e9), dtype=numpy.int64)
    return make_table(schema, times, {name: labels[name] for name in schema.labels}, values)


def _program_texts(processes: ProcessColumns) -> dict[str, Any]:
    columns = list(zip(*processes.programs)) if processes.programs else [()] * len(Program._fields)
    texts = {name: _texts(column) for name, column in zip(Program._fields, columns)}
    names = {text: basename(text) for text in set(columns[0])}
    return {**texts, "name": _texts([names[text] for text in columns[0]])}


def _texts(cells: Sequence[str]) -> Any:
    return numpy.array(cells, dtype=object)


def _save_record(
    home: Home, lake: Lake, manifest: Manifest, accounting: Accounting, problems: list[str]
) -> None:
    facts, end = _inputs(home, manifest, accounting)
    if not (end.totals and end.totals.is_known):
        end.totals = _sum_up(lake, Span(facts.id, end.start, end.end + 1.0, facts.cluster))
    record = summarise(facts, end, LakeReader(lake))
    record.data.problems += [*problems, *lake.problems]
    if not record.data.samples:
        record.data.problems.append(_NO_SAMPLES)
    save_record(home.records, record)


def _inputs(home: Home, manifest: Manifest, accounting: Accounting) -> tuple[JobFacts, JobEnd]:
    """By accounting, else by the record that the store has, else by the archive alone."""
    job = _ended(manifest, accounting)
    known = _find_record(home, manifest)
    if job is None and known is not None:
        facts, end = inputs_of(known)
        end.problems = [it for it in known.data.problems if it not in (_NO_SAMPLES, _NO_END)]
        if known.used.cpu_seconds_exact is not None and _NO_SAMPLES not in known.data.problems:
            end.totals = Totals(known.used.user_seconds, known.used.system_seconds)
        return _tagged(facts, manifest), end
    facts = _tagged(facts_of(job or _as_far_as_known(manifest)), manifest)
    end = end_of(job or _as_far_as_known(manifest), [])
    if job is None and end.state == _UNKNOWN and manifest.job.scheduler != "run":
        end.problems = [_NO_END]
    if known is not None:
        facts = facts.replace(interval=known.data.interval_seconds or facts.interval)
    return facts, end


def _ended(manifest: Manifest, accounting: Accounting) -> BatchJob | None:
    """Ask for the job, if a batch system has it. The answer may be another run of the same id."""
    if manifest.job.scheduler == "run":
        return None
    job = accounting(manifest.job)
    if job is None or job.end is None or job.start is None:
        return None
    during = job.start - _ROUNDED <= manifest.start <= job.end + _ROUNDED
    return job.replace(cluster=manifest.job.cluster) if during else None


def _as_far_as_known(manifest: Manifest) -> BatchJob:
    job = manifest.job
    start = manifest.start if job.start is None else min(job.start, manifest.start)
    end = manifest.end if job.end is None else max(job.end, manifest.end)
    state = job.state if job.end is not None or job.exit_code is not None else _UNKNOWN
    return job.replace(start=start, end=max(start, end), state=state)


def _tagged(facts: JobFacts, manifest: Manifest) -> JobFacts:
    tags = {**(facts.tags or {}), **manifest.tags}
    return facts.replace(tags=tags, environment=facts.environment or dict(manifest.environment))


def _find_record(home: Home, manifest: Manifest) -> JobRecord | None:
    catalog = Catalog(home)
    try:
        for run in reversed(catalog.runs(f"{manifest.job.id}@{manifest.job.cluster}")):
            last = run.start if run.end is None else run.end
            if run.start - _ROUNDED <= manifest.start <= last + _ROUNDED:
                with suppress(LookupError, MalformedError):
                    return catalog.report((run.cluster, run.id, run.start))
        return None
    finally:
        catalog.close()


def _sum_up(lake: Lake, span: Span) -> Totals:
    """Return the usage of the captured processes, where accounting has none."""
    rows = lake.query(
        lake.files("process_end", span.dates(), span.job),
        _SUMMED,
        "SELECT sum(user_seconds), sum(system_seconds), max(memory_peak_bytes) FROM {lake} "
        "WHERE jobid = $job AND cluster = $cluster "
        "AND time BETWEEN make_timestamp_ns($first) AND make_timestamp_ns($last)",
        {"job": span.job, "cluster": span.cluster, **span.nanoseconds()},
    )
    user, system, largest = rows[0] if rows else (None, None, None)
    return Totals(user, system, largest_rss_bytes=largest)


def _finish_later(home: Home, manifest: Manifest, accounting: Accounting) -> None:
    """Make the record again if the end of the job was unknown before, and is known now."""
    known = _find_record(home, manifest)
    if known is not None and known.job.state == _UNKNOWN and _ended(manifest, accounting) is not None:
        _save_record(home, Lake(home.lake), manifest, accounting, list(manifest.problems))
