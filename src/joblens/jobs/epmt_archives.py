"""Import of EPMT's archives: processes and threads into the lake, and a record for each job.

The rows of a job are written before its record, to files that are named by the job. An import that was killed
writes the same files again, and a job that has a record is left alone.
"""

from __future__ import annotations

import datetime
import hashlib
import math
import os
import pwd
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from joblens.analysis.summary import summarise
from joblens.core.errors import MalformedError, OutsideError, UsageError, printable, sentence
from joblens.core.files import size_of
from joblens.importers.epmt.archive import Archive, find_archives, open_archive
from joblens.importers.epmt.lake_rows import LakeJob, choose_files, remove_files, save_chunk
from joblens.importers.epmt.metadata import Metadata, parse_metadata
from joblens.importers.epmt.process_data import Chunk, read_chunks
from joblens.importers.epmt.totals import Totals
from joblens.importers.input_files import ImportResult, Progress, ReadProgress
from joblens.jobs.facts import INTERVAL
from joblens.jobs.in_progress import in_progress
from joblens.jobs.judge import Judge
from joblens.record.job import JobEnd, JobFacts
from joblens.record.report import Finding, Imported, JobRecord, ProcessCounts
from joblens.store.catalog.choice import open_catalog
from joblens.store.catalog.listing import Identity
from joblens.store.catalog.postgresql.connection import UnavailableError
from joblens.store.edit import NotAllowedError, delete
from joblens.store.edits import Change, add_edit, remove_edits
from joblens.store.home import Home
from joblens.store.lake.columns import LATEST_NS, storable
from joblens.store.lake.lake import Lake
from joblens.store.memory_reader import SamplesReader
from joblens.store.reader import LakeReader
from joblens.store.saving import save_record

_STEP = 900.0  # seconds: all zones in use are multiples of it from UTC
_WEST, _EAST = -12 * 3600.0, 14 * 3600.0
_SLACK = 2.0  # seconds by which the clock of a process may differ from that of the job
_KEPT_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_ON_NODE", "PBS_JOBID", "PBS_QUEUE", "OMP_NUM_THREADS", "LOADEDMODULES",
)  # fmt: skip
_UNKNOWN = "unknown"
_UNKNOWN_ZONE = "the time zone of its start and end is not known: import it again with --zone"
_GUESSED_ZONE = "its start and end name no time zone; taken as {}"


@dataclass
class EpmtResult(ImportResult):
    jobs: int = 0  # that are new
    replaced: int = 0  # whose time zone was not known before
    known: int = 0  # that have a record
    processes: int = 0  # of new jobs
    threads: int = 0
    broken: int = 0  # records of processes that could not be read
    outside: int = 0  # of the unusable archives: those that failed because of a disk, a server or the like

    def add(self, other: EpmtResult) -> None:
        for it in fields(self):
            setattr(self, it.name, getattr(self, it.name) + getattr(other, it.name))


_Span = tuple[float, float]  # the first start and the last end of a process


class _Times(NamedTuple):
    """Seconds since 1970."""

    submit: float | None
    start: float
    end: float
    zone: str  # by which times without one were read


def parse_zone(name: str) -> ZoneInfo | None:
    """Raises UsageError."""
    if not name:
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise UsageError(f"there is no time zone {name!r:.60}; write one like Asia/Kolkata") from None


def import_epmt(
    home: Home,
    paths: list[Path],
    zone: str = "",
    cluster: str = "",
    progress: Progress | None = None,
    check_owner: bool = False,
    workers: int = 1,
) -> EpmtResult:
    """Import archives and folders of them. Importing them again changes nothing.

    `check_owner`: an archive must belong to the user of its job, or to root. `workers`: archives that are
    imported at the same time, by forks of this process; one if it has other threads.
    """
    result, arguments = EpmtResult(), (home, parse_zone(zone), cluster, check_owner)
    archives = list(find_archives(paths, result.skip))
    read = ReadProgress(archives, progress)
    for found in _import_all(arguments, archives, workers):
        result.add(found.result)
        result.wait(found.waits)
        if found.left:  # the others would fail as well
            left = 1 + len(archives) - result.files
            result.skip(f"{found.left}; {left} of {len(archives)} archives are left: import them again")
            result.files, result.outside = len(archives), result.outside + left
            result.unusable += left - 1
            break
        read.add(size_of(found.path))
    read.finish()
    result.problems = list(dict.fromkeys(result.problems))  # each process reports those of the store
    return result


_Arguments = tuple[Home, ZoneInfo | None, str, bool]


class _Imported(NamedTuple):
    """What has become of an archive."""

    path: Path
    result: EpmtResult
    waits: str = ""  # why its record is not in the database yet
    left: str = ""  # why no other archive can be imported now


