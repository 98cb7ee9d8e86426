"""What jobs are read from: a store on this machine, or a service on another one. Both have these methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from joblens.core.errors import JoblensError
from joblens.core.named_tuple import NamedTuple

if TYPE_CHECKING:
    import pandas

    from joblens.analysis.comparison import Comparison
    from joblens.analysis.operations import Operation
    from joblens.api import experiments
    from joblens.api.comparing import Outliers
    from joblens.api.lookup import Tsdb
    from joblens.record.model import ReferenceModel
    from joblens.record.report import JobRecord, Judgement, ProcessUse
    from joblens.schedulers.facts import BatchJob
    from joblens.store.catalog.listing import JobFilter, JobRow
    from joblens.store.catalog.queries import Run
    from joblens.store.end_groups import GroupUse
    from joblens.store.end_table import EndTable
    from joblens.store.reader import End, Series


class JobQuery(NamedTuple):
    """Which run of which job is meant, and which part of it; the texts are those of the command line."""

    id: str
    run: int | None = None
    between: str | None = None
    step: str | None = None
    first: str | None = None
    last: str | None = None

    @property
    def is_part(self) -> bool:
        return {self.between, self.step, self.first, self.last} != {None}


class NotFoundError(LookupError):
    """There is no such job, or it is someone else's."""


class CutError(JoblensError):
    """A service sends only a part of what an answer needs."""


class AmbiguousError(LookupError):
    """Several jobs begin with that text."""


class Listed(NamedTuple):
    """A job in a listing of several sources."""

    job: JobRow
    origin: str = ""  # `own` or `site`, if both are listed


def not_found(name: str) -> str:
    """One sentence for a job that does not exist and for one of someone else."""
    return f"job {name:.100}: not found, or not yours"


def never_started(job: JobRow) -> bool:
    """In the store it is known by its end."""
    return not job.node and not job.duration_seconds


def shown(job: JobRow) -> JobRow:
    """Return the row as people see it: a job that never started has no start."""
    return job._replace(start=None) if never_started(job) else job


