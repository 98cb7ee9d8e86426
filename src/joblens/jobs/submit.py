"""From archives of captured jobs to the store, each of them once, however often it is submitted.

The rows are in files of the lake that are named by session and node: repeated after a crash, the same files
are written, and of a session that is staged again, with more records, the larger file replaces the smaller.
What other files have already, as after compaction, is left out. When they and the job's record are stored,
`submitted/JOB/DIGEST.json` says so, until the job is deleted. Before that a folder in `incoming` keeps these
files from being compacted.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy

from joblens.analysis.summary import summarise
from joblens.analysis.window_report import inputs_of
from joblens.capture.columns import ProcessColumns, ThreadColumns, basename, new_reader
from joblens.capture.processes import Program
from joblens.capture.records import describe_damage
from joblens.collectors.ends.sets import PROCESS_END, THREAD_END
from joblens.core.errors import MalformedError, OutsideError, sentence
from joblens.core.files import make_folder, write_whole
from joblens.core.json_file import render_json
from joblens.core.model import ABSENT, Schema
from joblens.core.secrets import mask_further
from joblens.jobs.archive import SUFFIX, Archive, Manifest, NodeRecords, open_archive
from joblens.jobs.facts import end_of, facts_of
from joblens.jobs.in_progress import in_progress
from joblens.jobs.judge import Judge
from joblens.record.job import JobEnd, JobFacts, Totals
from joblens.record.report import Job, JobRecord
from joblens.schedulers.facts import BatchJob
from joblens.store.catalog.choice import open_catalog
from joblens.store.edit import forget_archives
from joblens.store.home import Home
from joblens.store.lake.columns import Table, identifier, make_table, storable
from joblens.store.lake.folder import JobFile, job_file, list_folder
from joblens.store.lake.lake import Lake, select_text, text_column
from joblens.store.location import safe_name
from joblens.store.reader import LakeReader, Span
from joblens.store.records import day_of
from joblens.store.saving import remove_record, save_record

if TYPE_CHECKING:
    from joblens.capture.columns import Numbers

    Mask = numpy.ndarray[Any, numpy.dtype[numpy.bool_]]

Accounting = Callable[[BatchJob], BatchJob | None]  # returns what the batch system knows of a job now

Row = tuple[str | int | None, ...]  # identifies a process or thread of a job

# Numbers of files beyond those of all batches; a checksum says which.
_FIRST, _DIGITS = 10**17, 13
_SKEW = 3600.0  # seconds that a clock of another host may be ahead
_STORED = {
    "cluster": "VARCHAR", "jobid": "VARCHAR", "node": "VARCHAR", "source": "VARCHAR", "pid": "BIGINT",
    "start": "BIGINT", "tid": "BIGINT", "began_seconds": "DOUBLE",
}  # fmt: skip
_SUMMED = {
    "time": "TIMESTAMP_NS", "jobid": "VARCHAR", "cluster": "VARCHAR", "user_seconds": "DOUBLE",
    "system_seconds": "DOUBLE", "memory_peak_bytes": "BIGINT",
}  # fmt: skip
_MOST_DISTINCT = 20_000  # texts of a column that become a type of DuckDB's
_GROUP_ROWS = 14_336  # of the lake's files: a group is held in memory
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
    is_final: bool = False  # and so is the end of its job: the archive is not needed any more
    problem: str = ""  # why it was not stored
    outside: bool = False  # because of a disk, a server or the like: it can be stored later
    waits: str = ""  # why its record is not in the database yet
    warnings: tuple[str, ...] = ()  # what is missing in it


def find_archives(
    paths: Iterable[Path], refuse: Callable[[Outcome], object] = lambda outcome: None
) -> Iterator[Path]:
    """Yield each archive, and those in each folder. In a folder, links are refused, which somebody else may
    have made, and folders that cannot be read."""

    def refuse_folder(error: OSError) -> None:
        refuse(Outcome(Path(error.filename), problem=sentence(error)))

    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, folders, names in os.walk(path, onerror=refuse_folder):
            folders.sort()
            archives = {name for name in names if name.endswith(SUFFIX)}
            for name in sorted((*folders, *archives)):
                if (it := Path(folder) / name).is_symlink():
                    refuse(Outcome(it, problem=f"{it}: a link in a folder is not followed"))
                elif name in archives:
                    yield it


def submit(home: Home, path: Path, accounting: Accounting, dry_run: bool = False) -> Outcome:
    """Store an archive; with `dry_run` only read all of it. A failure is in the outcome."""
    try:
        with open_archive(path) as archive:
            return _check(archive) if dry_run else _submit(home, archive, accounting)
    except (OutsideError, OSError) as error:
        words = sentence(error)
        outside = not isinstance(error, MalformedError)
        return Outcome(path, problem=words if str(path) in words else f"{path}: {words}", outside=outside)
    except Exception as error:  # whatever it is: the other archives are stored
        return Outcome(path, problem=f"{path}: {type(error).__name__}: {error!s:.200}")


def _check(archive: Archive) -> Outcome:
    found, problems = _describe(archive), list[str]()
    for number in range(len(archive.manifest.files)):
        found = _counted(found, *_read(archive, number, problems))
    return _warned(found, problems)


def _read(archive: Archive, number: int, problems: list[str]) -> tuple[ProcessColumns, ThreadColumns]:
    """Return the processes and threads of a node, without those of joblens itself."""
    reader, file = new_reader(), archive.manifest.files[number]
    archive.pass_records(number, reader.take)
    reader.finish()
    problems += describe_damage(f"capture on {file.node}", reader.damage)
    processes, threads = reader.merge()
    own = {(it.pid, it.start) for it in archive.manifest.own if it.node == file.node}
    if not own:
        return processes, threads
    kept, kept_threads = _are_others(own, processes.keys), _are_others(own, threads.keys)
    return _keep(processes, kept), _keep(threads, kept_threads)


def _keep(found: Any, kept: Any) -> Any:
    """Return the rows of processes or threads that are kept."""
    keys, places, texts, values = found
    chosen = {name: column[kept] for name, column in keys.items()}
    return found._make((chosen, places[kept], texts, [column[kept] for column in values]))


def _are_others(own: set[tuple[int, int]], keys: dict[str, Numbers]) -> Mask:
    pairs = zip(keys["pid"].tolist(), keys["start"].tolist())
    return numpy.array([pair not in own for pair in pairs], dtype=bool)


def _submit(home: Home, archive: Archive, accounting: Accounting) -> Outcome:
    found = _describe(archive)
    manifest = archive.manifest if _is_trusted(archive) else _checked(home, archive, accounting)
    if manifest.end > time.time() + _SKEW:
        raise MalformedError(str(archive.path), "its end is in the future")
    done = home.submitted / safe_name(manifest.job.id) / f"{manifest.digest}.json"
    with in_progress(home, manifest.job.id):
        if done.exists():
            if _is_stored(home, manifest):
                return found._replace(is_known=True, is_final=_finish_later(home, manifest, accounting))
            forget_archives(home, manifest.job.id)  # all of them are gone
        if len(manifest.files) > 1:  # of a damaged archive nothing is stored
            for number in range(len(manifest.files)):
                archive.pass_records(number, lambda piece: None)
        lake, problems = Lake(home.lake), list[str]()
        rows = _Rows(lake, manifest, _find_record(home, manifest) is not None)
        for number in range(len(manifest.files)):
            found = rows.save(found, number, *_read(archive, number, problems))
        waits = _save_record(home, lake, manifest, accounting, [*manifest.problems, *problems])
        make_folder(done.parent)
        write_whole(str(done), render_json({"job": manifest.job.id, "archive": archive.path.name}))
    return _warned(found._replace(waits=waits), problems)


def _is_trusted(archive: Archive) -> bool:
    """Root may store what it has staged itself, and others anything that they can read in their own store."""
    return os.geteuid() != 0 or archive.owner == 0


def _checked(home: Home, archive: Archive, accounting: Accounting) -> Manifest:
    """Return the manifest under the name of the file's owner. Raises MalformedError if the job is another's:
    what the manifest says of it proves nothing."""
    job, owner = archive.manifest.job, archive.owner
    if owner != job.uid:
        raise MalformedError(str(archive.path), f"a file of uid {owner} cannot have a job of uid {job.uid}")
    if job.scheduler == "run" and not job.id.startswith("r"):
        raise MalformedError(str(archive.path), f"{job.id!r:.100} is an id of a batch system's job")
    jobs: list[Job | BatchJob] = [record.job for record in _find_records(home, archive.manifest)]
    if job.scheduler != "run" and (reported := accounting(job)) is not None:
        jobs.append(reported)
    if job.scheduler != "run" and not jobs:  # it may be another's that runs now
        why = f"neither accounting nor the store confirms that job {job.id:.100} is of uid {owner}"
        raise MalformedError(str(archive.path), why)
    for known in jobs:
        if _uid_of(known) != owner:
            whose = known.user or f"uid {known.uid}"
            raise MalformedError(str(archive.path), f"job {job.id:.100} is {whose}'s, not of uid {owner}")
    return archive.manifest.replace(job=job.replace(user=_name_of(owner)))


def _uid_of(job: Job | BatchJob) -> int | None:
    if job.uid is None:
        with suppress(KeyError):
            return pwd.getpwnam(job.user).pw_uid
    return job.uid


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _describe(archive: Archive) -> Outcome:
    return Outcome(archive.path, archive.manifest.job.shown_id, len(archive.manifest.files))


def _counted(found: Outcome, processes: ProcessColumns, threads: ThreadColumns) -> Outcome:
    more = len(processes.program), len(threads.name)
    return found._replace(processes=found.processes + more[0], threads=found.threads + more[1])


def _warned(found: Outcome, problems: list[str]) -> Outcome:
    return found._replace(warnings=tuple(f"{found.path}: {it}" for it in problems))


class _Rows:
    """Writes the rows of an archive. `again`: the store has the job, so other files may have some of them."""

    def __init__(self, lake: Lake, manifest: Manifest, again: bool) -> None:
        self._lake, self._manifest, self._again = lake, manifest, again
        self._date = day_of(manifest.end)
        self._stored: dict[str, set[Row]] = {}
        self._closed: dict[str, set[int]] = {}  # numbers of files that were compacted

    def save(self, found: Outcome, number: int, processes: ProcessColumns, threads: ThreadColumns) -> Outcome:
        self._save(self._manifest.files[number], processes, threads)
        return _counted(found, processes, threads)

    def _save(self, file: NodeRecords, processes: ProcessColumns, threads: ThreadColumns) -> None:
        for schema, found, texts in (
            (PROCESS_END, processes, _program_texts(processes)),
            (THREAD_END, threads, {"name": _make_text(threads.name, threads.names)}),
        ):
            kept = self._find_new(schema, file, found.keys, found.values[0])
            if len(kept):
                cells = {**texts, **_same_texts(self._manifest, file, len(found.values[0]))}
                table, distinct = _make_table(self._manifest, schema, found, cells, kept)
                self._lake.save_tables(
                    schema.set, self._date, self._name(schema, file), [table], ordered=True, texts=distinct,
                    group_rows=_GROUP_ROWS,
                )  # fmt: skip

    def _name(self, schema: Schema, file: NodeRecords) -> str:
        """Of the same session and node the one with the most records counts, unless others are compacted."""
        first = self._session(file)
        if first in self._compacted(schema):
            first = _number(file.sha256)
        return JobFile(safe_name(self._manifest.job.id), first, 2 * _FIRST + file.bytes).name

    def _session(self, file: NodeRecords) -> int:
        session = f"{self._manifest.job.cluster}\n{self._manifest.start!r}\n{file.node}"
        return _number(hashlib.sha256(session.encode("utf-8", "replace")).hexdigest())

    def _compacted(self, schema: Schema) -> set[int]:
        if schema.set not in self._closed:
            folder = self._lake.path / f"set={schema.set}" / f"date={self._date}"
            replaced = {name for it in list_folder(folder).manifests for name in it.replaces}
            job = safe_name(self._manifest.job.id)
            self._closed[schema.set] = {it.first for it in map(job_file, replaced) if it and it.job == job}
        return self._closed[schema.set]

    def _find_new(
        self, schema: Schema, file: NodeRecords, keys: dict[str, Numbers], times: Numbers
    ) -> Numbers:
        """Return the places of rows that no other file has."""
        if not self._again or not (stored := self._find_stored(schema)):
            return numpy.arange(len(times))
        began = [None if time == ABSENT else time / 1e9 for time in times.tolist()]
        threads = keys["tid"].tolist() if "tid" in keys else [None] * len(began)
        rows = zip(began, keys["pid"].tolist(), keys["start"].tolist(), threads)
        is_new = [place for place, row in enumerate(rows) if _row(file.node, *row) not in stored]
        return numpy.array(is_new, dtype=numpy.int64)

    def _find_stored(self, schema: Schema) -> set[Row]:
        """Return what files that are not replaced by those of this archive have of the job."""
        if schema.set not in self._stored:
            job = self._manifest.job
            names = {self._name(schema, file).partition("-")[0] for file in self._manifest.files}
            dates = day_of(self._manifest.start), "9999"
            others = self._lake.files(schema.set, dates, job.id).choose(
                lambda path: (
                    path.parent.name != f"date={self._date}" or path.name.partition("-")[0] not in names
                )
            )
            found = self._lake.query(
                others,
                _STORED,
                "SELECT node, began_seconds, pid, start, tid FROM {lake} "
                "WHERE jobid = $job AND cluster = $cluster AND coalesce(source, '') = ''",
                {"job": storable(job.id), "cluster": storable(job.cluster)},
            )
            self._stored[schema.set] = {_row(*row) for row in found}
        return self._stored[schema.set]


def _number(digest: str) -> int:
    return _FIRST + int(digest[:_DIGITS], 16)


def _row(node: str, began: float | None, pid: int, start: int, thread: int | None) -> Row:
    """A process has its start in ticks, if that is known; others have it in milliseconds."""
    since = round((began or 0.0) * 1e3) if thread is not None or not start else 0
    return storable(node), pid, start, thread, since


class _Text(NamedTuple):
    """A column of text: the places of its cells among the distinct ones."""

    places: Any
    distinct: list[str]

    def order(self) -> Any:
        """Return numbers that are in the order of the texts."""
        ranks = {text: rank for rank, text in enumerate(sorted(set(self.distinct)))}
        return numpy.array([ranks[text] for text in self.distinct], dtype=numpy.int64)[self.places]


def _same_texts(manifest: Manifest, file: NodeRecords, rows: int) -> dict[str, _Text]:
    """Return what all rows have in common."""
    job, places = manifest.job, numpy.zeros(rows, dtype=numpy.int64)
    same = {"cluster": job.cluster, "jobid": job.id, "node": file.node, "source": ""}
    return {name: _Text(places, [storable(text)]) for name, text in same.items()}


def _program_texts(processes: ProcessColumns) -> dict[str, _Text]:
    columns = [list(it) for it in zip(*processes.programs)] or [[]] * len(Program._fields)
    texts = dict(zip(Program._fields, columns))
    texts["command"] = mask_further(texts["command"])
    texts["name"] = [basename(text) for text in texts["executable"]]
    return {name: _make_text(processes.program, cells) for name, cells in texts.items()}


def _make_text(places: Any, cells: list[str]) -> _Text:
    numbers: dict[str, int] = {}
    found = numpy.array([numbers.setdefault(cell, len(numbers)) for cell in cells], dtype=numpy.int64)
    return _Text(found[places], list(numbers))


def _make_table(
    manifest: Manifest, schema: Schema, found: Any, texts: dict[str, _Text], kept: Any
) -> tuple[Table, dict[str, list[str]]]:
    """Return the rows in the order of files of the lake, and the distinct texts of each column. The values
    of `found` are those of the table then."""
    keys = {**found.keys, **{name: text.order() for name, text in texts.items() if name == "step"}}
    sorts = [keys[name][kept] for name in ("tid", "start", "pid", "step") if name in keys]
    order = kept[numpy.lexsort(sorts)]
    times = numpy.full(len(order), int(manifest.end * 1e9), dtype=numpy.int64)
    labels = {name: found.keys[name][order] for name in schema.labels if name in found.keys}
    for number, column in enumerate(found.values):  # one after the other, as they need much memory
        found.values[number] = column[order]
    table = make_table(schema, times, labels, found.values)
    selected, columns, distinct = [], table.columns, {}
    for name, text in texts.items():
        if len(text.distinct) > _MOST_DISTINCT:
            columns[name] = numpy.array(text.distinct, dtype=object)[text.places[order]]
            selected.append(identifier(name))
        else:
            columns[text_column(name)] = text.places[order]
            selected.append(f"{select_text(name)} AS {identifier(name)}")
            distinct[name] = text.distinct
    return Table(", ".join([table.select, *selected]), columns, schema.labels), distinct


def _save_record(
    home: Home, lake: Lake, manifest: Manifest, accounting: Accounting, problems: list[str]
) -> str:
    """Return why it has to wait for the database, or ""."""
    facts, end = _inputs(home, manifest, accounting)
    if not (end.totals and end.totals.is_known):
        end.totals = _sum_up(lake, Span(facts.id, end.start, end.end + 1.0, facts.cluster))
    reader = LakeReader(lake)
    record = summarise(facts, end, reader)
    record.data.problems += [*problems, *lake.problems]
    if not record.data.samples:
        record.data.problems.append(_NO_SAMPLES)
    Judge(home).judge(record, reader)
    replaced = [it.job for it in _find_records(home, manifest) if it.job.state == _UNKNOWN]
    waits = save_record(home, record)
    for job in replaced:
        if not waits and job.start != record.job.start:
            remove_record(home, (job.cluster, job.id, job.start))
    return waits


def _inputs(home: Home, manifest: Manifest, accounting: Accounting) -> tuple[JobFacts, JobEnd]:
    """By accounting, else by the record that the store has, else by the archive alone."""
    job = _ended(manifest, accounting)
    known = _find_record(home, manifest)
    if job is None and known is not None:
        facts, end = inputs_of(known)
        end.problems = [it for it in known.data.problems if it not in (_NO_SAMPLES, _NO_END)]
        if known.used.cpu_seconds_exact is not None and _NO_SAMPLES not in known.data.problems:
            end.totals = Totals(known.used.user_seconds, known.used.system_seconds)
        if _NO_SAMPLES in known.data.problems:
            _extend(end, end_of(_as_far_as_known(manifest), []))
            facts = facts.replace(start=end.start)
        return _tagged(facts, manifest), end
    facts = _tagged(facts_of(job or _as_far_as_known(manifest)), manifest)
    end = end_of(job or _as_far_as_known(manifest), [])
    if job is None and end.state == _UNKNOWN and manifest.job.scheduler != "run":
        end.problems = [_NO_END]
    if known is not None:
        facts = facts.replace(tags={**(known.job.tags or {}), **(facts.tags or {})})
        facts = facts.replace(interval=known.data.interval_seconds or facts.interval)
    return facts, end


def _extend(end: JobEnd, newer: JobEnd) -> None:
    """Of a job that is known by its archives only, and staged again or on another node."""
    end.start = min(end.start, newer.start)
    end.end = max(end.end, newer.end)
    if end.state == _UNKNOWN:
        end.state, end.exit_code, end.signal = newer.state, newer.exit_code, newer.signal


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
    tags, notes = (
        {**(facts.tags or {}), **manifest.tags},
        {**(facts.annotations or {}), **manifest.annotations},
    )
    environment = facts.environment or dict(manifest.environment)
    return facts.replace(tags=tags, annotations=notes or None, environment=environment)


def _find_record(home: Home, manifest: Manifest) -> JobRecord | None:
    """Return that of the run that has most of the capture. Nodes do not start a job at the same moment."""

    def common(record: JobRecord) -> float:
        last = record.job.start if record.job.end is None else record.job.end
        return min(last, manifest.end) - max(record.job.start, manifest.start)

    return max(_find_records(home, manifest), key=common, default=None)


def _find_records(home: Home, manifest: Manifest) -> list[JobRecord]:
    """Return those of all runs of the job that overlap capture, the newest first."""
    identity = storable(manifest.job.cluster), storable(manifest.job.id)
    found, catalog = [], open_catalog(home, creates=True)
    try:
        for run in reversed(catalog.runs(f"{manifest.job.id}@{manifest.job.cluster}")):
            last = run.start if run.end is None else run.end
            during = manifest.start <= last + _ROUNDED and run.start - _ROUNDED <= manifest.end
            if during and (run.cluster, run.id) == identity:
                with suppress(LookupError, MalformedError):
                    found.append(catalog.report((run.cluster, run.id, run.start)))
        return found
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


def remove_final(outcome: Outcome) -> str:
    """Remove an archive whose job is stored with its end. Return why it cannot be removed, or ""."""
    try:
        if outcome.is_final:
            outcome.path.unlink(missing_ok=True)
    except OSError as error:
        return f"{outcome.path}: cannot be removed: {error.strerror}"
    return ""


def _is_stored(home: Home, manifest: Manifest) -> bool:
    """False if the job was deleted after it was submitted. A job can have no rows, and a record may wait."""
    return _find_record(home, manifest) is not None or _has_rows(Lake(home.lake), manifest)


def _has_rows(lake: Lake, manifest: Manifest) -> bool:
    span = Span(manifest.job.id, manifest.start, manifest.end + _ROUNDED, manifest.job.cluster)
    rows = lake.query(
        lake.files("process_end", span.dates(), span.job),
        {"jobid": "VARCHAR", "cluster": "VARCHAR"},
        "SELECT 1 FROM {lake} WHERE jobid = $job AND cluster = $cluster LIMIT 1",
        {"job": storable(span.job), "cluster": storable(span.cluster)},
    )
    return bool(rows)


def _finish_later(home: Home, manifest: Manifest, accounting: Accounting) -> bool:
    """Make the record again if it is not there, or if the end of the job was unknown before and is known
    now. Return whether the store has the end, or no other source will ever report it."""
    known = _find_record(home, manifest)
    if known is not None and known.job.state != _UNKNOWN:
        return True
    is_run = manifest.job.scheduler == "run"
    is_final = is_run or _ended(manifest, accounting) is not None
    if known is None or (is_final and not is_run):
        waits = _save_record(home, Lake(home.lake), manifest, accounting, list(manifest.problems))
        return is_final and not waits
    return is_final