def _import_all(arguments: _Arguments, archives: list[Path], workers: int) -> Iterator[_Imported]:
    workers = min(workers, len(archives))
    if workers < 2 or len(os.listdir("/proc/self/task")) > 1:
        importer = _Importer(*arguments)
        yield from map(importer.try_one, archives)
        importer.catalog.close()
        return
    open_catalog(arguments[0], creates=True).close()  # once, and what prevents it is one error
    from joblens.jobs.forks import Forks

    forks = Forks(partial(_make_work, arguments), archives)
    try:
        forks.start(workers)
        yield from forks.results()
    finally:
        forks.end()
    if forks.left:  # without memory or connections for several of them, one process may import them
        try:
            yield from _import_all(arguments, forks.left, 1)
        except OutsideError as error:
            yield _Imported(forks.left[0], EpmtResult(files=1), left=sentence(error))


def _make_work(arguments: _Arguments) -> Callable[[Path], _Imported | None]:
    try:
        importer = _Importer(*arguments)
    except OutsideError:
        return lambda path: None

    def work(path: Path) -> _Imported | None:
        found = importer.try_one(path)
        return None if found.left else found

    return work


class _Importer:
    def __init__(self, home: Home, zone: ZoneInfo | None, cluster: str, check_owner: bool) -> None:
        self.home, self.zone, self.cluster, self.check_owner = home, zone, cluster, check_owner
        self.catalog, self.lake = open_catalog(home, creates=True), Lake(home.lake)
        self.judge = Judge(home)
        self._reported = set[str]()  # problems of catalog and lake

    def try_one(self, path: Path) -> _Imported:
        """Import an archive. A failure is in the result, unless the next one would fail too."""
        result, waits, left = EpmtResult(files=1), "", ""
        try:
            waits = self.take(path, result)
        except UnavailableError as error:
            left = sentence(error)
        except (OutsideError, OSError, NotAllowedError) as error:  # the other archives are imported
            result.outside += not isinstance(error, (MalformedError, NotAllowedError))
            result.skip_file(path, error, "archive")
        except MemoryError:
            result.skip_file(path, OutsideError(f"{path}: its data do not fit into memory"), "archive")
        problems = self.catalog.problems + self.lake.problems
        result.problems += [it for it in problems if it not in self._reported]
        self._reported.update(problems)
        return _Imported(path, result, waits, left)

    def take(self, path: Path, result: EpmtResult) -> str:
        """Return why the record waits for the database, if it does. Raises MalformedError, OutsideError and
        OSError."""
        archive = open_archive(path)
        metadata = parse_metadata(str(path), archive.metadata)
        if self.check_owner:
            _check_owner(path, metadata.user)
        totals = Totals()
        chunks = self._chunks(archive, totals)
        begin = list(islice(chunks, 1))

        def find_span() -> _Span | None:
            begin.extend(islice(chunks, 1))  # most jobs have no other
            return _span(begin if len(begin) < 2 else self._chunks(archive, Totals()))

        times = find_times(str(path), metadata, self.zone, find_span)
        cluster = self.cluster or metadata.environment.get("SLURM_CLUSTER_NAME", "")
        node = metadata.host or _first_host(begin) or "unknown"
        identity = storable(cluster or node), storable(metadata.id), times.start
        with in_progress(self.home, identity[1]):
            earlier = self._without_zone(path, identity) if self.zone and times.zone == self.zone.key else []
            if not earlier and self.catalog.written([identity]):
                self._report_known(path, metadata, identity, result)
                return ""
            for record in earlier:
                self._replace(record, identity)
            job = choose_files(self.lake, LakeJob(identity[0], identity[1], times.end, _number(identity)))
            remove_files(self.lake, job)
            totals.interval = int((times.start - _SLACK) * 1e6), int((times.end + _SLACK) * 1e6)
            for number in count():
                chunk = begin.pop(0) if begin else next(chunks, None)
                if chunk is None:
                    break
                totals.add(chunk)
                save_chunk(self.lake, job, number, chunk)
                del chunk  # before the next one is made
            facts = _facts(metadata, identity[0], times, totals.hosts or [node])
            made = make_record(path.name, facts, metadata, times, totals)
            self.judge.judge(made, LakeReader(self.lake))
            waits = save_record(self.home, made)
            if earlier:
                remove_edits(self.home.path, [identity])
            result.jobs += not earlier
            result.replaced += bool(earlier)
            result.processes += totals.processes
            result.threads += totals.threads
            result.broken += totals.broken
            if totals.broken:
                result.problems.append(
                    printable(
                        f"{path}: {totals.broken:,} records of processes are left out: {totals.examples[0]}"
                    )
                )
            return waits

    def _replace(self, earlier: JobRecord, identity: Identity) -> None:
        """Delete a job that is imported with another start. What people have changed is kept for it first."""
        for part in ("tags", "annotations"):
            change = Change(add=getattr(earlier.job, part) or {}, in_place=True)
            add_edit(self.home.path, identity, part, change)
        delete(self.home, self.catalog, self.lake, earlier)

    def _without_zone(self, path: Path, identity: Identity) -> list[JobRecord]:
        """Return the records that were made from this archive while its zone was not known."""
        cluster, id, _ = identity
        found = []
        for run in self.catalog.runs(f"{id}@{cluster}"):
            with suppress(LookupError):  # just deleted
                record = self.catalog.report((run.cluster, run.id, run.start))
                about = record.data.imported
                if (
                    isinstance(about, Imported)
                    and (run.cluster, run.id, about.archive) == (cluster, id, storable(path.name))
                    and (about.zone or "").startswith(_UNKNOWN)
                ):
                    found.append(record)
        return found

    def _report_known(self, path: Path, job: Metadata, identity: Identity, result: EpmtResult) -> None:
        """Another user's job with the same id, node and start is not the same job."""
        result.known += 1
        user = storable(job.user)
        with suppress(LookupError):  # just deleted
            user = self.catalog.report(identity).job.user
        if user != storable(job.user):
            what = f"job {job.id:.100} of {job.user:.100} is left out"
            result.problems.append(
                printable(f"{path}: {what}: {user:.100} has a stored job with its id, cluster and start")
            )

    def _chunks(self, archive: Archive, totals: Totals) -> Iterator[Chunk]:
        files = ((it.name, it.host, it.file) for it in archive.files())
        return read_chunks(files, archive.headers, totals.report, archive.kept is not None)


