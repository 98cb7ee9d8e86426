"""Rows of the sets `process_end` and `thread_end` from the processes of an archive.

A metric that joblens has a column for is stored there, in base units; any other as `epmt_NAME`, as it is. The
collector read five columns of /proc/PID/stat from the wrong place: these are left out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from joblens.collectors.ends.sets import PROCESS_END, THREAD_END
from joblens.core.model import ABSENT, GAUGE, Column
from joblens.core.secrets import mask_secrets
from joblens.importers.epmt.process_data import Chunk, code_texts
from joblens.store.lake.columns import TIME, Table, identifier, in_base_units, storable
from joblens.store.lake.folder import JobFile, job_file, list_folder
from joblens.store.lake.lake import Lake, literal, select_text, text_column
from joblens.store.location import safe_name

if TYPE_CHECKING:
    from joblens.importers.epmt.process_data import Numbers

WRONG = frozenset(("num_threads", "starttime", "processor", "delayacct_blkio_time", "guest_time"))
_STORED_AS = {
    "usertime": "user_seconds",
    "systemtime": "system_seconds",
    "minflt": "minor_faults",
    "majflt": "major_faults",
    "vol_ctxsw": "voluntary_switches",
    "invol_ctxsw": "involuntary_switches",
    "rchar": "read_chars_bytes",
    "wchar": "written_chars_bytes",
    "syscr": "read_calls",
    "syscw": "write_calls",
    "read_bytes": "read_bytes",
    "write_bytes": "written_bytes",
    "cancelled_write_bytes": "cancelled_write_bytes",
    "time_waiting": "run_delay_seconds",
    "timeslices": "time_slices",
    "time_oncpu": "cpu_seconds",
    "rssmax": "memory_peak_bytes",
}
_COLUMNS = {column.name: column for column in (*THREAD_END.columns, *PROCESS_END.columns)}
_MICROSECONDS = {"start": "began_seconds", "end": "ended_seconds"}
_MOST_CHUNKS = 10**5


class LakeJob(NamedTuple):
    """The job whose rows they are, and what its files are named by: repeated, an import writes the same."""

    cluster: str
    id: str
    end: float
    number: int

    @property
    def date(self) -> str:
        return time.strftime("%Y-%m-%d", time.gmtime(self.end))

    def file(self, chunk: int) -> str:
        place = self.number % 10**12 * _MOST_CHUNKS + chunk % _MOST_CHUNKS
        return JobFile(safe_name(self.id), place, place).name


def choose_files(lake: Lake, job: LakeJob) -> LakeJob:
    """Return the job with names for its files that count.

    A file that was compacted does not count again. If its rows are in the lake, an import was killed; if they
    are not, the job was deleted since, and its files need other names.
    """
    folder = lake.path / "set=process_end" / f"date={job.date}"
    replaced = (
        {name for it in list_folder(folder).manifests for name in it.replaces} if folder.is_dir() else set()
    )
    while job.file(0) in replaced and not _has_rows(lake, job):
        job = job._replace(number=job.number + 1)
    return job


def remove_files(lake: Lake, job: LakeJob) -> None:
    """Remove what an import has left that was ended: of another archive of the job, it can be more files."""
    name, block = safe_name(job.id), job.number % 10**12
    for set_name in ("process_end", "thread_end"):
        for path in lake.path.glob(f"set={set_name}/date=*/*"):
            found = job_file(path.name)
            if found is not None and found.job == name and found.first // _MOST_CHUNKS == block:
                path.unlink(missing_ok=True)


def _has_rows(lake: Lake, job: LakeJob) -> bool:
    files = lake.files("process_end", (job.date, job.date), job.id)
    query = (
        "SELECT count(*) FROM {lake} "
        "WHERE jobid = $job AND cluster = $cluster AND time = make_timestamp_ns($end)"
    )
    kinds = {"jobid": "VARCHAR", "cluster": "VARCHAR", "time": "TIMESTAMP_NS"}
    values = {"job": job.id, "cluster": job.cluster, "end": int(job.end * 1e9)}
    return any(count for (count,) in lake.query(files, kinds, query, values))


def save_chunk(lake: Lake, job: LakeJob, number: int, chunk: Chunk) -> None:
    """Write the processes and the threads. Raises OutsideError."""
    for name, make in (("process_end", _processes), ("thread_end", _threads)):
        made = make(job, chunk)
        lake.save_tables(name, job.date, job.file(number), [made.table()], ordered=True, texts=made.texts)
        del made  # before the next one is made


class _Builder:
    def __init__(self, job: LakeJob, rows: int) -> None:
        import numpy

        self.columns: dict[str, Any] = {TIME: numpy.full(rows, int(job.end * 1e9), dtype=numpy.int64)}
        self.selected = [f"make_timestamp_ns({TIME}) AS {TIME}"]
        self.texts: dict[str, list[str]] = {}  # of columns that have places among them
        self.text("cluster", job.cluster)
        self.text("jobid", job.id)

    def text(self, name: str, value: str) -> None:
        """The same in all rows."""
        value = storable(value)
        if value.isprintable():
            self.selected.append(f"{literal(value)} AS {identifier(name)}")
        else:
            self.different(name, [value] * len(self.columns[TIME]))

    def few(self, name: str, distinct: Sequence[str], places: Numbers) -> None:
        """Few of the rows have different texts."""
        self.texts[name] = list(distinct)
        self.columns[text_column(name)] = places
        self.selected.append(f"{select_text(name)} AS {identifier(name)}")

    def different(self, name: str, values: Sequence[str]) -> None:
        import numpy

        self.columns[name] = numpy.array(values, dtype=object)
        self.selected.append(identifier(name))

    def label(self, name: str, values: Numbers | int) -> None:
        if isinstance(values, int):
            self.selected.append(f"{values}::BIGINT AS {identifier(name)}")
            return
        self.columns[name] = values
        self.selected.append(identifier(name))

    def number(self, column: Column, values: Numbers) -> None:
        raw = f"raw {len(self.selected)}"
        self.columns[raw] = values
        self.selected.append(f"{in_base_units(column, raw, values)} AS {identifier(column.name)}")

    def metrics(self, metrics: Mapping[str, Numbers]) -> None:
        taken: set[str] = set()
        for name, values in metrics.items():
            if name not in WRONG:
                column = _column(name)
                while column.name.lower() in taken:
                    column = column._replace(name=column.name + "_")
                taken.add(column.name.lower())
                self.number(column, values)

    def table(self) -> Table:
        return Table(", ".join(self.selected), self.columns, ())


def _column(metric: str) -> Column:
    known = _STORED_AS.get(metric)
    if known is not None:
        return _COLUMNS[known]
    return Column("epmt_" + re.sub(r"\W", "_", metric), GAUGE, "")


def _time(name: str) -> Column:
    return Column(_MICROSECONDS[name], GAUGE, "", divisor=1_000_000)


def _processes(job: LakeJob, chunk: Chunk) -> _Builder:
    made = _Builder(job, len(chunk.first))
    for stored, name in (("node", "hostname"), ("name", "exename"), ("executable", "path"), ("tags", "tags")):
        if name in chunk.texts:
            made.few(stored, *code_texts(chunk.texts[name]))
        else:
            made.text(stored, "")
    made.different("command", command_lines(chunk))
    made.text("step", "")
    made.text("folder", "")
    if ranks := _ranks(chunk):
        made.different("rank", ranks)
    else:
        made.text("rank", "")
    for label, name in (("pid", "pid"), ("parent", "ppid"), ("group", "pgid"), ("session", "sid")):
        made.label(label, chunk.numbers.get(name, 0))
    made.label("start", 0)
    made.label("uid", -1)
    for name in _MICROSECONDS:
        made.number(_time(name), chunk.numbers[name])
    made.selected.append("1 AS exact")
    _add_end(made, chunk)
    made.number(_COLUMNS["threads"], chunk.threads - 1)
    made.metrics(sum_by_process(chunk))
    return made


def _add_end(made: _Builder, chunk: Chunk) -> None:
    import numpy

    for stored, name, unknown in (("exit_code", "exitcode", None), ("signal", "exitsignal", 0)):
        if name in chunk.numbers:
            values = chunk.numbers[name]
            known = values if unknown is None else numpy.where(values == unknown, ABSENT, values)
            made.number(_COLUMNS[stored], known)


def _ranks(chunk: Chunk) -> list[str]:
    """Of a program with MPI; nothing if there is none."""
    sizes, ranks = (chunk.numbers.get(name) for name in ("mpinumranks", "mpirank"))
    if sizes is None or ranks is None or not (sizes > 0).any():
        return []
    return [str(rank) if size > 0 else "" for rank, size in zip(ranks.tolist(), sizes.tolist())]


def command_lines(chunk: Chunk) -> list[str]:
    names, arguments = chunk.texts["exename"], chunk.texts.get("args")
    if arguments is None:
        return names
    commands = [f"{name} {rest}" if rest else name for name, rest in zip(names, arguments)]
    return mask_secrets(commands, chunk.suspects.tolist())


def sum_by_process(chunk: Chunk) -> dict[str, Numbers]:
    """Add up the threads of each process. The peak of memory is that of the process already."""
    import numpy

    if len(chunk.first) == int(chunk.threads.sum()):
        return chunk.metrics
    return {
        name: (numpy.maximum if name == "rssmax" else numpy.add).reduceat(values, chunk.first)
        for name, values in chunk.metrics.items()
    }


def _threads(job: LakeJob, chunk: Chunk) -> _Builder:
    import numpy

    made = _Builder(job, int(chunk.threads.sum()))

    def spread(values: Numbers) -> Numbers:
        found: Numbers = numpy.repeat(values, chunk.threads)
        return found

    alone = spread(chunk.threads) == 1
    hosts, places = code_texts(chunk.texts.get("hostname", [""] * len(chunk.first)))
    made.few("node", hosts, spread(places))
    made.text("name", "")
    pids = spread(chunk.numbers["pid"])
    made.label("pid", pids)
    made.label("start", 0)
    known = chunk.thread_numbers
    # v2 has no ids of threads; the only thread of a process has that of the process.
    made.label("tid", known["tid"] if "tid" in known else numpy.where(alone, pids, 0))
    for name in _MICROSECONDS:
        of_process = numpy.where(alone, spread(chunk.numbers[name]), ABSENT)
        made.number(_time(name), known.get(name, of_process))
    made.metrics(chunk.metrics)
    return made