class JobSource(ABC):
    """`problems` lists what went wrong, a sentence each."""

    several = False  # whether jobs are from the user's own store and from a site

    @property
    @abstractmethod
    def problems(self) -> list[str]: ...

    @abstractmethod
    def jobs(self, wanted: JobFilter | None = None, **filters: Any) -> list[JobRow]:
        """Jobs, the newest first unless sorted otherwise; filters as those of `joblens jobs`."""

    @abstractmethod
    def listed(self, wanted: JobFilter) -> list[Listed]:
        """Return the same with running jobs, and pending ones if they are asked for.

        The start of a job that never started is its end; `shown` removes it.
        """

    def why_empty(self) -> str:
        """Return a sentence for a listing without filters that has no job."""
        return "no job is stored yet; begin with: joblens run -- CMD"

    @abstractmethod
    def find(
        self, query: JobQuery, *, tsdb: Callable[[], Tsdb] | None = None, session: BatchJob | None = None
    ) -> JobRecord:
        """Return the record, also of a running job or of a part of one. Raises LookupError.

        Only a store on this machine uses `tsdb`, for jobs without a record there, and `session`, the job if
        its user mode runs now.
        """

    def job(self, name: str, run: int | None = None) -> JobRecord:
        """Return the record of a job, by its id, a prefix of it, or `last`. Raises LookupError.

        If an id has several runs it is the newest, or the one with the number `run`, counted from 1.
        """
        return self.find(JobQuery(name, run))

    @abstractmethod
    def runs(self, name: str) -> list[Run]:
        """Return cluster, id, start, end and state of each run, the oldest first.

        Jobs are requeued, ids are reused, and clusters have their own.
        """

    def series(
        self, name: str, set_name: str = "job", columns: tuple[str, ...] = (), points: int = 1000
    ) -> Series:
        """The samples of a set over the job's time, as at most so many points."""
        from joblens.store.reader import Series

        found = self.split(name, set_name, (), columns, points)
        return found.get((), Series([], {}, {}, {}))

    @abstractmethod
    def split(
        self,
        name: str,
        set_name: str,
        labels: tuple[str, ...],
        columns: tuple[str, ...] = (),
        points: int = 1000,
    ) -> dict[tuple[str, ...], Series]:
        """Return one series for each combination of these labels, as strings: `("pid",)` of `process`."""

    def sets(self, name: str) -> tuple[str, ...]:
        """Return the sets that have samples of this job."""
        return tuple(self.columns(name))

    @abstractmethod
    def columns(self, name: str) -> dict[str, tuple[str, ...]]:
        """Return the columns with numbers, by set, of those sets that have samples of this job."""

    @abstractmethod
    def processes(self, name: str) -> list[ProcessUse]:
        """Every process that sampling saw."""

    @abstractmethod
    def ends(self, name: str, kind: type[End], run: int | None = None) -> list[End]:
        """Return the processes or threads of a job that capture recorded, in order of their start.

        A service limits their number, and returns the first ones.
        """

    def end_table(self, name: str, kind: type[End], run: int | None = None) -> EndTable[End]:
        """Return the same as columns, of which single rows can be made."""
        from joblens.store.end_table import table_of

        return table_of(self.ends(name, kind, run), kind)

    def whole_table(self, name: str, kind: type[End], run: int | None = None) -> EndTable[End]:
        """Return the same, of all processes or threads. Raises CutError."""
        return self.end_table(name, kind, run)

    @abstractmethod
    def groups_of(self, name: str, by: Iterable[str], run: int | None = None) -> list[GroupUse]:
        """Return the processes of a job that are alike, by `tags`, `name` and `command`. A service adds them
        up itself."""

    def operations(self, name: str, run: int | None = None) -> list[Operation]:
        """Return the processes with the same tags as one each. Raises CutError."""
        from joblens.analysis.operations import find_operations
        from joblens.record.ends import EndedProcess

        return find_operations(self.whole_table(name, EndedProcess, run))

    # Comparing

    def record_of(self, row: JobRow) -> JobRecord:
        """Return the record of a job in a listing. Raises LookupError."""
        name = f"{row.id}@{row.cluster}"
        return self.job(name, self._number_of(name, row.start))

    def end_groups(self, record: JobRecord, by: Iterable[str]) -> list[GroupUse]:
        """Return what `groups_of` does, of the run that the record is of."""
        name = f"{record.job.id}@{record.job.cluster}"
        return self.groups_of(name, by, self._number_of(name, record.job.start))

    def thread_groups(self, record: JobRecord) -> list[GroupUse]:
        """Return the threads of a job that are alike, by the program of their process and their name. Raises
        CutError."""
        from joblens.record.ends import EndedProcess, EndedThread
        from joblens.store.end_groups import group_threads

        return group_threads(self._ends_of(record, EndedProcess), self._ends_of(record, EndedThread))

    def end_table_of(self, record: JobRecord, kind: type[End]) -> EndTable[End]:
        """Return what `whole_table` does, of the run that the record is of. Raises CutError."""
        name = f"{record.job.id}@{record.job.cluster}"
        return self.whole_table(name, kind, self._number_of(name, record.job.start))

    def _ends_of(self, record: JobRecord, kind: type[End]) -> list[End]:
        table = self.end_table_of(record, kind)
        return table.rows(range(len(table)))

    def _number_of(self, name: str, start: float | None) -> int | None:
        """Return the number of the run that began then; none of a job with one run."""
        starts = [run.start for run in self.runs(name)]
        return starts.index(start) + 1 if len(starts) > 1 and start in starts else None

    def compare(self, names: Sequence[str], others: Sequence[str] = ()) -> Comparison:
        """Compare the first job with the others, or all of `names` with all of `others`."""
        from joblens.api.comparing import compare_jobs, load_named

        records = load_named(self, [*names, *others])
        return compare_jobs(self, records, len(names) if others else 1)

    def outliers(
        self, names: Sequence[str] = (), of: str = "jobs", method: str = "modified-z", **filters: Any
    ) -> Outliers:
        """Find jobs, or parts of them, that are unlike those of the others: by ids, or by filters."""
        from joblens.api.comparing import find_unusual, load_chosen

        return find_unusual(self, load_chosen(self, names, **filters), of, method)

    def segments(
        self,
        experiment: str,
        by: str = "",
        component: str | None = None,
        every: str | None = None,
        first: str | None = None,
        last: str | None = None,
    ) -> list[experiments.Series]:
        """Return the segments of an experiment in order, for each component, and those that are missing.

        `first` and `last` have to be there; without them, these are the first and the last that are.
        """
        from joblens.analysis.segments import parse_step
        from joblens.api.experiments import find_series

        step, expected = parse_step(every) if every else None, [it for it in (first, last) if it]
        return find_series(self, experiment, by, component, step, expected)

    # Reference models

    @abstractmethod
    def models(self) -> list[ReferenceModel]:
        """Return the reference models that this reader may see, in order of their names. Those of a service
        have no figures; `model` returns them."""

    def listed_models(self) -> list[tuple[ReferenceModel, str]]:
        """Return the same with `own` or `site`, if both are listed."""
        return [(it, "") for it in self.models()]

    @abstractmethod
    def model(self, name: str) -> ReferenceModel:
        """Return a reference model. Raises NoModelError."""

    def judge(self, names: Sequence[str] = (), *, model: str, **filters: Any) -> list[Judgement]:
        """Compare jobs with a reference model, and store nothing."""
        from joblens.api.comparing import judge_jobs, load_chosen

        return judge_jobs(self, load_chosen(self, names, **filters), model)

    def judge_frame(self, names: Sequence[str] = (), *, model: str, **filters: Any) -> pandas.DataFrame:
        """One row for each figure that is unlike the model's, of jobs, operations and programs."""
        from joblens.api.comparing import judge_jobs, load_chosen, name_jobs
        from joblens.api.frames import frame_of_judgements

        records = load_chosen(self, names, **filters)
        return frame_of_judgements(name_jobs(records), judge_jobs(self, records, model))

    @abstractmethod
    def close(self) -> None: ...

    # As DataFrames

    def jobs_frame(self, wanted: JobFilter | None = None, **filters: Any) -> pandas.DataFrame:
        """The jobs, with their times as such, and what is not known as NaN."""
        from joblens.api.frames import frame_of_jobs

        return frame_of_jobs([shown(job) for job in self.jobs(wanted, **filters)])

    def series_frame(
        self, name: str, set_name: str = "job", columns: tuple[str, ...] = (), points: int = 1000
    ) -> pandas.DataFrame:
        """By time: each column as it stood at the end of its point."""
        from joblens.api.frames import frame_of_series

        return frame_of_series(self.series(name, set_name, columns, points))

    def split_frame(
        self,
        name: str,
        set_name: str,
        labels: tuple[str, ...],
        columns: tuple[str, ...] = (),
        points: int = 1000,
    ) -> pandas.DataFrame:
        """One row for each moment and combination of labels; numbers as in `series_frame`."""
        from joblens.api.frames import frame_of_split

        return frame_of_split(self.split(name, set_name, labels, columns, points), labels, columns)

    def processes_frame(self, name: str) -> pandas.DataFrame:
        """Every process that sampling saw; `first` and `last` are when it was sampled."""
        from joblens.api.frames import frame_of_processes

        return frame_of_processes(self.processes(name))

    def ends_frame(self, name: str, kind: type[End], run: int | None = None) -> pandas.DataFrame:
        """What capture recorded, with times as timestamps."""
        from joblens.api.frames import frame_of_ends

        return frame_of_ends(self.ends(name, kind, run), kind)

    def operations_frame(self, name: str, run: int | None = None) -> pandas.DataFrame:
        """Processes with the same tags."""
        from joblens.api.frames import frame_of_operations

        return frame_of_operations(self.operations(name, run))

    def compare_frame(self, names: Sequence[str], others: Sequence[str] = ()) -> pandas.DataFrame:
        """One row for each metric of the jobs, their operations and programs, and for each stretch of their
        timelines, with the value of each job."""
        from joblens.api.comparing import load_named, name_jobs
        from joblens.api.frames import frame_of_comparison

        jobs = name_jobs(load_named(self, [*names, *others]))
        return frame_of_comparison(self.compare(names, others), jobs)

    def outliers_frame(
        self, names: Sequence[str] = (), of: str = "jobs", method: str = "modified-z", **filters: Any
    ) -> pandas.DataFrame:
        """One row for each value that is unlike the others."""
        from joblens.api.frames import frame_of_outliers

        return frame_of_outliers(self.outliers(names, of, method, **filters))

    def segments_frame(
        self,
        experiment: str,
        by: str = "",
        component: str | None = None,
        every: str | None = None,
        first: str | None = None,
        last: str | None = None,
    ) -> pandas.DataFrame:
        """One row for each segment; of those that are missing only the name is known."""
        from joblens.api.frames import frame_of_segments

        return frame_of_segments(self.segments(experiment, by, component, every, first, last))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