def _check_owner(path: Path, user: str) -> None:
    """What an archive says about its user proves nothing. Raises MalformedError and OSError."""
    uid = path.lstat().st_uid
    try:
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = str(uid)
    if uid != 0 and owner != user:
        raise MalformedError(str(path), f"a file of {owner} cannot have a job of {user:.100}")


def _number(identity: tuple[str, str, float]) -> int:
    return int.from_bytes(hashlib.sha256(repr(identity).encode()).digest()[:8], "big")


def _first_host(chunks: list[Chunk]) -> str:
    return next((host for chunk in chunks for host in chunk.texts.get("hostname", ()) if host), "")


def _span(chunks: Iterable[Chunk]) -> _Span | None:
    """Return the first start and the last end of a process."""
    first, last = math.inf, -math.inf
    for chunk in chunks:
        first = min(first, int(chunk.numbers["start"].min()) / 1e6)
        last = max(last, int(chunk.numbers["end"].max()) / 1e6)
    return (first, last) if 0 <= first <= last < LATEST_NS / 1e9 else None


def find_times(
    where: str, job: Metadata, zone: ZoneInfo | None, find_span: Callable[[], _Span | None]
) -> _Times:
    """Times of the job; those without a zone by the option, the job's TZ, or its processes.

    The times of processes are in UTC. If all of them fit into the job at one offset only, that is the offset.
    """
    name = ""
    if any(it is not None and it.tzinfo is None for it in (job.start, job.stop)):
        zone = zone or _zone_of(job)
        name = zone.key if zone else _guess_offset(job, find_span())
    start, end = (_moment(it, zone, name) for it in (job.start, job.stop))
    if start is None or end is None:
        begin, last = find_span() or (None, None)
        start = start if start is not None else begin
        end = end if end is not None else last
    if start is None:
        raise MalformedError(where, "neither job_metadata nor a process says when the job started")
    submit = _moment(job.submit, zone, name)
    return _Times(submit, start, max(end if end is not None else start, start), name)


def _zone_of(job: Metadata) -> ZoneInfo | None:
    try:
        return parse_zone(job.environment.get("TZ", "").removeprefix(":"))
    except UsageError:
        return None


def _guess_offset(job: Metadata, span: _Span | None) -> str:
    if span is None or job.start is None or job.stop is None:
        return _UNKNOWN
    start, stop = (it.replace(tzinfo=datetime.timezone.utc).timestamp() for it in (job.start, job.stop))
    # start - offset <= first process, last process <= stop - offset
    least = math.ceil((start - span[0] - _SLACK) / _STEP) * _STEP
    most = math.floor((stop - span[1] + _SLACK) / _STEP) * _STEP
    if least != most or not _WEST <= least <= _EAST:
        return _UNKNOWN
    return f"{_UNKNOWN}, {_offset(least)} by its processes"


