"""The Python interface: `joblens.open()` gives jobs, series and processes.

docs/api.md shows how it is used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from joblens.core.errors import UsageError
from joblens.core.named_tuple import NamedTuple
from joblens.store import ingest
from joblens.store.catalog.index import Catalog, Run, choose_run
from joblens.store.catalog.listing import JobFilter, JobRow, make_filter, unknown
from joblens.store.home import Home, find_home, make_home
from joblens.store.lake.lake import Lake

if TYPE_CHECKING:
    import pandas

    from joblens.record.report import JobRecord, ProcessUse
    from joblens.store.memory_reader import SamplesReader
    from joblens.store.reader import LakeReader, Reader, Series, Span

Progress = Callable[[int, int], None]
_JOB_NUMBERS = ("exit_code", "duration_seconds", "cpu_seconds", "cores", "memory_peak_bytes", "processes")


class StoreInfo(NamedTuple):
    """Size and state of a store."""

    path: str
    filesystem: str
    shared: bool  # by several machines, as far as the file system shows
    about: str  # a sentence about where data and catalog are
    jobs: int
    running: list[str]  # ids
    waiting: int  # jobs whose samples are not in the lake yet
    files: int  # of samples
    bytes: int
    problems: list[str]


class Store:
    """A store, as `joblens.open` returns it. `problems` lists what went wrong, a sentence each."""

    def __init__(
        self, path: str | os.PathLike[str] | Home | None = None, progress: Progress | None = None
    ) -> None:
        self.home = make_home(path if isinstance(path, Home) else find_home(path))
        self._problems = _recover(self.home) + ingest.problems(self.home)
        self._catalog = Catalog(self.home, progress)
        self._lake = Lake(self.home.lake)

    @property
    def problems(self) -> list[str]:
        return self._problems + self._catalog.problems + self._lake.problems

    def jobs(self, wanted: JobFilter | None = None, **filters: Any) -> list[JobRow]:
        """Jobs, the newest first unless sorted otherwise; filters as those of `joblens jobs`."""
        return self._catalog.jobs(wanted or make_filter(**filters))

    def job(self, name: str, run: int | None = None) -> JobRecord:
        """Return the record of a job, by its id, a prefix of it, or `last`. Raises LookupError.

        If an id has several runs it is the newest, or the one with the number `run`, counted from 1.
        """
        found = self._catalog.find(name)
        if not found:
            running = self._running(name)
            if running is not None:
                return running
            raise LookupError(self._why_unknown(name))
        if len(found) > 1:
            some = ", ".join(map(self._catalog.name_of, found[:5])) + (", …" if len(found) > 5 else "")
            raise LookupError(f"several jobs begin with {name!r}: {some}")
        if run is None:
            return self._catalog.report(found[0])
        chosen = choose_run(self.runs(name), run)
        return self._catalog.report((chosen.cluster, chosen.id, chosen.start))

    def runs(self, name: str) -> list[Run]:
        """Return cluster, id, start, end and state of each run, the oldest first.

        Jobs are requeued, ids are reused, and clusters have their own.
        """
        return self._catalog.runs(name)

    def _why_unknown(self, name: str) -> str:
        if name == "last":
            return f"no job is stored in {self.home.path} yet; begin with: joblens run -- CMD"
        under_way = [found for found in self.running() if name and found.startswith(name)]
        if under_way:
            return f"job {under_way[0]} has not ended yet, or not been stored yet"
        return f"there is no job {name!r:.100} in {self.home.path}"

    def _running(self, name: str) -> JobRecord | None:
        """The report so far of a job that `joblens run` runs now."""
        if not name or not ingest.folders(self.home.incoming):
            return None
        from joblens.jobs.running import find_running, summarise_running

        found = [it for it in find_running(self.home) if it.facts.id.startswith(name)]
        return summarise_running(found[-1]) if found else None

    def running(self) -> list[str]:
        """Return the ids of jobs that have not ended, or are not finalised yet."""
        return sorted(found.facts.id for found in ingest.list_incoming(self.home))

    def series(
        self, name: str, set_name: str = "job", columns: tuple[str, ...] = (), points: int = 1000
    ) -> Series:
        """The samples of a set over the job's time, as at most so many points."""
        span, reader, chosen = self._chosen(name, set_name, columns)
        return reader.series(span, set_name, chosen, points)

    def split(
        self,
        name: str,
        set_name: str,
        labels: tuple[str, ...],
        columns: tuple[str, ...] = (),
        points: int = 1000,
    ) -> dict[tuple[str, ...], Series]:
        """Return one series for each combination of these labels, as strings: `("pid",)` of `process`."""
        span, reader, chosen = self._chosen(name, set_name, columns)
        return reader.split(span, set_name, labels, chosen, points)

    def sets(self, name: str) -> tuple[str, ...]:
        """Return the sets with samples, of this job or of any."""
        span = self._span(name)
        return self._reader(span.job, span.start).sets()

    def _chosen(
        self, name: str, set_name: str, columns: tuple[str, ...]
    ) -> tuple[Span, Reader, tuple[str, ...]]:
        """Raises UsageError that names the nearest where there is no such set or column."""
        span = self._span(name)
        reader = self._reader(span.job, span.start)
        if isinstance(columns, str):
            raise UsageError(f"columns is a tuple of names, and not the text {columns!r:.60}")
        if set_name not in reader.sets():
            raise unknown("set", str(set_name), reader.sets())
        known = reader.measured(span, set_name)
        for column in columns:
            if column not in known:
                raise unknown(f"column of {set_name}", str(column), known)
        return span, reader, columns or known

    def processes(self, name: str) -> list[ProcessUse]:
        """Every process that sampling saw."""
        span = self._span(name)
        return self._reader(span.job, span.start).processes(span)

    def reader(self, record: JobRecord) -> Reader:
        """For the samples of a job, by its record."""
        return self._reader(record.job.id, record.job.start)

    def _reader(self, job: str, start: float) -> LakeReader | SamplesReader:
        from joblens.store.pending import find_reader

        return find_reader(self.home, self._lake, job, start)

    def _span(self, name: str) -> Span:
        from joblens.store.reader import Span

        job = self.job(name).job
        return Span(job.id, job.start, max(job.last, job.start) + 1.0)

    # As DataFrames

    def jobs_frame(self, wanted: JobFilter | None = None, **filters: Any) -> pandas.DataFrame:
        """The jobs, with their times as such, and what is not known as NaN."""
        rows = [row._asdict() for row in self.jobs(wanted, **filters)]
        return _frame(rows, JobRow._fields, ("start", "end"), _JOB_NUMBERS)

    def series_frame(
        self, name: str, set_name: str = "job", columns: tuple[str, ...] = (), points: int = 1000
    ) -> pandas.DataFrame:
        """By time: each column as it stood at the end of its point."""
        pd = _pandas()
        series = self.series(name, set_name, columns, points)
        index = pd.to_datetime(pd.Series(series.times, dtype="float64"), unit="s", utc=True)
        return pd.DataFrame(series.last, index=pd.DatetimeIndex(index, name="time"), dtype="float64")

    def split_frame(
        self,
        name: str,
        set_name: str,
        labels: tuple[str, ...],
        columns: tuple[str, ...] = (),
        points: int = 1000,
    ) -> pandas.DataFrame:
        """One row for each moment and combination of labels; numbers as in `series_frame`."""
        split = self.split(name, set_name, labels, columns, points)
        rows = [
            {**dict(zip(labels, key)), "time": time, **{it: values[n] for it, values in series.last.items()}}
            for key, series in split.items()
            for n, time in enumerate(series.times)
        ]
        measured = tuple(dict.fromkeys(it for series in split.values() for it in series.last)) or columns
        return _frame(rows, ("time", *labels, *measured), ("time",), measured)

    def processes_frame(self, name: str) -> pandas.DataFrame:
        """Every process that sampling saw; `first` and `last` are when it was sampled."""
        from joblens.record.report import ProcessUse

        columns = ProcessUse.__struct_fields__[: ProcessUse.__struct_fields__.index("cpu_seconds")]
        rows = [process.to_dict() for process in self.processes(name)]
        numbers = [it for it in columns if it not in ("name", "command", "node", "first", "last")]
        return _frame(rows, columns, ("first", "last"), numbers)

    # Maintenance

    def compact(self, progress: Progress | None = None) -> int:
        """Samples that wait into the lake, many small files into few, and away with what crashes have left.

        How many files went in.
        """
        from joblens.store import records
        from joblens.store.lake.compact import compact
        from joblens.store.maintenance import remove_leftovers
        from joblens.store.pending import settle_all

        remove_leftovers(self.home)
        self._lake.report(*settle_all(self.home, self._lake))
        done = compact(self._lake, lambda: ingest.unfinished(self.home), progress)
        today = time.strftime("%Y-%m-%d", time.gmtime())
        days = [day for day, _ in records.list_days(self.home.records) if day != today]
        return done + sum(records.compact_day(self.home.records, day) for day in days)

    def check(self, progress: Progress | None = None) -> int:
        """Read every file and set damaged ones aside; `problems` reports them. Return the number of files."""
        from joblens.store.maintenance import check_lake, check_records

        count = check_lake(self._lake, progress)
        self._problems += check_records(self.home)
        self._catalog.check()
        return count

    def retain(self, days: int) -> int:
        """Removes what is older than so many days."""
        from joblens.store.maintenance import retain

        if days < 1:
            raise UsageError(f"at least one day has to stay, and not {days}")
        return retain(self.home, days)

    def info(self) -> StoreInfo:
        """Return its size and state."""
        from joblens.store.lake.folder import list_folder

        files = [path for folder in self.home.lake.glob("set=*/date=*") for path in list_folder(folder).files]
        sizes = [path.stat().st_size for path in files if path.exists()]
        return StoreInfo(
            path=str(self.home.path),
            filesystem=self.home.filesystem,
            shared=self.home.shared,
            about=self.home.describe(),
            jobs=self._catalog.count(),
            running=self.running(),
            waiting=len(ingest.folders(self.home.waiting)),
            files=len(sizes),
            bytes=sum(sizes),
            problems=self.problems,
        )

    def close(self) -> None:
        self._catalog.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _frame(
    rows: Sequence[Mapping[str, object]], columns: Sequence[str], times: Sequence[str], numbers: Sequence[str]
) -> pandas.DataFrame:
    """Times as timestamps; numbers as integers where all are known and whole, else as floats with NaN."""
    pd = _pandas()
    frame = pd.DataFrame(rows, columns=list(columns))
    for name in times:
        frame[name] = pd.to_datetime(frame[name].astype("float64"), unit="s", utc=True)
    for name in numbers:
        found = pd.to_numeric(frame[name], errors="coerce")
        frame[name] = found if len(frame) else found.astype("float64")
    return frame


def _recover(home: Home) -> list[str]:
    """Analysis is loaded only if there is a job to complete: a listing takes half as long without it."""
    if not ingest.folders(home.incoming):
        return []
    from joblens.jobs.complete import recover

    return recover(home)


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("DataFrames need pandas, which is not installed: pip install pandas") from None
    return pandas
