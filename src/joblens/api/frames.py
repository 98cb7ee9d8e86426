"""Jobs, series and processes as DataFrames of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from joblens.store.catalog.listing import JobRow

if TYPE_CHECKING:
    import pandas

    from joblens.analysis.comparison import Comparison
    from joblens.analysis.operations import Operation
    from joblens.api import experiments
    from joblens.api.comparing import Outliers
    from joblens.record.report import Judgement, ProcessUse
    from joblens.store.reader import End, Series

_JOB_NUMBERS = ("exit_code", "duration_seconds", "cpu_seconds", "cores", "memory_peak_bytes", "processes")


def frame_of_jobs(jobs: Sequence[JobRow]) -> pandas.DataFrame:
    return _frame(jobs, JobRow._fields, ("start", "end"), _JOB_NUMBERS)


def frame_of_series(series: Series) -> pandas.DataFrame:
    pd = _pandas()
    index = pd.to_datetime(pd.Series(series.times, dtype="float64"), unit="s", utc=True)
    return pd.DataFrame(series.last, index=pd.DatetimeIndex(index, name="time"), dtype="float64")


def frame_of_split(
    split: Mapping[tuple[str, ...], Series], labels: tuple[str, ...], columns: tuple[str, ...]
) -> pandas.DataFrame:
    measured = tuple(dict.fromkeys(it for series in split.values() for it in series.last)) or columns
    rows = (
        (time, *key, *(series.last[it][n] if it in series.last else None for it in measured))
        for key, series in split.items()
        for n, time in enumerate(series.times)
    )
    return _frame(rows, ("time", *labels, *measured), ("time",), measured)


def frame_of_processes(processes: Sequence[ProcessUse]) -> pandas.DataFrame:
    from joblens.record.report import ProcessUse

    columns = ProcessUse.__struct_fields__[: ProcessUse.__struct_fields__.index("cpu_seconds")]
    numbers = [it for it in columns if it not in ("name", "command", "node", "first", "last")]
    rows = ([getattr(process, it) for it in columns] for process in processes)
    return _frame(rows, columns, ("first", "last"), numbers)


def frame_of_ends(ends: Sequence[End], kind: type[End]) -> pandas.DataFrame:
    from joblens.record.ends import TEXTS

    times = ("began_seconds", "ended_seconds")
    numbers = [it for it in kind._fields if it not in TEXTS and it not in times]
    return _frame(ends, kind._fields, times, numbers)


def frame_of_operations(operations: Sequence[Operation]) -> pandas.DataFrame:
    from joblens.analysis.operations import Operation

    numbers = [it for it in Operation._fields if it not in ("tags", "began_seconds")]
    return _frame(operations, Operation._fields, ("began_seconds",), numbers)


def frame_of_comparison(found: Comparison, jobs: Sequence[str]) -> pandas.DataFrame:
    columns = ("part", "what", "metric", *jobs, "ratio", "interval")
    return _frame(found.rows(), columns, (), columns[3:])


def frame_of_outliers(found: Outliers) -> pandas.DataFrame:
    from joblens.api.comparing import OUTLIER_COLUMNS, outlier_rows

    return _frame(outlier_rows(found), OUTLIER_COLUMNS, (), ("value", "usual", "ratio", "score"))


def frame_of_judgements(jobs: Sequence[str], judged: Sequence[Judgement]) -> pandas.DataFrame:
    from joblens.api.comparing import JUDGED_COLUMNS, judged_rows

    return _frame(judged_rows(jobs, judged), JUDGED_COLUMNS, (), ("value", "usual", "ratio", "score"))


def frame_of_segments(series: Sequence[experiments.Series]) -> pandas.DataFrame:
    from joblens.api.experiments import COLUMNS, METRICS, segment_rows

    return _frame(segment_rows(series), COLUMNS, ("start", "end"), (*METRICS, "ratio"))


def _frame(
    rows: Iterable[Sequence[object]], columns: Sequence[str], times: Sequence[str], numbers: Sequence[str]
) -> pandas.DataFrame:
    """Times as timestamps; numbers as integers where all are known and whole, else as floats with NaN."""
    pd = _pandas()
    frame = pd.DataFrame(list(rows), columns=list(columns))
    for name in times:
        frame[name] = pd.to_datetime(frame[name].astype("float64"), unit="s", utc=True)
    for name in numbers:
        found = pd.to_numeric(frame[name], errors="coerce")
        frame[name] = found if len(frame) else found.astype("float64")
    return frame


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError("DataFrames need pandas, which is not installed: pip install pandas") from None
    return pandas