def _offset(seconds: float) -> str:
    hours, minutes = divmod(abs(int(seconds)) // 60, 60)
    return f"UTC{'-' if seconds < 0 else '+'}{hours:02d}:{minutes:02d}"


def _moment(time: datetime.datetime | None, zone: ZoneInfo | None, name: str) -> float | None:
    if time is None:
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=zone or _fixed(name))
    try:
        found = time.timestamp()
    except (ValueError, OverflowError):
        return None
    return found if 0 <= found < LATEST_NS / 1e9 else None


def _fixed(name: str) -> datetime.timezone:
    """The offset in the name of a guessed zone."""
    _, sign, rest = name.partition("UTC")
    if not sign:
        return datetime.timezone.utc
    hours, minutes = rest[1:3], rest[4:6]
    delta = datetime.timedelta(hours=int(hours), minutes=int(minutes))
    return datetime.timezone(-delta if rest[0] == "-" else delta)


def _facts(job: Metadata, cluster: str, times: _Times, hosts: list[str]) -> JobFacts:
    environment = job.environment
    return JobFacts(
        id=storable(job.id),
        cluster=cluster,
        user=storable(job.user),
        name=storable(job.name),
        start=times.start,
        submit=times.submit,
        node=hosts[0],
        nodes=hosts,
        interval=INTERVAL,
        source="epmt",
        folder=environment.get("SLURM_SUBMIT_DIR")
        or environment.get("PBS_O_WORKDIR")
        or environment.get("PWD"),
        tags=job.tags,
        annotations=job.annotations or None,
        environment={name: environment[name] for name in _KEPT_VARIABLES if name in environment},
        partition=environment.get("SLURM_JOB_PARTITION") or environment.get("PBS_QUEUE"),
        account=environment.get("SLURM_JOB_ACCOUNT"),
        reason=None if job.reason == "none" else job.reason or None,
    )


def make_record(archive: str, facts: JobFacts, job: Metadata, times: _Times, totals: Totals) -> JobRecord:
    problems = [*job.problems]
    if times.zone.startswith(_UNKNOWN):
        offset = times.zone.removeprefix(_UNKNOWN).lstrip(", ")
        problems.append(_GUESSED_ZONE.format(offset.replace(" ", ", ", 1)) if offset else _UNKNOWN_ZONE)
    if job.stop is None:
        problems.append("its end is that of its last process: job_metadata has none")
    known = job.exit_code is not None
    end = JobEnd(
        start=times.start,
        end=times.end,
        exit_code=job.exit_code,
        state=None if known else "UNKNOWN",
        problems=problems,
        totals=totals.as_record(),
    )
    record = summarise(facts, end, SamplesReader([], facts.id, facts.node))
    record.used.processes = totals.processes
    record.used.cpu_seconds = record.used.cpu_seconds_exact = totals.cpu_seconds
    record.used.run_delay_seconds = totals.run_delay_seconds
    record.gaps = []
    for node in record.nodes:  # which no agent has sampled
        node.gaps, node.samples, node.expected_samples = [], None, None
    record.data.interval_seconds = record.data.samples = record.data.expected_samples = None
    record.data.processes = ProcessCounts(
        ended=totals.processes + totals.broken, exact=totals.processes, counted=totals.broken
    )
    record.data.imported = Imported(
        source="epmt",
        archive=storable(archive),
        zone=times.zone or None,
        processes=totals.processes,
        threads=totals.threads,
        sums=totals.shown_sums(),
        operations=totals.by_tags.all(),
        programs=totals.by_name.all(),
    )
    record.processes = totals.largest()
    record.findings = [*record.findings, *_findings(facts, times, totals)]
    return record


def _findings(facts: JobFacts, times: _Times, totals: Totals) -> Iterator[Finding]:
    def finding(rule: str, evidence: str, advice: str) -> Finding:
        return Finding(rule, times.start, times.end, evidence, advice, 0.0)

    if not totals.processes:
        yield finding(
            "no process data",
            "the archive has no process that could be read",
            "its usage is not known; check whether EPMT's collector was loaded in the job",
        )
    if totals.broken:
        where = "; ".join(totals.examples)
        yield finding(
            "broken records",
            f"{totals.broken:,} records of processes could not be read: {where}",
            "its usage is that of the other processes",
        )
    if totals.outside:
        yield finding(
            "processes outside of the job",
            f"{totals.outside:,} of {totals.processes:,} processes began before the job or ended after it",
            "check the time zone (--zone) and the clock of the node",
        )
    if totals.stopped_counters:
        yield finding(
            "broken cycle counter",
            f"rdtsc_duration of {totals.stopped_counters:,} of {totals.processes:,} processes is not above 0",
            "do not use the cycle counter of this job; its CPU times are not affected",
        )
    if totals.incomplete:
        yield finding(
            "threads missing",
            f"{totals.incomplete:,} processes have more or fewer threads than they say",
            "the usage of these processes may be incomplete",
        )
